"""Experts, router, tensor parallelism of heads, and hybrid attention variants."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.families.context_parallel import comms
from moe_long_context.rules.rule import rule
from moe_long_context.rules.versions import core_of

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 32768, "ep": 8, "gbs": 64}
NEXT: dict[str, Any] = {**BASE, "model": "qwen3-next-80b-a3b"}
CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
TP, EP = "tensor_model_parallel_size", "expert_model_parallel_size"
LONG = 16384
"""Tokens from which an original YaRN length equal to seq_length is taken for a mistake: models are pretrained below."""


def core_before(run: Run, release: str) -> bool:
    """Whether the run is meant for a core older than `release`."""
    from moe_long_context.rules.versions import CORE

    return CORE.index(core_of(run.written)) < CORE.index(release)


@rule(
    "heads-div-tp", "error", "attention heads do not divide over TP", why="Each TP rank holds whole heads.",
    fix="use a TP that divides num_attention_heads", where="config", fields=f"{TP} model.num_attention_heads", source=CONFIG,
    fails={"tp": 3, "num_gpus": 48, "sp": True}, passes={"tp": 4, "sp": True}, needs=("model",),
)  # fmt: skip
def _heads(run: Run) -> str | None:
    heads, tp = run.arch.num_attention_heads, run.sizes.tp
    return f"{heads} heads do not divide over TP={tp}" if heads % tp else None


@rule(
    "kv-groups-vs-tp", "error", "KV groups and TP do not divide each other",
    why="Until 0.15 groups must be a multiple of TP; from 0.16 a divisor is accepted too (KV heads are then repeated).",
    fix="use a TP that divides num_query_groups, or that it divides from core 0.16", where="config",
    fields=f"{TP} model.num_query_groups", source=CONFIG,
    fails={"tp": 8, "sp": True, "versions": {"megatron_core": "0.15.0"}}, passes={"tp": 8, "sp": True}, needs=("model",),
)  # fmt: skip
def _groups(run: Run) -> str | None:
    groups, tp = run.arch.num_query_groups, run.sizes.tp
    if groups % tp == 0:
        return None
    if not core_before(run, "0.16.1") and tp % groups == 0:
        return None
    return f"{groups} KV groups against TP={tp} in core {core_of(run.written)}"


@rule(
    "sp-requires-tp", "error", "sequence parallelism without TP",
    why="It splits the sequence over TP ranks. Bridge turns it off silently, Megatron-Core refuses.",
    fix="remove sequence_parallel, or use TP > 1", where="config", fields=f"sequence_parallel {TP}", source=CONFIG,
    frontends=("megatron_lm",), fails={"sp": True, "frontend": "megatron_lm"}, passes={"frontend": "megatron_lm"},
    repair=lambda run: {"sp": False},
    correction="an error only outside Bridge: Bridge 0.6.2 finalize() switches SP off at TP=1 (see sp-noop-tp1)",
)  # fmt: skip
def _sp(run: Run) -> str | None:
    return "sequence_parallel with TP=1" if run.written.sequence_parallel and run.sizes.tp == 1 else None


@rule(
    "sp-noop-tp1", "info", "sequence parallelism does nothing at TP=1", why="Bridge switches it off when TP is 1.",
    fix="remove it", where="silently", fields=f"sequence_parallel {TP}", frontends=("bridge",),
    source="megatron-bridge 0.6.2 models/transformer_config.py finalize", fails={"sp": True}, passes={},
)  # fmt: skip
def _sp_noop(run: Run) -> str | None:
    return "sequence_parallel is ignored at TP=1" if run.written.sequence_parallel and run.sizes.tp == 1 else None


@rule(
    "moe-tp-requires-sp", "error", "MoE with TP but without sequence parallelism",
    why="The MoE layer raises in training; its text only talks about performance.", fix="set sequence_parallel: true",
    where="first forward", fields=f"sequence_parallel {TP}", source="megatron-core 0.19.2 transformer/moe/moe_layer.py",
    fails={"tp": 2, "etp": 1, "sp": False}, passes={"tp": 2, "etp": 1, "sp": True}, repair=lambda run: {"sp": True},
)  # fmt: skip
def _moe_sp(run: Run) -> str | None:
    bad = run.arch.is_moe and run.sizes.tp > 1 and not run.sequence_parallel
    return f"a MoE model with TP={run.sizes.tp} needs sequence_parallel" if bad else None


@rule(
    "ep-tp-without-sp-old", "error", "EP with TP and no sequence parallelism on an old core",
    why="Core 0.14 refuses it; the warning that 0.15.0 wants to print instead ends in a NameError: warnings is not imported.",
    fix="set sequence_parallel: true", where="config", fields=f"sequence_parallel {TP} {EP}",
    source="megatron-core 0.14.0 and 0.15.0 model_parallel_config.py __post_init__", until="0.15.0", silenced_by=("moe-tp-requires-sp",),
    fails={"tp": 2, "sp": False, "versions": {"megatron_core": "0.15.0"}},
    passes={"tp": 2, "sp": True, "versions": {"megatron_core": "0.15.0"}}, repair=lambda run: {"sp": True},
)  # fmt: skip
def _ep_tp(run: Run) -> str | None:
    bad = run.sizes.ep > 1 and run.sizes.tp > 1 and not run.sequence_parallel
    return f"EP={run.sizes.ep} with TP={run.sizes.tp} and no sequence_parallel in core {core_of(run.written)}" if bad else None


@rule(
    "experts-div-ep", "error", "experts do not divide over EP", why="Each EP rank holds whole experts.",
    fix="use an EP that divides num_moe_experts", where="model build", fields=f"{EP} model.num_moe_experts",
    source="megatron-core 0.19.2 transformer/moe/moe_layer.py", fails={"ep": 12, "num_gpus": 48}, passes={}, needs=("model",),
)  # fmt: skip
def _experts(run: Run) -> str | None:
    experts, ep = run.arch.num_moe_experts, run.sizes.ep
    if not experts or experts % ep == 0:
        return None
    legal = [d for d in range(1, min(experts, 4 * ep) + 1) if experts % d == 0]
    return f"{experts} experts do not divide over EP={ep}; legal EP: {legal}"


@rule(
    "ep-needs-experts", "error", "EP on a model without experts", why="There is nothing to split.", fix="set EP to 1",
    where="config", fields=f"{EP} model.num_moe_experts", source=CONFIG, fails={"model": "llama3-70b"}, passes={},
    needs=("model",), repair=lambda run: {"ep": 1},
)  # fmt: skip
def _needs(run: Run) -> str | None:
    return f"EP={run.sizes.ep} on a model without experts" if run.sizes.ep > 1 and not run.arch.num_moe_experts else None


@rule(
    "moe-bias-etp1", "error", "biased experts with ETP",
    why="Linear bias in a MoE model needs ETP 1; core 0.14 has none.",
    fix="set expert_tensor_parallel_size to 1", where="config", fields="expert_tensor_parallel_size model.add_bias_linear",
    source=CONFIG,
    fails={"model": "gpt-oss-20b", "tp": 2, "sp": True, "etp": 2}, passes={"model": "gpt-oss-20b", "tp": 2, "sp": True, "etp": 1},
    repair=lambda run: {"etp": 1}, needs=("model",),
)  # fmt: skip
def _bias(run: Run) -> str | None:
    bad = run.arch.is_moe and run.arch.add_bias_linear and (run.sizes.etp > 1 or core_before(run, "0.15.0"))
    return f"add_bias_linear with ETP={run.sizes.etp} in core {core_of(run.written)}" if bad else None


@rule(
    "shared-experts-bias", "error", "shared experts with linear bias", why="The shared-expert layer asserts that there is none.",
    fix="set add_bias_linear False", where="model build", fields="model.add_bias_linear model.moe_shared_expert_intermediate_size",
    source="megatron-core 0.19.2 transformer/moe/shared_experts.py SharedExpertMLP",
    fails={"model": "deepseek-v2-lite", "add_bias_linear": True}, passes={"model": "deepseek-v2-lite"}, needs=("model",),
)  # fmt: skip
def _shared_bias(run: Run) -> str | None:
    a = run.arch
    bad = a.is_moe and a.add_bias_linear and a.moe_shared_expert_intermediate_size
    return "shared experts do not support add_bias_linear" if bad else None


@rule(
    "latent-moe-shared-overlap", "error", "latent MoE with shared-expert overlap",
    why="The overlap is not implemented for latent experts.", fix="turn moe_shared_expert_overlap off", where="first forward",
    fields="overlap.shared_expert model.moe_latent_size", source="megatron-core 0.19.2 transformer/moe/moe_layer.py MoELayer", since="0.19.2",
    fails={"model": "nemotron-3-super-120b-a12b", "overlap": {"shared_expert": True}}, passes={},
    repair=lambda run: {"overlap": {"shared_expert": False}},
)  # fmt: skip
def _latent(run: Run) -> str | None:
    both = run.arch.moe_latent_size and run.written.overlap.shared_expert
    return "moe_latent_size with moe_shared_expert_overlap" if both else None


@rule(
    "topk1-presoftmax", "error", "top-1 routing without pre-softmax",
    why="Softmax over one score is constant, so the router would get no gradient.", fix="set moe_router_pre_softmax",
    where="config", fields="model.moe_router_topk model.moe_router_pre_softmax", source=CONFIG,
    fails={"moe_router_topk": 1}, passes={"moe_router_topk": 1, "moe_router_pre_softmax": True}, needs=("model",),
)  # fmt: skip
def _top1(run: Run) -> str | None:
    a = run.arch
    sinkhorn = run.written.megatron.get("model.moe_router_load_balancing_type") == "sinkhorn"
    bad = a.moe_router_topk == 1 and a.moe_router_score_function == "softmax"
    return "moe_router_topk 1 with softmax scores needs moe_router_pre_softmax" if bad and not a.moe_router_pre_softmax and not sinkhorn else None


@rule(
    "group-routing", "error", "group-limited routing is inconsistent",
    why="Groups must divide the experts and hold at least group_topk of them.",
    fix="set moe_router_num_groups to a divisor of the experts, at least moe_router_group_topk", where="config",
    fields="model.moe_router_num_groups model.moe_router_group_topk", source=CONFIG,
    fails={"moe_router_group_topk": 4}, passes={"moe_router_group_topk": 4, "moe_router_num_groups": 8}, needs=("model",),
)  # fmt: skip
def _group_routing(run: Run) -> str | None:
    a, top = run.arch, run.arch.moe_router_group_topk
    if not top:
        return None
    groups = a.moe_router_num_groups
    if groups is None:
        return "moe_router_group_topk without moe_router_num_groups"
    if not a.num_moe_experts:
        return "group-limited routing on a model without experts"
    if a.num_moe_experts % groups:
        return f"{a.num_moe_experts} experts do not divide over {groups} groups"
    return f"moe_router_group_topk {top} above {groups} groups" if top > groups else None


@rule(
    "expert-bias-score-fn", "error", "expert bias with softmax scores",
    why="The bias is defined for sigmoid scores (sqrtsoftplus too from 0.18).", fix="set moe_router_score_function sigmoid",
    where="config", fields="model.moe_router_enable_expert_bias model.moe_router_score_function", source=CONFIG,
    fails={"moe_router_enable_expert_bias": True},
    passes={"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}, needs=("model",),
)  # fmt: skip
def _expert_bias(run: Run) -> str | None:
    a = run.arch
    legal = ("sigmoid",) if core_before(run, "0.18.0") else ("sigmoid", "sqrtsoftplus")
    bad = a.moe_router_enable_expert_bias and a.moe_router_score_function not in legal
    return f"moe_router_enable_expert_bias with {a.moe_router_score_function} scores" if bad else None


@rule(
    "aux-loss-list-lengths", "error", "load-balancing types and coefficients differ in number",
    why="They are read in pairs.", fix="give one coefficient for each type", where="config",
    fields="model.moe_router_load_balancing_type model.moe_aux_loss_coeff", source=CONFIG,
    fails={"megatron": {"model.moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "model.moe_aux_loss_coeff": 0.1}},
    passes={"megatron": {"model.moe_router_load_balancing_type": "aux_loss", "model.moe_aux_loss_coeff": 0.1}},
)  # fmt: skip
def _aux_lists(run: Run) -> str | None:
    kinds = run.written.megatron.get("model.moe_router_load_balancing_type")
    coefficients = run.written.megatron.get("model.moe_aux_loss_coeff")
    if not isinstance(kinds, list | tuple):
        return None
    count = len(coefficients) if isinstance(coefficients, list | tuple) else 0
    return f"{len(kinds)} load-balancing types and {count or 'no'} listed coefficient(s)" if count != len(kinds) else None


@rule(
    "aux-loss-cp-scope", "info", "where auxiliary-loss token counts are reduced",
    why="aux_loss and seq_aux_loss over TP*CP, global_aux_loss over TP*DP*CP.", fix="nothing, if intended",
    where="silently", fields="model.moe_router_load_balancing_type context_parallel_size",
    source="megatron-core 0.19.2 transformer/moe/router.py",
    fails={"cp": 2, "megatron": {"model.moe_router_load_balancing_type": "aux_loss", "model.moe_aux_loss_coeff": 0.001}},
    passes={"cp": 2},
)  # fmt: skip
def _aux_scope(run: Run) -> str | None:
    kind = run.written.megatron.get("model.moe_router_load_balancing_type")
    return f"{kind} is reduced over TP*CP ranks" if run.sizes.cp > 1 and kind in ("aux_loss", "seq_aux_loss") else None


@rule(
    "seq-aux-loss-packing", "warning", "seq_aux_loss sees a pack as one sequence",
    why="All documents of a pack share one balance term.", fix="use aux_loss or global_aux_loss for packed data",
    where="silently", fields="model.moe_router_load_balancing_type data.packed",
    source="megatron-core 0.19.2 transformer/moe/router.py",
    fails={"data": {"packed": True}, "megatron": {"model.moe_router_load_balancing_type": "seq_aux_loss"}},
    passes={"data": {"packed": True}, "megatron": {"model.moe_router_load_balancing_type": "global_aux_loss"}},
)  # fmt: skip
def _seq_aux(run: Run) -> str | None:
    kind = run.written.megatron.get("model.moe_router_load_balancing_type")
    return "seq_aux_loss with packed sequences" if kind == "seq_aux_loss" and run.written.data.packed else None


@rule(
    "router-dtype-fp32", "warning", "router not in fp32 with many experts",
    why="Scores of 32 and more experts lose order in bf16; Bridge recipes set fp32, the command line does not.",
    fix="set moe_router_dtype: fp32", where="silently", fields="model.moe_router_dtype", source=CONFIG,
    fails={"frontend": "megatron_lm"}, passes={"frontend": "megatron_lm", "megatron": {"model.moe_router_dtype": "fp32"}},
    repair=lambda run: {"megatron": {"model.moe_router_dtype": "fp32"}}, effect="convergence-changing", needs=("model",),
)  # fmt: skip
def _router_dtype(run: Run) -> str | None:
    given = run.written.megatron.get("model.moe_router_dtype", "fp32" if run.bridge else None)
    many = (run.arch.num_moe_experts or 0) >= 32
    return f"moe_router_dtype is not set with {run.arch.num_moe_experts} experts" if many and given is None else None


@rule(
    "force-load-balancing", "warning", "forced load balancing trains nothing useful",
    why="Router logits are replaced by random ones: a benchmark switch.", fix="remove it for real training",
    correction="a warning: every released performance recipe sets it on purpose",
    where="silently", fields="model.moe_router_force_load_balancing", source="megatron-core 0.19.2 transformer/moe/router.py",
    fails={"megatron": {"model.moe_router_force_load_balancing": True}}, passes={},
    repair=lambda run: {"megatron": {"model.moe_router_force_load_balancing": False}}, effect="convergence-changing",
)  # fmt: skip
def _forced(run: Run) -> str | None:
    on = run.written.megatron.get("model.moe_router_force_load_balancing")
    return "moe_router_force_load_balancing replaces the router by random routing" if on else None


@rule(
    "gdn-heads-tp-cp", "error", "gated-delta-net heads do not divide over TP*CP",
    why="Key and value heads are scattered over both.", fix="use a TP*CP that divides linear_num_key_heads",
    where="config", fields=f"{TP} context_parallel_size model.linear_num_key_heads", source=CONFIG, since="0.18.0",
    fails={"base": NEXT, "cp": 32}, passes={"base": NEXT, "cp": 4}, needs=("model",),
)  # fmt: skip
def _gdn(run: Run) -> str | None:
    a, size = run.arch, run.sizes.tp * run.sizes.cp
    if a.experimental_attention_variant != "gated_delta_net":
        return None
    bad = a.linear_num_key_heads % size or a.linear_num_value_heads % size
    return f"{a.linear_num_key_heads} key and {a.linear_num_value_heads} value heads do not divide over TP*CP = {size}" if bad else None


@rule(
    "gdn-cp-unsupported-old", "error", "gated delta net with CP or packing on an old core",
    why="Core before 0.18 has neither.", fix="use megatron-core 0.18 or newer", where="config",
    fields="versions.megatron_core context_parallel_size data.packed", source="megatron-core 0.16.1 transformer/transformer_config.py __post_init__",
    until="0.17.0", fails={"base": NEXT, "cp": 4, "versions": {"megatron_core": "0.17.0"}},
    passes={"base": NEXT, "versions": {"megatron_core": "0.17.0"}}, needs=("model",),
)  # fmt: skip
def _gdn_old(run: Run) -> str | None:
    gdn = run.arch.experimental_attention_variant == "gated_delta_net"
    used = run.sizes.cp > 1 or run.written.data.packed
    return f"gated_delta_net with CP={run.sizes.cp} or packing in core {core_of(run.written)}" if gdn and used else None


@rule(
    "attention-variant-absent", "error", "linear or sparse attention on a core that has none",
    why="experimental_attention_variant came with 0.16.", fix="use megatron-core 0.18 or newer", where="config",
    fields="versions.megatron_core model.experimental_attention_variant", until="0.15.0",
    source="megatron-core 0.15.0 transformer/transformer_config.py __post_init__ (no such field)", needs=("model",),
    fails={"base": NEXT, "versions": {"megatron_core": "0.15.0"}}, passes={"versions": {"megatron_core": "0.15.0"}},
)  # fmt: skip
def _no_variant(run: Run) -> str | None:
    variant = run.arch.experimental_attention_variant
    return f"core {core_of(run.written)} has no {variant}" if variant else None


@rule(
    "gdn-packing", "error", "gated delta net with packing in deterministic mode",
    why="The packed kernel has no deterministic form, and each packed length must divide by CP.",
    fix="turn deterministic_mode off", where="first forward", fields="data.packed model.deterministic_mode",
    source="megatron-core 0.19.2 ssm/gated_delta_net", since="0.18.0",
    fails={"base": NEXT, "data": {"packed": True}, "megatron": {"model.deterministic_mode": True}},
    passes={"base": NEXT, "data": {"packed": True}},
)  # fmt: skip
def _gdn_packing(run: Run) -> str | None:
    gdn = run.arch.experimental_attention_variant == "gated_delta_net" and run.written.data.packed
    if not gdn:
        return None
    return "packed gated_delta_net with deterministic_mode" if run.written.megatron.get("model.deterministic_mode") else None


@rule(
    "gdn-variant-rename", "info", "gated_delta_net is called gdn on main",
    why="The old name is accepted with a warning.", fix="write gdn when you move to main", where="config",
    fields="model.experimental_attention_variant", source="Megatron-LM main d98e8a6", since="main",
    fails={"base": NEXT, "versions": {"megatron_core": "main"}}, passes={"versions": {"megatron_core": "main"}}, needs=("model",),
)  # fmt: skip
def _gdn_name(run: Run) -> str | None:
    return "main renames gated_delta_net to gdn" if run.arch.experimental_attention_variant == "gated_delta_net" else None


@rule(
    "gdn-full-attn-layers-cp", "warning", "the softmax layers of a hybrid model limit a2a",
    why="They have few KV heads, so a2a is bounded by KV groups / TP although the linear layers could go further.",
    fix="use p2p, or CP up to KV groups / TP", where="first forward", fields="cp_comm_type context_parallel_size",
    source="TransformerEngine context_parallel.py", since="0.18.0", silenced_by=("a2a-head-divisibility",),
    fails={"base": NEXT, "cp": 4, "cp_comm_type": "a2a"}, passes={"base": NEXT, "cp": 4}, needs=("model",),
)  # fmt: skip
def _gdn_a2a(run: Run) -> str | None:
    gdn = run.arch.experimental_attention_variant == "gated_delta_net"
    kv = max(run.arch.num_query_groups / run.sizes.tp, 1)
    over = "a2a" in comms(run) and run.sizes.cp > kv
    return f"CP={run.sizes.cp} above the {kv:g} KV groups of the softmax layers" if gdn and over else None


@rule(
    "dsa-cp-allgather", "error", "sparse attention under CP needs all_gather",
    why="DSA selects keys over the whole sequence. Before 0.19 it refuses CP outright. Bridge's GLM-5 provider sets all_gather itself.",
    fix="set cp_comm_type all_gather", where="first forward", fields="cp_comm_type context_parallel_size",
    source="megatron-core 0.19.2 transformer/experimental_attention_variant/dsa.py",
    fails={"model": "glm-5.2", "cp": 4, "cp_comm_type": "p2p"}, passes={"model": "glm-5.2", "cp": 4},
    repair=lambda run: {"cp_comm_type": "all_gather"}, needs=("model",),
)  # fmt: skip
def _dsa(run: Run) -> str | None:
    if run.arch.experimental_attention_variant != "dsa" or run.sizes.cp == 1:
        return None
    if core_before(run, "0.19.2"):
        return f"DSA with CP={run.sizes.cp} in core {core_of(run.written)}"
    given = run.written.cp_comm_type
    wrong = not run.bridge if given is None else any(c != "all_gather" for c in comms(run))
    return f"DSA with CP={run.sizes.cp} and cp_comm_type {run.written.cp_comm_type or 'unset'}" if wrong else None


@rule(
    "mla-no-gqa", "error", "MLA with group query attention", why="They exclude each other on the command line.",
    fix="remove --group-query-attention", where="command line", fields="model.multi_latent_attention model.num_query_groups",
    source="megatron-core 0.19.2 megatron/training/arguments.py", frontends=("megatron_lm",),
    fails={"model": "deepseek-v3", "frontend": "megatron_lm", "num_query_groups": 8}, passes={"model": "deepseek-v3"},
)  # fmt: skip
def _mla_gqa(run: Run) -> str | None:
    given = run.written.megatron.get("model.num_query_groups")
    bad = run.arch.multi_latent_attention and given not in (None, run.arch.num_attention_heads)
    return f"MLA with num_query_groups={given}" if bad else None


@rule(
    "mla-cli-defaults-differ", "warning", "MLA flags left out on the command line take other defaults",
    why="kv-lora-rank 32 against 512, rotary-scaling-factor 1 against 40, q-lora-rank none against 512.",
    fix="pass every MLA flag", where="silently", fields="model.kv_lora_rank model.q_lora_rank",
    source="megatron-core 0.19.2 megatron/training/arguments.py", frontends=("megatron_lm",),
    fails={"model": "deepseek-v3", "frontend": "megatron_lm"}, passes={"frontend": "megatron_lm"}, needs=("model",),
)  # fmt: skip
def _mla_cli(run: Run) -> str | None:
    return "write every MLA flag: the command line's defaults are not the config class's" if run.arch.multi_latent_attention else None


@rule(
    "mla-rope-fusion-yarn-only", "error", "fused rope with MLA and plain rope",
    why="The fused MLA rope kernel is written for YaRN; sparse attention has none.",
    fix="set rope_type yarn, or turn apply_rope_fusion off", where="config", fields="model.apply_rope_fusion model.rope_type",
    source=CONFIG,
    fails={"model": "moonlight-16b-a3b", "rope_type": "rope", "megatron": {"model.apply_rope_fusion": True}},
    passes={"model": "deepseek-v3", "megatron": {"model.apply_rope_fusion": True}},
    repair=lambda run: {"megatron": {"model.apply_rope_fusion": False}}, needs=("model",),
)  # fmt: skip
def _rope_fusion(run: Run) -> str | None:
    fused = run.written.megatron.get("model.apply_rope_fusion")
    if fused and run.arch.experimental_attention_variant == "dsa":
        return "apply_rope_fusion with sparse attention"
    bad = run.arch.multi_latent_attention and run.arch.rope_type != "yarn"
    return "apply_rope_fusion with MLA needs rope_type yarn" if fused and bad else None


@rule(
    "rope-beyond-trained-context", "warning", "longer than the trained context without rope scaling",
    why="Bridge takes the trained length over and never compares: quality falls without an error.",
    fix="use YaRN with original_max_position_embeddings, or a larger rotary_base, and train through the extension",
    where="silently", fields="seq_length model.rotary_base model.rope_type", source="megatron-bridge 0.6.2 model conversion",
    fails={"seq_length": 262144, "cp": 8}, passes={}, needs=("model", "seq_length"),
)  # fmt: skip
def _beyond(run: Run) -> str | None:
    trained = run.arch.max_position_embeddings
    changed = any(f"model.{n}" in run.written.megatron for n in ("rotary_base", "rope_type", "rotary_scaling_factor", "yarn_rotary_scaling_factor", "rope_scaling", "position_embedding_type"))
    if not trained or run.seq_length <= trained or changed:
        return None
    return f"seq_length={run.seq_length} beyond the trained {trained} with no rope setting changed"


@rule(
    "yarn-original-is-training-length", "error", "YaRN's original length is set to the training length",
    why="Frequencies are then interpolated from a length that the model was never trained at: loss is wrong without an error.",
    fix="set original_max_position_embeddings to the length before the extension (4096 for DeepSeek-V3)", where="silently",
    fields="model.original_max_position_embeddings seq_length model.rotary_scaling_factor",
    source="megatron-core 0.19.2 models/common/embeddings/yarn_rotary_pos_embedding.py", needs=("model", "seq_length"),
    fails={"model": "deepseek-v3", "original_max_position_embeddings": 32768}, passes={"model": "deepseek-v3"},
    repair=lambda run: {"original_max_position_embeddings": None}, effect="convergence-changing",
)  # fmt: skip
def _yarn_base(run: Run) -> str | None:
    given = run.written.megatron.get("model.original_max_position_embeddings")
    scaled = run.arch.rope_type == "yarn" and run.arch.rotary_scaling_factor > 1
    bad = scaled and given == run.seq_length and run.seq_length >= LONG
    return f"original_max_position_embeddings={given} is the training length, with factor {run.arch.rotary_scaling_factor:g}" if bad else None


@rule(
    "max-position-embeddings-cli", "error", "max_position_embeddings below the sequence",
    why="The command line compares them.", fix="set max_position_embeddings to at least seq_length", where="command line",
    fields="model.max_position_embeddings seq_length", source="megatron-core 0.19.2 megatron/training/arguments.py",
    frontends=("megatron_lm",), fails={"frontend": "megatron_lm", "megatron": {"model.max_position_embeddings": 4096}},
    passes={"frontend": "megatron_lm"}, needs=("seq_length",),
)  # fmt: skip
def _positions(run: Run) -> str | None:
    given = run.written.megatron.get("model.max_position_embeddings")
    return f"max_position_embeddings={given} below seq_length={run.seq_length}" if isinstance(given, int) and given < run.seq_length else None


@rule(
    "mla-rotary-interleaved", "error", "interleaved rotary with MLA", why="MLA has its own rotary layout.",
    fix="set rotary_interleaved False", where="config", fields="model.rotary_interleaved model.multi_latent_attention", source=CONFIG,
    fails={"model": "deepseek-v3", "megatron": {"model.rotary_interleaved": True}}, passes={"model": "deepseek-v3"},
    repair=lambda run: {"megatron": {"model.rotary_interleaved": False}}, effect="convergence-changing", needs=("model",),
)  # fmt: skip
def _interleaved(run: Run) -> str | None:
    bad = run.written.megatron.get("model.rotary_interleaved") and run.arch.multi_latent_attention
    return "rotary_interleaved with multi_latent_attention" if bad else None


@rule(
    "fused-qkv-rope-gated-attention", "error", "fused QKV rope with gated attention", why="The fused split knows no gate.",
    fix="set fused_single_qkv_rope False", where="config", fields="model.fused_single_qkv_rope model.attention_output_gate", source=CONFIG,
    since="0.16.1", fails={"base": NEXT, "megatron": {"model.fused_single_qkv_rope": True}}, passes={"base": NEXT},
    repair=lambda run: {"megatron": {"model.fused_single_qkv_rope": False}}, needs=("model",),
)  # fmt: skip
def _fused_qkv(run: Run) -> str | None:
    bad = run.written.megatron.get("model.fused_single_qkv_rope") and run.arch.attention_output_gate
    return "fused_single_qkv_rope with attention_output_gate" if bad else None


@rule(
    "bias-activation-fusion-unsupported", "error", "fused bias and activation for another activation function",
    why="The fused kernels know gelu, swiglu and quick_geglu; gelu without a gate also needs the bias.",
    fix="set bias_activation_fusion False", where="config", fields="model.bias_activation_fusion model.activation_func", source=CONFIG,
    fails={"model": "nemotron-3-nano-30b-a3b", "megatron": {"model.bias_activation_fusion": True}}, passes={"megatron": {"model.bias_activation_fusion": True}},
    repair=lambda run: {"megatron": {"model.bias_activation_fusion": False}}, needs=("model",),
)  # fmt: skip
def _bias_fusion(run: Run) -> str | None:
    a = run.arch
    if not run.written.megatron.get("model.bias_activation_fusion"):
        return None
    plain = a.activation_func == "gelu" and not a.gated_linear_unit and not a.add_bias_linear
    ungated = a.activation_func == "quick_gelu" and not a.gated_linear_unit
    bad = a.activation_func not in ("gelu", "silu", "quick_gelu") or plain or ungated
    return f"bias_activation_fusion with {a.activation_func}{'' if a.gated_linear_unit else ' without a gate'}" if bad else None
