"""Communication overlap: expert all-to-all, weight-gradient delay, data parallel and tensor parallel."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.families.recompute import graphs
from moe_long_context.rules.rule import rule
from moe_long_context.rules.versions import core_of

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 8192, "ep": 8, "gbs": 512, "dispatcher": "alltoall"}
ON: dict[str, Any] = {**BASE, "overlap": {"ep_a2a": True}}
CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
COMM = "megatron-bridge 0.6.2 training/comm_overlap.py CommOverlapConfig.setup"
EP = "overlap.ep_a2a"


def _on(run: Run) -> bool:
    return bool(run.written.overlap.ep_a2a)


@rule(
    "ep-overlap-basics", "error", "EP overlap without its conditions", why="It needs EP > 1, a dispatcher that sends, and bf16 or fp16.",
    fix="use EP > 1 with alltoall or a flex backend", where="config", fields=f"{EP} expert_model_parallel_size dispatcher", source=CONFIG,
    fails={"base": ON, "ep": 1}, passes={"base": ON}, repair=lambda run: {"overlap": {"ep_a2a": False}},
)  # fmt: skip
def _basics(run: Run) -> str | None:
    if not _on(run):
        return None
    if run.sizes.ep == 1:
        return "overlap_moe_expert_parallel_comm with EP=1"
    return "overlap_moe_expert_parallel_comm with the allgather dispatcher" if run.dispatcher == "allgather" else None


@rule(
    "ep-overlap-vpp", "error", "EP overlap on a pipeline without VPP", why="The overlapped schedule is the interleaved one.",
    fix="set VPP of at least 2", where="config", fields=f"{EP} virtual_pipeline_model_parallel_size", source=CONFIG,
    fails={"base": ON, "pp": 4}, passes={"base": ON, "pp": 4, "vpp": 2},
)  # fmt: skip
def _vpp(run: Run) -> str | None:
    none = run.sizes.vpp == 1 and run.vpp_written is None
    return f"EP overlap with PP={run.sizes.pp} and no VPP" if _on(run) and run.sizes.pp > 1 and none else None


@rule(
    "ep-overlap-recompute-full", "error", "EP overlap with full recompute", why="The overlapped schedule runs layers in halves.",
    fix="use selective recompute without moe", where="config", fields=f"{EP} recompute.granularity", source=CONFIG,
    fails={"base": ON, "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}}, passes={"base": ON, "recompute": ["moe_act"]},
)  # fmt: skip
def _full(run: Run) -> str | None:
    c = run.written.recompute
    return "EP overlap with full recompute" if _on(run) and c and (c.granularity == "full" or c.method or c.num_layers) else None


@rule(
    "ep-overlap-recompute-moe", "error", "EP overlap with moe recompute", why="The recomputed part is the overlapped one.",
    fix="recompute moe_act, layernorm or mla_up_proj instead", where="config", fields=f"{EP} recompute.modules", source=CONFIG, since="0.17.0",
    fails={"base": ON, "recompute": ["moe"]}, passes={"base": ON, "recompute": ["moe_act"]},
    repair=lambda run: {"overlap": {"ep_a2a": False}},
)  # fmt: skip
def _moe(run: Run) -> str | None:
    c = run.written.recompute
    return "EP overlap with moe in recompute_modules" if _on(run) and c and "moe" in (c.modules or ()) else None


@rule(
    "ep-overlap-shared", "error", "EP overlap with shared-expert overlap", why="Both want the dispatch window.",
    fix="turn moe_shared_expert_overlap off", where="config", fields=f"{EP} overlap.shared_expert", source=CONFIG,
    fails={"base": ON, "overlap": {"ep_a2a": True, "shared_expert": True}}, passes={"base": ON}, repair=lambda run: {"overlap": {"shared_expert": False}},
)  # fmt: skip
def _shared(run: Run) -> str | None:
    return "EP overlap with moe_shared_expert_overlap" if _on(run) and run.written.overlap.shared_expert else None


@rule(
    "ep-overlap-mtp", "error", "EP overlap with several MTP depths", why="It handles none or one; 0.16 and 0.17 need PP > 1 with one.",
    fix="use mtp_num_layers 1", where="config", fields=f"{EP} mtp_num_layers", source=CONFIG,
    fails={"base": ON, "model": "deepseek-v3", "num_gpus": 256, "mtp_num_layers": 2}, passes={"base": ON},
)  # fmt: skip
def _mtp(run: Run) -> str | None:
    if not _on(run) or not run.mtp:
        return None
    if run.mtp > 1:
        return f"EP overlap with {run.mtp} MTP depths"
    middle = core_of(run.written) in ("0.16.1", "0.17.0")
    return "EP overlap with MTP needs PP > 1 in core 0.16 and 0.17" if middle and run.sizes.pp == 1 else None


@rule(
    "ep-overlap-graphs", "error", "EP overlap with moe or mlp captured", why="Captured modules cannot be split into halves.",
    fix="capture attn, moe_router and moe_preprocess", where="config", fields=f"{EP} cuda_graph.modules", source=CONFIG, since="0.16.1",
    fails={"base": ON, "moe": {"capacity_factor": 1.0, "pad_to_capacity": True}, "cuda_graph": {"impl": "transformer_engine", "modules": ["moe"]}},
    passes={"base": ON, "cuda_graph": {"impl": "transformer_engine", "modules": ["attn"]}},
)  # fmt: skip
def _graphs(run: Run) -> str | None:
    impl, hit = run.written.cuda_graph.impl, sorted(graphs(run) & {"moe", "mlp"})
    if not _on(run) or impl == "none":
        return None
    if impl == "transformer_engine":
        return f"EP overlap with {', '.join(hit)} captured" if hit else None
    return f"EP overlap with cuda_graph impl {impl} in core {core_of(run.written)}" if core_of(run.written) in ("0.16.1", "0.17.0") else None


@rule(
    "delay-wgrad", "error", "delayed weight gradients without EP overlap", why="The delay fills the overlapped window.",
    fix="turn on overlap.ep_a2a, or delay_wgrad off", where="config", fields="overlap.delay_wgrad overlap.ep_a2a", source=CONFIG,
    fails={"overlap": {"delay_wgrad": True}}, passes={"overlap": {"delay_wgrad": True, "ep_a2a": True}},
    repair=lambda run: {"overlap": {"delay_wgrad": False}},
)  # fmt: skip
def _delay(run: Run) -> str | None:
    return "delay_wgrad_compute without overlap_moe_expert_parallel_comm" if run.written.overlap.delay_wgrad and not _on(run) else None


@rule(
    "overlap-dispatch-bwd-wgrad", "error", "two ways of hiding the dispatch backward", why="They exclude each other.",
    fix="keep one of them", where="config", fields="model.overlap_dispatch_backward_with_experts_wgrad overlap.ep_a2a", source=CONFIG, since="0.18.0",
    fails={"base": ON, "megatron": {"model.overlap_dispatch_backward_with_experts_wgrad": True}}, passes={"base": ON},
)  # fmt: skip
def _dispatch(run: Run) -> str | None:
    other = run.written.megatron.get("model.overlap_dispatch_backward_with_experts_wgrad")
    return "overlap_dispatch_backward_with_experts_wgrad with EP overlap" if other and _on(run) else None


@rule(
    "ep-overlap-peak-memory", "warning", "EP overlap holds one more microbatch", why="The next forward runs beside the current backward.",
    fix="check the memory estimate with overlap on", where="silently", fields=EP, source="megatron-core 0.19.2 pipeline_parallel/combined_1f1b.py",
    since="0.16.1", fails={"base": ON}, passes={},
)  # fmt: skip
def _peak(run: Run) -> str | None:
    return "one more microbatch of activations is alive" if _on(run) else None


@rule(
    "ep-overlap-fsdp", "error", "EP overlap with Megatron-FSDP features it excludes", why="The two schedules collide.",
    fix="use VPP 1 and no double buffer with FSDP", where="model build", fields=f"{EP} fsdp.enabled",
    source="megatron-core 0.19.2 distributed/fsdp/mcore_fsdp_adapter.py", since="0.18.0",
    fails={"base": ON, "pp": 2, "vpp": 2, "fsdp": {"enabled": True}}, passes={"base": ON},
)  # fmt: skip
def _fsdp(run: Run) -> str | None:
    both = _on(run) and run.written.fsdp.enabled
    double = run.written.megatron.get("ddp.fsdp_double_buffer")
    layers = run.written.cuda_graph.impl in ("local", "transformer_engine")
    bad = both and (run.sizes.vpp > 1 or double or layers)
    return "EP overlap with Megatron-FSDP and VPP, double buffering or layer graphs" if bad else None


@rule(
    "comm-overlap-clobbers-model", "warning", "comm_overlap overwrites the model's own switches",
    why="Bridge copies comm_overlap onto model and ddp when it is set; a value set only on model is lost.",
    fix="set the switch on comm_overlap", where="silently", fields="comm_overlap model", source=COMM, frontends=("bridge",),
    fails={"megatron": {"comm_overlap.wgrad_deferral_limit": 22, "model.batch_p2p_comm": True}}, passes={},
)  # fmt: skip
def _clobber(run: Run) -> str | None:
    m = run.written.megatron
    set_on = any(path.startswith("comm_overlap.") for path in m)
    names = ("batch_p2p_comm", "overlap_dispatch_backward_with_experts_wgrad", "defer_embedding_wgrad_compute", "wgrad_deferral_limit")
    lost = [n for n in names if f"model.{n}" in m and f"comm_overlap.{n}" not in m]
    return f"model.{', model.'.join(lost)} may be overwritten by comm_overlap" if set_on and lost else None


@rule(
    "dp-one-overlap-disabled", "warning", "gradient and parameter overlap stay off at DP=1",
    why="Bridge ignores CP when it decides: DP=1 with CP=32 runs without overlap unless set by hand.",
    fix="set overlap.grad_reduce and overlap.param_gather", where="silently", fields="overlap.grad_reduce overlap.param_gather", source=COMM,
    frontends=("bridge",), fails={"cp": 32, "seq_length": 131072}, passes={"cp": 32, "seq_length": 131072, "overlap": {"grad_reduce": True, "param_gather": True}},
    repair=lambda run: {"overlap": {"grad_reduce": True, "param_gather": True}}, needs=("num_gpus",),
)  # fmt: skip
def _dp_one(run: Run) -> str | None:
    unset = run.written.overlap.grad_reduce is None or run.written.overlap.param_gather is None
    return f"DP=1 with CP={run.sizes.cp}: overlap stays off unless set" if run.sizes.dp == 1 and run.sizes.cp > 1 and unset else None


@rule(
    "tp-comm-overlap-sp", "warning", "tp_comm_overlap without TP and sequence parallelism", why="There is nothing to overlap.",
    fix="turn it off, or use TP > 1 with sequence_parallel", where="silently", fields="overlap.tp_comm sequence_parallel", source=COMM,
    fails={"overlap": {"tp_comm": True}}, passes={"tp": 2, "sp": True, "overlap": {"tp_comm": True}}, repair=lambda run: {"overlap": {"tp_comm": False}},
)  # fmt: skip
def _tp(run: Run) -> str | None:
    return "tp_comm_overlap without TP > 1 and sequence_parallel" if run.written.overlap.tp_comm and not run.sequence_parallel else None


@rule(
    "overlap-param-gather-needs-grad", "error", "parameter-gather overlap without gradient overlap", why="It rides on the same hooks.",
    fix="set overlap.grad_reduce", where="command line", fields="overlap.param_gather overlap.grad_reduce",
    source="megatron-core 0.19.2 megatron/training/arguments.py", frontends=("megatron_lm",),
    fails={"frontend": "megatron_lm", "overlap": {"param_gather": True}, "optimizer": {"distributed": True}},
    passes={"frontend": "megatron_lm", "overlap": {"param_gather": True, "grad_reduce": True}, "optimizer": {"distributed": True}},
    repair=lambda run: {"overlap": {"grad_reduce": True}},
)  # fmt: skip
def _gather(run: Run) -> str | None:
    o = run.written.overlap
    return "overlap_param_gather without overlap_grad_reduce" if o.param_gather and not o.grad_reduce else None


@rule(
    "ep-overlap-early-release", "error", "early release of attention memory without EP overlap", why="It frees between the overlapped halves.",
    fix="turn on overlap.ep_a2a, or the early release off", where="config", fields=f"model.ep_overlap_early_attn_memory_release {EP}", source=CONFIG,
    since="0.16.1", fails={"megatron": {"model.ep_overlap_early_attn_memory_release": True}},
    passes={"base": ON, "megatron": {"model.ep_overlap_early_attn_memory_release": True}},
    repair=lambda run: {"megatron": {"model.ep_overlap_early_attn_memory_release": False}},
)  # fmt: skip
def _early(run: Run) -> str | None:
    on = run.written.megatron.get("model.ep_overlap_early_attn_memory_release")
    return "ep_overlap_early_attn_memory_release without overlap_moe_expert_parallel_comm" if on and not _on(run) else None


PARALLEL = "megatron-core 0.19.2 model_parallel_config.py __post_init__"


@rule(
    "deferred-embedding-wgrad", "error", "deferred embedding gradients without their conditions",
    why="They need PP > 1, gradient accumulation fusion and a limit of at least 0.", fix="turn defer_embedding_wgrad_compute off",
    where="config", fields="model.defer_embedding_wgrad_compute model.wgrad_deferral_limit model.gradient_accumulation_fusion", source=PARALLEL,
    fails={"megatron": {"model.defer_embedding_wgrad_compute": True}},
    passes={"pp": 2, "megatron": {"model.defer_embedding_wgrad_compute": True, "model.gradient_accumulation_fusion": True}},
    repair=lambda run: {"megatron": {"model.defer_embedding_wgrad_compute": False}},
)  # fmt: skip
def _deferred(run: Run) -> str | None:
    m = run.written.megatron
    if not m.get("model.defer_embedding_wgrad_compute"):
        return None
    bad = [("PP = 1", run.sizes.pp == 1), ("no gradient_accumulation_fusion", not run.gradient_accumulation_fusion),
           ("a negative wgrad_deferral_limit", m.get("model.wgrad_deferral_limit", 0) < 0)]  # fmt: skip
    names = [name for name, hit in bad if hit]
    return f"defer_embedding_wgrad_compute with {', '.join(names)}" if names else None


@rule(
    "p2p-warmup-flush", "error", "overlapped warmup and flush without overlapped sends", why="It extends overlap_p2p_comm and excludes batch_p2p_comm.",
    fix="set overlap.p2p and batch_p2p_comm False, or turn the warmup flush off", where="config",
    fields="model.overlap_p2p_comm_warmup_flush overlap.p2p model.batch_p2p_comm", source=PARALLEL,
    fails={"pp": 2, "overlap": {"p2p": False}, "megatron": {"model.overlap_p2p_comm_warmup_flush": True}},
    passes={"pp": 2, "overlap": {"p2p": True}, "megatron": {"model.overlap_p2p_comm_warmup_flush": True, "model.batch_p2p_comm": False}},
    repair=lambda run: {"megatron": {"model.overlap_p2p_comm_warmup_flush": False}},
)  # fmt: skip
def _warmup(run: Run) -> str | None:
    m = run.written.megatron
    if not m.get("model.overlap_p2p_comm_warmup_flush") or run.written.overlap.p2p is None:
        return None
    bad = not run.written.overlap.p2p or m.get("model.batch_p2p_comm", True)
    return "overlap_p2p_comm_warmup_flush needs overlap_p2p_comm and no batch_p2p_comm" if bad else None


@rule(
    "ncclep-overlap-offload", "error", "EP overlap on ncclep with offload of expert_fc1",
    why="Offload saves an input that the overlapped schedule frees early.", fix="drop expert_fc1 from activation_offload, or use hybridep",
    where="config", fields=f"dispatcher {EP} activation_offload.modules", source=CONFIG, since="0.19.2",
    fails={"base": ON, "dispatcher": "ncclep", "activation_offload": {"modules": ["expert_fc1"]}, "env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
    passes={"base": ON, "dispatcher": "hybridep", "activation_offload": {"modules": ["expert_fc1"]}, "env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
)  # fmt: skip
def _nccl(run: Run) -> str | None:
    replaced = run.written.megatron.get("model.moe_enable_deepep")
    bad = _on(run) and run.dispatcher == "ncclep" and "expert_fc1" in run.offload_modules and not replaced
    return "EP overlap on ncclep with expert_fc1 offload" if bad else None
