"""Pipeline splits, virtual stages, layouts and batches."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.errors import InvalidLayoutError
from moe_long_context.mesh.layout_string import layout_problems, stages_of
from moe_long_context.rules.families.moe import core_before
from moe_long_context.rules.rule import rule
from moe_long_context.rules.versions import core_of

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 4096, "pp": 4, "ep": 8, "gbs": 64}
BLOCK = "megatron-core 0.19.2 transformer/transformer_block.py get_num_layers_to_build"
CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
LAYOUT = "megatron-core 0.19.2 transformer/pipeline_parallel_layer_layout.py validate_layer_layout"
SCHEDULE = "megatron-core 0.19.2 pipeline_parallel/schedules.py forward_backward_pipelining_with_interleaving"
PP, VPP = "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"
UNEVEN = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")
ACCOUNT = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")


def _layout(run: Run) -> Any:
    return run.written.pipeline_model_parallel_layout


def _uneven(run: Run) -> bool:
    return any(getattr(run.written, name) is not None for name in UNEVEN)


def _account(run: Run) -> bool:
    return run.account_embedding or run.account_loss


def _stages(run: Run) -> tuple[str, ...] | None:
    """The layout's stages, None without a readable layout."""
    if _layout(run) is None:
        return None
    try:
        return stages_of(_layout(run))
    except InvalidLayoutError:
        return None


@rule(
    "vpp-needs-pp", "error", "VPP without PP",
    why="Interleaving needs more than one pipeline stage.", fix="leave VPP unset, or use PP > 1", where="process groups",
    fields=f"{VPP} {PP}", source="megatron-core 0.19.2 parallel_state.py initialize_model_parallel",
    fails={"pp": 1, "vpp": 2}, passes={"vpp": 2}, repair=lambda run: {"vpp": None},
)  # fmt: skip
def _vpp_pp(run: Run) -> str | None:
    vpp = run.vpp_written
    return f"VPP={vpp} with PP=1" if vpp and vpp > 1 and run.sizes.pp == 1 else None


@rule(
    "vpp-pp2-needs-p2p-overlap", "error", "VPP on PP=2 without p2p overlap",
    why="The command line refuses the interleaved schedule on two stages unless sends overlap.",
    fix="keep p2p overlap on, or use PP > 2", where="command line", fields=f"{VPP} overlap.p2p",
    source="megatron-core 0.19.2 megatron/training/arguments.py validate_args", frontends=("megatron_lm",),
    fails={"pp": 2, "vpp": 2, "overlap": {"p2p": False}, "frontend": "megatron_lm"},
    passes={"pp": 2, "vpp": 2, "frontend": "megatron_lm"},
)  # fmt: skip
def _vpp_pp2(run: Run) -> str | None:
    off = run.written.overlap.p2p is False
    return "VPP with PP=2 needs overlap_p2p_comm" if off and run.sizes.vpp > 1 and run.sizes.pp == 2 else None


@rule(
    "p2p-overlap-vs-batch", "error", "overlap_p2p_comm and batch_p2p_comm together",
    why="The interleaved schedule takes one of them.", fix="set batch_p2p_comm to False", where="first forward",
    fields="overlap.p2p model.batch_p2p_comm", source=SCHEDULE,
    fails={"vpp": 2, "overlap": {"p2p": True}, "megatron": {"model.batch_p2p_comm": True}},
    passes={"vpp": 2, "overlap": {"p2p": True}, "megatron": {"model.batch_p2p_comm": False}},
    repair=lambda run: {"megatron": {"model.batch_p2p_comm": False}},
)  # fmt: skip
def _p2p(run: Run) -> str | None:
    both = run.sizes.vpp > 1 and run.written.overlap.p2p and run.written.megatron.get("model.batch_p2p_comm")
    return "overlap_p2p_comm and batch_p2p_comm are both on under the interleaved schedule" if both else None


PAIRS = frozenset({(1, 1), (4, 1), (8, 1), (4, 2), (16, 1), (8, 2), (4, 4)})
RECIPE_LAYOUTS = {"deepseek-v3": PAIRS, "kimi-k2": PAIRS | {(2, 8)}}
"""(PP, VPP) that the released Bridge recipe of a model has a layout for: megatron-bridge 0.6.2 recipes."""
RECIPE_ACCOUNTS = ("qwen3-235b-a22b",)
"""Models whose released Bridge recipe counts the embedding and the loss as layers."""


