"""CUDA graphs."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.families.moe import core_before
from moe_long_context.rules.families.recompute import graphed, graphs
from moe_long_context.rules.rule import rule
from moe_long_context.rules.versions import core_of

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 8192, "ep": 8, "gbs": 64, "dispatcher": "alltoall"}
GRAPH: dict[str, Any] = {
    **BASE, "cuda_graph": {"impl": "transformer_engine", "modules": ["attn", "moe_router", "moe_preprocess"]},
    "megatron": {"model.use_te_rng_tracker": True},
}  # fmt: skip
CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
BRIDGE = "megatron-bridge 0.6.2 training/config.py ConfigContainer.validate"
NAMES = ("attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")


def _te(run: Run) -> bool:
    return run.written.cuda_graph.impl == "transformer_engine"


def _with(**changes: Any) -> dict[str, Any]:
    return {"base": GRAPH, **changes}


def _modules(*names: str) -> dict[str, Any]:
    return {"cuda_graph": {"impl": "transformer_engine", "modules": list(names)}}


@rule(
    "cg-impl-values", "error", "cuda_graph_impl or module unknown to this core",
    why="0.14 has booleans only, 0.15 to 0.17 a scope, 0.18 the impl full_iteration and cuda_graph_modules.",
    fix="use the spelling of your core: `recipe` migrates it", where="config", fields="cuda_graph.impl cuda_graph.modules", source=CONFIG,
    fails={"cuda_graph": {"impl": "full_iteration"}, "versions": {"megatron_core": "0.17.0"}}, passes={"base": GRAPH},
)  # fmt: skip
def _values(run: Run) -> str | None:
    impl = run.written.cuda_graph.impl
    bad = sorted(graphs(run) - {*NAMES, "full_iteration"})
    if bad and not core_before(run, "0.16.1"):
        return f"unknown CUDA-graph module {', '.join(bad)}; known: {', '.join(NAMES)}"
    if impl == "full_iteration" and core_before(run, "0.18.0"):
        return f"cuda_graph_impl full_iteration is not in core {core_of(run.written)}"
    return f"core {core_of(run.written)} has no cuda_graph_impl" if impl != "none" and core_before(run, "0.15.0") else None


@rule(
    "cg-scope-rename", "warning", "cuda_graph_scope was renamed",
    why="From 0.18 the field is cuda_graph_modules; scope full_iteration became an impl.", fix="use cuda_graph_modules",
    where="config", fields="cuda_graph.modules", source=CONFIG, since="0.18.0",
    fails={"cuda_graph": {"impl": "local", "modules": ["full_iteration"]}}, passes={"base": GRAPH},
    repair=lambda run: {"cuda_graph": {"impl": "full_iteration", "modules": []}},
)  # fmt: skip
def _rename(run: Run) -> str | None:
    return "full_iteration is an impl, not a module, from 0.18" if "full_iteration" in graphs(run) else None


@rule(
    "cg-bridge-local", "error", "local graphs of modules in Bridge", why="Bridge refuses impl local for scoped training graphs.",
    fix="use impl transformer_engine", where="config", fields="cuda_graph.impl", source=BRIDGE, frontends=("bridge",),
    fails={"cuda_graph": {"impl": "local", "modules": ["attn"]}}, passes={"base": GRAPH}, silenced_by=("cg-scope-rename",),
    repair=lambda run: {"cuda_graph": {"impl": "transformer_engine"}},
)  # fmt: skip
def _local(run: Run) -> str | None:
    return "cuda_graph_impl local with modules" if run.written.cuda_graph.impl == "local" and graphs(run) else None


@rule(
    "cg-full-iteration-modules", "warning", "full-iteration graph with modules or NaN checks",
    why="The whole step is captured; host checks cannot run inside.",
    fix="empty cuda_graph.modules and set rerun_state_machine.check_for_nan_in_loss False", where="config",
    fields="cuda_graph.modules rerun_state_machine.check_for_nan_in_loss", source=f"{CONFIG}; {BRIDGE}", since="0.18.0",
    fails={"cuda_graph": {"impl": "full_iteration"}},
    passes={"cuda_graph": {"impl": "full_iteration"}, "megatron": {"rerun_state_machine.check_for_nan_in_loss": False, "model.use_te_rng_tracker": True}},
    repair=lambda run: {"cuda_graph": {"modules": []}, "megatron": {"rerun_state_machine.check_for_nan_in_loss": False}},
    escalates=lambda run: bool(graphs(run)) or bool(run.written.megatron.get("rerun_state_machine.check_for_nan_in_loss")),
    correction="a warning while the check is not written: the released recipes, and `recipe`, turn it off with the graph",
)  # fmt: skip
def _iteration(run: Run) -> str | None:
    if run.written.cuda_graph.impl != "full_iteration":
        return None
    if graphs(run):
        return f"full_iteration with modules {', '.join(sorted(graphs(run)))}"
    checked = run.written.megatron.get("rerun_state_machine.check_for_nan_in_loss", True)
    return "full_iteration with check_for_nan_in_loss on" if checked else None


@rule(
    "cg-te-rng", "error", "CUDA graphs without the TE RNG tracker", why="Captured random numbers need it.",
    fix="set use_te_rng_tracker", where="model build", fields="model.use_te_rng_tracker rng.te_rng_tracker",
    source="megatron-core 0.19.2 tensor_parallel/random.py; Bridge recipes set it",
    fails={**_modules("attn"), "megatron": {"model.use_te_rng_tracker": False}}, passes={"base": GRAPH},
    repair=lambda run: {"megatron": {"model.use_te_rng_tracker": True, "rng.te_rng_tracker": True}},
)  # fmt: skip
def _rng(run: Run) -> str | None:
    given = run.written.megatron.get("model.use_te_rng_tracker", run.written.megatron.get("rng.te_rng_tracker"))
    return "CUDA graphs with use_te_rng_tracker off" if graphed(run) and given is False else None


@rule(
    "cg-expandable-segments", "error", "TE graphs with expandable segments",
    why="Registered graph buffers cannot move. 0.14 and 0.15 forbid it outright, later NCCL_GRAPH_REGISTER=0 is needed.",
    fix="set env NCCL_GRAPH_REGISTER=0", where="config", fields="env cuda_graph.impl", source="megatron-core 0.19.2 transformer/cuda_graphs.py",
    fails=_with(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
    passes=_with(env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "NCCL_GRAPH_REGISTER": "0"}),
    repair=lambda run: {"env": {"NCCL_GRAPH_REGISTER": "0"}},
)  # fmt: skip
def _expandable(run: Run) -> str | None:
    env = run.written.env
    on = "expandable_segments:true" in env.get("PYTORCH_CUDA_ALLOC_CONF", env.get("PYTORCH_ALLOC_CONF", "")).lower()
    safe = env.get("NCCL_GRAPH_REGISTER") == "0" and not core_before(run, "0.16.1")
    return "expandable_segments:True with TE graphs" if _te(run) and on and not safe else None


@rule(
    "cg-moe-modules", "error", "MoE graph modules exclude each other",
    why="moe and moe_router overlap; moe_preprocess needs moe_router; moe needs drop-and-pad shapes; mlp needs dense layers.",
    fix="capture attn, moe_router and moe_preprocess for dropless MoE", where="config", fields="cuda_graph.modules", source=CONFIG,
    since="0.16.1", fails=_with(**_modules("moe")), passes={"base": GRAPH},
)  # fmt: skip
def _moe(run: Run) -> str | None:
    impl, m = run.written.cuda_graph.impl, set(graphs(run))
    if impl not in ("local", "transformer_engine"):
        return None
    if impl == "local" and m & {"moe_router", "moe_preprocess"}:
        m |= {"moe_router", "moe_preprocess"}
    if {"moe", "moe_router"} <= m:
        return "moe and moe_router are both captured"
    if "moe_preprocess" in m and "moe_router" not in m:
        return "moe_preprocess needs moe_router"
    return _experts_captured(run, m) if run.arch.is_moe else _moe_of_dense(m)


def _moe_of_dense(m: set[str]) -> str | None:
    return "MoE modules captured on a model without experts" if m & {"moe", "moe_router"} else None


def _experts_captured(run: Run, m: set[str]) -> str | None:
    moe = run.written.moe
    dense = any(kind.ffn == "dense" for kind in run.arch.layer_kinds)
    if "mlp" in m and not dense and "model" not in run.missing:
        return "mlp captured on a model without dense layers"
    if moe.capacity_factor is not None and moe.pad_to_capacity:
        return None
    if "moe" in m:
        return "moe can be captured only with capacity factor and padding"
    synchronizes = moe.capacity_factor is not None or run.written.megatron.get("model.moe_router_padding_for_fp8")
    bad = "moe_preprocess" in m and run.dispatcher == "alltoall" and synchronizes
    return "moe_preprocess cannot be captured: a capacity factor without padding copies counts to the host" if bad else None


@rule(
    "cg-dropless-whole-layer", "error", "whole-layer graphs of dropless MoE", why="Expert shapes depend on routing.",
    fix="name modules: attn, moe_router, moe_preprocess", where="first forward", fields="cuda_graph.modules", source=CONFIG, since="0.16.1",
    fails=_with(cuda_graph={"impl": "transformer_engine"}), passes={"base": GRAPH},
    repair=lambda run: {"cuda_graph": {"modules": ["attn", "moe_router", "moe_preprocess"]}},
)  # fmt: skip
def _dropless(run: Run) -> str | None:
    padded = run.written.moe.capacity_factor and run.written.moe.pad_to_capacity
    return "whole layers are captured but MoE is dropless" if _te(run) and not graphs(run) and run.arch.is_moe and not padded else None


@rule(
    "cg-static-shapes", "error", "CUDA graphs with changing shapes",
    why="Graphs replay fixed addresses and sizes: packed or variable batches break them, sometimes silently.",
    fix="pad to max length (and cu_seqlens when attn is captured), or run eager", where="config",
    fields="data.packed data.variable_length cuda_graph.impl", source=BRIDGE,
    fails=_with(data={"variable_length": True}), passes={"base": GRAPH},
)  # fmt: skip
def _static(run: Run) -> str | None:
    data, m = run.written.data, run.written.megatron
    if not graphed(run):
        return None
    if data.variable_length:
        return "variable lengths under CUDA graphs"
    kwargs = m.get("dataset.dataset_kwargs")
    padded = m.get("dataset.pad_to_max_length") or (isinstance(kwargs, dict) and kwargs.get("pad_to_max_length"))
    return "packed data under CUDA graphs without pad_to_max_length" if data.packed and not padded else None


@rule(
    "cg-cpu-offloading", "error", "CUDA graphs with layer offload", why="Copies to the host cannot be captured per layer.",
    fix="use impl full_iteration from 0.18, or turn cpu_offloading off", where="config", fields="model.cpu_offloading cuda_graph.impl", source=CONFIG,
    fails=_with(megatron={"model.use_te_rng_tracker": True, "model.cpu_offloading": True, "model.cpu_offloading_num_layers": 2}), passes={"base": GRAPH},
)  # fmt: skip
def _offload(run: Run) -> str | None:
    allowed = run.written.cuda_graph.impl == "full_iteration" and not core_before(run, "0.18.0")
    return "cpu_offloading with CUDA graphs" if graphed(run) and run.written.megatron.get("model.cpu_offloading") and not allowed else None


@rule(
    "cg-offload-compat", "error", "fine-grained offload of a captured module",
    why="A captured moe module cannot offload its insides.", fix="do not capture moe with activation offload", where="config",
    fields="activation_offload.modules cuda_graph.modules", source=CONFIG, since="0.18.0",
    fails=_with(cuda_graph={"impl": "transformer_engine", "modules": ["moe"]}, moe={"capacity_factor": 1.0, "pad_to_capacity": True}, activation_offload={"modules": ["moe_act"]}, env={"NVTE_CPU_OFFLOAD_V1": "1"}),
    passes=_with(activation_offload={"modules": ["moe_act"]}, env={"NVTE_CPU_OFFLOAD_V1": "1"}),
)  # fmt: skip
def _fine(run: Run) -> str | None:
    impl = run.written.cuda_graph.impl
    if not run.offload_modules or not graphed(run):
        return None
    if "moe" in graphs(run):
        return "activation offload with moe captured"
    outside = sorted(run.offload_modules - {"expert_fc1", "moe_act", "fused_group_mlp"})
    if impl == "local" and (outside or not graphs(run)):
        return f"impl local cannot offload {', '.join(outside) or 'under whole-layer capture'}"
    inflight = run.written.megatron.get("model.fine_grained_offloading_max_inflight_offloads")
    bad = impl == "full_iteration" and inflight is None
    return "full_iteration needs fine_grained_offloading_max_inflight_offloads" if bad else None


@rule(
    "cg-memory", "warning", "graphs hold static buffers", why="Each captured layer and microbatch in flight keeps input and output buffers.",
    fix="capture fewer modules at long sequence", where="first forward", fields="cuda_graph.modules seq_length",
    source="megatron-core 0.19.2 transformer/cuda_graphs.py", fails=_with(seq_length=65536, cp=2), passes={"base": GRAPH}, needs=("seq_length",),
)  # fmt: skip
def _memory(run: Run) -> str | None:
    return f"{run.tokens_per_cp_rank} tokens a rank in static graph buffers" if graphed(run) and run.tokens_per_cp_rank >= 16384 else None


@rule(
    "cg-low-value-long-seq", "info", "graphs bring little at long sequence", why="Launch overhead is small beside kernels of thousands of tokens.",
    fix="measure before keeping them", where="silently", fields="cuda_graph.impl seq_length", source="Megatron Bridge CUDA-graph skill @067f987",
    fails=_with(seq_length=65536, cp=2), passes={"base": GRAPH}, needs=("seq_length",),
)  # fmt: skip
def _low(run: Run) -> str | None:
    return f"{run.tokens_per_cp_rank} tokens a rank: launch overhead is small" if graphed(run) and run.tokens_per_cp_rank >= 16384 else None


@rule(
    "cg-recompute-old", "error", "CUDA graphs with recompute on core 0.15", why="Only selective recompute beside a TE graph of attention, and not of core_attn, is allowed there.",
    fix="capture attn alone with impl transformer_engine, or use core 0.16 or newer", where="config", fields="cuda_graph.impl recompute.granularity",
    source="megatron-core 0.15.0 transformer/transformer_config.py __post_init__", until="0.15.0",
    fails={"base": GRAPH, "recompute": ["moe_act"], "versions": {"megatron_core": "0.15.0"}},
    passes={"base": GRAPH, **_modules("attn"), "recompute": ["moe_act"], "versions": {"megatron_core": "0.15.0"}},
)  # fmt: skip
def _recompute_old(run: Run) -> str | None:
    alone = run.recompute_granularity == "selective" and _te(run) and graphs(run) == {"attn"}
    bad = graphed(run) and run.recompute_granularity and not (alone and "core_attn" not in run.recompute_modules)
    return f"{run.recompute_granularity} recompute with CUDA graphs in core {core_of(run.written)}" if bad else None