def _recipe_splits(run: Run) -> bool:
    """Whether the released Bridge recipe of this model says how to split the layers."""
    s = run.sizes
    if run.model_id in RECIPE_ACCOUNTS and (run.arch.num_layers + 2) % (s.pp * s.vpp) == 0:
        return run.bridge
    return run.bridge and (run.model_id in RECIPE_LAYOUTS or run.recipe_layout_known)


@rule(
    "layers-div-pp", "error", "layers do not divide over PP",
    why="Nothing else says how to split them; the assert comes when the block is built.",
    fix="use a layout string, num_layers_in_first/last_pipeline_stage, or account_for_*", where="model build",
    fields=f"model.num_layers {PP}", source=BLOCK, fails={"pp": 5, "num_gpus": 40}, passes={},
    needs=("model",),
)  # fmt: skip
def _div_pp(run: Run) -> str | None:
    other = _layout(run) is not None or _uneven(run) or _account(run) or _recipe_splits(run)
    if other or run.arch.num_layers % run.sizes.pp == 0:
        return None
    return f"{run.arch.num_layers} layers do not divide over PP={run.sizes.pp}"


@rule(
    "layers-div-vpp", "error", "layers of a rank do not divide over VPP",
    why="Each virtual stage must hold the same number of layers without a layout.",
    fix="use a VPP that divides the layers of a rank, or a layout string", where="model build",
    fields=f"model.num_layers {PP} {VPP}", source=BLOCK, fails={"vpp": 5}, passes={"vpp": 6},
    needs=("model",),
)  # fmt: skip
def _div_vpp(run: Run) -> str | None:
    s = run.sizes
    other = _layout(run) is not None or _uneven(run) or _account(run) or _recipe_splits(run)
    if other or run.arch.num_layers % s.pp:
        return None
    per_rank = run.arch.num_layers // s.pp
    if per_rank % s.vpp == 0:
        return None
    legal = [v for v in range(1, per_rank + 1) if per_rank % v == 0]
    return f"{per_rank} layers per rank do not divide over VPP={s.vpp}; legal VPP: {legal}"


@rule(
    "account-embed-loss-div", "error", "layers plus embedding and loss do not divide",
    why="With account_for_* the embedding and the loss each take a layer's place.",
    fix="choose PP and VPP that divide layers + 1 per accounted end, or a layout string", where="config",
    fields=" ".join((*ACCOUNT, PP, VPP)), source=CONFIG,
    fails={"account_for_loss_in_pipeline_split": True}, passes={
        "model": "qwen3-235b-a22b", "account_for_loss_in_pipeline_split": True,
        "account_for_embedding_in_pipeline_split": True,
    },
    needs=("model",),
)  # fmt: skip
def _account_div(run: Run) -> str | None:
    if _layout(run) is not None or _uneven(run) or not _account(run):
        return None
    pp, vpp = run.sizes.pp, run.vpp_written or 1
    total = run.arch.num_layers + run.account_embedding + run.account_loss
    if total % pp:
        return f"{total} layers with the accounted ends do not divide over PP={pp}"
    return f"{total // pp} per rank do not divide over VPP={vpp}" if total // pp % vpp else None


@rule(
    "uneven-vs-account", "error", "first/last stage counts with account_for_*",
    why="The two ways of an uneven split exclude each other.", fix="keep one of them", where="config",
    fields=" ".join((*UNEVEN, *ACCOUNT)), source=CONFIG,
    fails={"num_layers_in_first_pipeline_stage": 12, "account_for_loss_in_pipeline_split": True}, passes={},
)  # fmt: skip
def _uneven_account(run: Run) -> str | None:
    return "first/last stage layer counts cannot be mixed with account_for_*" if _uneven(run) and _account(run) else None


@rule(
    "uneven-middle-layers", "error", "what first and last leave does not divide",
    why="Middle stages must be equal, and each stage must divide over VPP.",
    fix="choose first and last so that the rest divides by the middle stages", where="config",
    fields=" ".join((*UNEVEN, PP, VPP)), source=CONFIG,
    fails={"num_layers_in_first_pipeline_stage": 11}, passes={"num_layers_in_first_pipeline_stage": 9},
    needs=("model",),
)  # fmt: skip
def _middle(run: Run) -> str | None:
    if not _uneven(run) or _account(run) or _layout(run) is not None:
        return None
    vpp, ends = run.vpp_written or 1, [getattr(run.written, name) for name in UNEVEN]
    given = [count for count in ends if count is not None]
    rest, stages = run.arch.num_layers - sum(given), run.sizes.pp - len(given)
    for count in given:
        if count < 1 or count % vpp:
            return f"a first or last stage of {count} layers is not a positive multiple of VPP={vpp}"
    dropped = bool(rest) != bool(stages) and not core_before(run, "0.16.1")
    if dropped or (stages and rest % stages):
        return f"{rest} layers are left for {stages} middle stages"
    return f"middle stages of {rest // stages} layers do not divide over VPP={vpp}" if stages and rest // stages % vpp else None


@rule(
    "uneven-layers-dropped", "error", "first and last stage hold other than all layers, and nobody checks",
    why="Until core 0.15 layers that no middle stage takes are left out without a word.",
    fix="make first + middle + last equal num_layers", where="silently", fields=" ".join((*UNEVEN, PP)),
    source="megatron-core 0.15.0 transformer/transformer_config.py and transformer_block.py", until="0.15.0",
    fails={"pp": 2, "num_layers_in_first_pipeline_stage": 11, "num_layers_in_last_pipeline_stage": 11, "versions": {"megatron_core": "0.15.0"}},
    passes={"pp": 2, "num_layers_in_first_pipeline_stage": 11, "num_layers_in_last_pipeline_stage": 37, "versions": {"megatron_core": "0.15.0"}},
    needs=("model",),
)  # fmt: skip
def _dropped(run: Run) -> str | None:
    given = [count for name in UNEVEN if (count := getattr(run.written, name)) is not None]
    rest, stages = run.arch.num_layers - sum(given), run.sizes.pp - len(given)
    bad = given and bool(rest) != bool(stages)
    return f"{rest} layers have no stage: PP={run.sizes.pp} with {' and '.join(map(str, given))} given" if bad else None


@rule(
    "layout-exclusive", "error", "a layout beside other ways of splitting",
    why="The layout already says where every layer stands.", fix="remove the other fields", where="config",
    fields=" ".join(("pipeline_model_parallel_layout", *UNEVEN, *ACCOUNT)), source=CONFIG,
    fails={"layout": "Et*12|t*12|t*12|t*12L", "account_for_loss_in_pipeline_split": True},
    passes={"layout": "Et*12|t*12|t*12|t*12L"}, repair=lambda run: dict.fromkeys((*UNEVEN, *ACCOUNT)),
)  # fmt: skip
def _exclusive(run: Run) -> str | None:
    both = _layout(run) is not None and (_uneven(run) or _account(run))
    return "pipeline_model_parallel_layout cannot stand beside first/last counts or account_for_*" if both else None


@rule(
    "layout-stage-count", "error", "layout stages and PP x VPP differ",
    why="The stages of the layout are dealt to the ranks in order; their number fixes VPP.",
    fix="write PP x VPP stages, and leave VPP unset or equal to stages / PP", where="config",
    fields=f"pipeline_model_parallel_layout {PP} {VPP}", source=CONFIG,
    fails={"layout": "Et*16|t*16|t*16L"}, passes={"layout": "Et*12|t*12|t*12|t*12L"},
)  # fmt: skip
def _stage_count(run: Run) -> str | None:
    stages = _stages(run)
    if stages is None:
        return None
    pp, vpp = run.sizes.pp, run.vpp_written
    if len(stages) % pp:
        return f"the layout has {len(stages)} stages, not a multiple of PP={pp}"
    if vpp is not None and vpp != len(stages) // pp:
        return f"the layout's {len(stages)} stages mean VPP={len(stages) // pp}, but VPP={vpp} is given"
    return None


@rule(
    "layout-stale-after-pp-override", "warning", "first and last counts look made for another PP",
    why="Overriding PP or VPP on a recipe leaves its counts in place: the middle stages take what is left.",
    fix="choose the counts anew, or write a layout", where="silently", fields=" ".join((PP, *UNEVEN)),
    source="megatron-bridge 0.6.2 recipes (counts are not recomputed on override)", silenced_by=("uneven-vs-account",),
    fails={"num_layers_in_first_pipeline_stage": 4, "num_layers_in_last_pipeline_stage": 4},
    passes={"num_layers_in_first_pipeline_stage": 11, "num_layers_in_last_pipeline_stage": 13},
    correction="the file judges the override itself; here the counts are judged, and layout-stage-count judges layouts",
    needs=("model",),
)  # fmt: skip
def _stale(run: Run) -> str | None:
    given = [count for name in UNEVEN if (count := getattr(run.written, name)) is not None]
    stages = run.sizes.pp - len(given)
    if not given or stages < 1 or _layout(run) is not None:
        return None
    middle = (run.arch.num_layers - sum(given)) / stages
    bad = middle > 2 * max(given) or middle * 2 < min(given)
    return f"middle stages get {middle:g} layers beside {' and '.join(map(str, given))}" if bad else None


@rule(
    "layout-letters", "error", "layout letters or ends are wrong",
    why="Only E, t, m and L are known; E is the very first layer and L the very last.",
    fix="write for example Et*3|(tt|)*29m|L", where="config", fields="pipeline_model_parallel_layout", source=LAYOUT,
    fails={"layout": "t*12|t*12|t*12|t*12L"}, passes={"layout": "Et*12|t*12|t*12|t*12L"},
)  # fmt: skip
def _letters(run: Run) -> str | None:
    if _layout(run) is None:
        return None
    try:
        stages = stages_of(_layout(run))
    except InvalidLayoutError as error:
        return error.message
    problems = layout_problems(stages, run.arch.num_layers, run.mtp, run.sizes.pp)
    return next((p for p in problems if "must stand exactly once" in p), None)


@rule(
    "layout-decoder-count", "error", "layout holds another number of decoder layers",
    why="Layers would be missing or extra; dense-first layers count as t too.",
    fix="write one t for each of num_layers", where="config", fields="pipeline_model_parallel_layout model.num_layers",
    source=LAYOUT, fails={"layout": "Et*12|t*12|t*12|t*11L"}, passes={"layout": "Et*12|t*12|t*12|t*12L"},
    needs=("model",),
)  # fmt: skip
def _decoders(run: Run) -> str | None:
    stages = _stages(run)
    if stages is None:
        return None
    found = "".join(stages).count("t")
    return None if found == run.arch.num_layers else f"the layout has {found} t where the model has {run.arch.num_layers} layers"


@rule(
    "layout-mtp", "error", "MTP layers are misplaced in the layout",
    why="All MTP layers stand in one stage, after every decoder layer, in the last virtual stage of their rank.",
    fix="put all m in the last stages, one per mtp_num_layers", where="config",
    fields="pipeline_model_parallel_layout mtp_num_layers", source=LAYOUT,
    fails={"model": "deepseek-v3", "layout": "Et*15|t*15|t*15|t*16L"},
    passes={"model": "deepseek-v3", "layout": "Et*15|t*15|t*15|t*16mL"},
    needs=("model",),
)  # fmt: skip
def _mtp(run: Run) -> str | None:
    stages = _stages(run)
    if stages is None:
        return None
    problems = layout_problems(stages, run.arch.num_layers, run.mtp, run.sizes.pp)
    old = core_of(run.written) == "0.15.0" and any("m" in stage for stage in stages) and "m" not in stages[-1]
    known = next((p for p in problems if "MTP" in p), None)
    return known or ("in core 0.15 the MTP layers must be in the last stage, beside L" if old else None)


@rule(
    "pp-dense-moe-imbalance", "warning", "an even split of uneven layers",
    why="Dense-first layers, MTP and the head do not weigh the same as MoE layers; the last stage gets logits and MTP on top.",
    fix="use a layout string that gives the last stage fewer decoder layers", where="silently",
    fields=f"{PP} pipeline_model_parallel_layout", source="megatron-core 0.19.2 transformer/transformer_block.py",
    fails={"model": "deepseek-v3", "num_layers": 60}, passes={"model": "deepseek-v3", "layout": "Et*15|t*15|t*15|t*16mL"},
)  # fmt: skip
def _imbalance(run: Run) -> str | None:
    uneven = _layout(run) is not None or _uneven(run) or _account(run)
    if run.sizes.pp == 1 or uneven or not run.arch.is_moe or run.arch.num_layers % run.sizes.pp:
        return None
    dense = sum(kind.ffn == "dense" for kind in run.arch.layer_kinds)
    if not dense and not run.mtp:
        return None
    return f"{dense} dense-first layers and {run.mtp} MTP depth(s) on an even split over PP={run.sizes.pp}"


@rule(
    "gbs-divisible", "error", "global batch is not a multiple of MBS*DP",
    why="The number of microbatches must be whole; DP excludes CP.", fix="use a multiple of micro_batch_size * DP",
    where="config", fields="global_batch_size micro_batch_size",
    source="megatron-core 0.19.2 num_microbatches_calculator.py", fails={"gbs": 63}, passes={}, needs=("num_gpus",),
)  # fmt: skip
def _gbs(run: Run) -> str | None:
    unit = run.micro_batch_size * max(run.sizes.dp, 1)
    if run.written.global_batch_size is None or not run.sizes.fits_attention or run.global_batch_size % unit == 0:
        return None
    return f"global_batch_size={run.global_batch_size} is not a multiple of MBS*DP = {run.micro_batch_size}*{run.sizes.dp} = {unit}"


@rule(
    "vpp-microbatch-group", "error", "fewer microbatches than the interleaved schedule needs",
    why="A group of microbatches (PP by default) must fit between PP and the microbatches of a step.",
    fix="raise global_batch_size to at least PP * MBS * DP, or lower PP or VPP", where="first forward",
    fields=f"global_batch_size {PP} {VPP} model.microbatch_group_size_per_vp_stage", source=SCHEDULE,
    fails={"vpp": 2, "gbs": 16}, passes={"vpp": 2}, needs=("num_gpus",),
)  # fmt: skip
def _group(run: Run) -> str | None:
    s, m = run.sizes, run.num_microbatches
    if s.vpp == 1 or not s.fits_attention:
        return None
    group = int(run.written.field("model.microbatch_group_size_per_vp_stage") or s.pp)
    if s.pp <= group <= max(m, 1):
        return None
    return f"PP={s.pp} <= group={group} <= microbatches={m} does not hold"


@rule(
    "vpp-microbatch-remainder", "error", "microbatches leave a remainder smaller than PP",
    why="The last group of the interleaved schedule must be empty or at least PP long.",
    fix="make the microbatches a multiple of the group, or the remainder at least PP", where="first forward",
    fields="global_batch_size model.microbatch_group_size_per_vp_stage", source=SCHEDULE,
    fails={"vpp": 2, "gbs": 72}, passes={"vpp": 2}, needs=("num_gpus",),
)  # fmt: skip
def _remainder(run: Run) -> str | None:
    s, m = run.sizes, run.num_microbatches
    if s.vpp == 1 or not s.fits_attention or m < s.pp:
        return None
    group = int(run.written.field("model.microbatch_group_size_per_vp_stage") or s.pp)
    left = m % group
    return f"{m} microbatches mod group {group} leave {left}, less than PP={s.pp}" if 0 < left < s.pp else None


@rule(
    "few-microbatches-bubble", "warning", "few microbatches for the pipeline depth",
    why="The bubble share is about (PP-1)/(M*VPP); long context leaves few microbatches.",
    fix="raise global_batch_size or VPP, or lower PP", where="silently", fields=f"global_batch_size {PP} {VPP}",
    source="megatron-core 0.19.2 pipeline_parallel/schedules.py", fails={"gbs": 32}, passes={"gbs": 512},
    needs=("num_gpus",),
)  # fmt: skip
def _bubble(run: Run) -> str | None:
    s, m = run.sizes, run.num_microbatches
    if s.pp == 1 or run.written.global_batch_size is None or m < 1:
        return None
    share = (s.pp - 1) / (m * s.vpp)
    return f"{m} microbatches on PP={s.pp} VPP={s.vpp}: bubble about {share:.0%} of the compute" if m * s.vpp < 4 * s.pp else None


@rule(
    "dsv3-layout-helper-coverage", "warning", "Bridge's layout helper does not know this PP and VPP",
    why="DeepSeek-V3 and Kimi-K2 recipes have a table of layouts; another pair is refused, or leaves the recipe's previous layout in place.",
    fix="give pipeline_model_parallel_layout", where="config", fields=f"{PP} {VPP} pipeline_model_parallel_layout",
    source="megatron-bridge 0.6.2 recipes/deepseek/h100/deepseek_v3.py and recipes/kimi/h100/kimi_k2.py", frontends=("bridge",),
    fails={"model": "deepseek-v3", "pp": 8, "vpp": 4, "num_gpus": 256, "ep": 32},
    passes={"model": "deepseek-v3", "pp": 8, "layout": "Et|(tt|)*30mL", "num_gpus": 256, "ep": 32},
)  # fmt: skip
def _helper(run: Run) -> str | None:
    known, pair = RECIPE_LAYOUTS.get(run.model_id), (run.sizes.pp, run.sizes.vpp)
    split = _layout(run) is not None or _uneven(run) or _account(run)
    if known is None or split or pair in known or run.sizes.pp == 1:
        return None
    return f"PP={pair[0]} VPP={pair[1]} is not in the helper's table {sorted(known)}"


@rule(
    "decreasing-gbs-flag", "info", "decrease_batch_size_if_needed rounds the batch down",
    why="The running global batch becomes a multiple of MBS*DP instead of failing.", fix="nothing, if intended",
    where="silently", fields="train.decrease_batch_size_if_needed",
    source="megatron-core 0.19.2 num_microbatches_calculator.py",
    fails={"megatron": {"train.decrease_batch_size_if_needed": True}}, passes={},
)  # fmt: skip
def _decrease(run: Run) -> str | None:
    on = run.written.megatron.get("train.decrease_batch_size_if_needed")
    return "the global batch may be rounded down silently" if on else None
