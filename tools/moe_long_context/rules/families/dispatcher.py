"""Token dispatchers."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import FLEX, Run
from moe_long_context.rules.families.moe import core_before
from moe_long_context.rules.rule import rule
from moe_long_context.rules.versions import core_of

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 32768, "ep": 8, "gbs": 64, "dispatcher": "alltoall"}
CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
DISPATCH = "megatron-core 0.19.2 transformer/moe/token_dispatcher.py"
BRIDGE_FLEX = "megatron-bridge 0.6.2 training/flex_dispatcher_backend.py"
DEEPEP_RANKS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)


def _span(run: Run) -> int:
    return run.sizes.etp * run.sizes.ep


@rule(
    "dispatcher-default-allgather", "warning", "allgather dispatcher with EP",
    why="Every token of the EP group is gathered to every rank.", fix="set dispatcher alltoall, deepep or hybridep",
    where="silently", fields="dispatcher", source=CONFIG, fails={"dispatcher": "allgather"}, passes={},
    repair=lambda run: {"dispatcher": "alltoall"},
)  # fmt: skip
def _allgather(run: Run) -> str | None:
    bad = run.arch.is_moe and run.sizes.ep > 1 and run.dispatcher == "allgather"
    return f"allgather over EP={run.sizes.ep} gathers every token on every rank" if bad else None


@rule(
    "allgather-variable-seq", "error", "allgather with variable sequence lengths",
    why="It needs equal shapes on every rank.", fix="use alltoall or a flex backend", where="config",
    fields="dispatcher data.variable_length", source=CONFIG,
    fails={"dispatcher": "allgather", "megatron": {"model.variable_seq_lengths": True}}, passes={},
    repair=lambda run: {"dispatcher": "alltoall"},
)  # fmt: skip
def _variable(run: Run) -> str | None:
    on = run.written.megatron.get("model.variable_seq_lengths")
    return "variable_seq_lengths with the allgather dispatcher" if on and run.dispatcher == "allgather" else None


@rule(
    "flex-backend-names", "error", "flex backend unknown to this core, or set without the flex dispatcher",
    why="deepep from 0.14, hybridep from 0.16, ncclep from 0.19; without dispatcher type flex the backend does nothing.",
    fix="set dispatcher to deepep, hybridep or ncclep as the core has it", where="model build",
    fields="dispatcher model.moe_flex_dispatcher_backend model.moe_token_dispatcher_type", source=DISPATCH,
    fails={"dispatcher": "hybridep", "versions": {"megatron_core": "0.15.0"}}, passes={"dispatcher": "deepep"},
)  # fmt: skip
def _backend(run: Run) -> str | None:
    backend = run.written.megatron.get("model.moe_flex_dispatcher_backend")
    kind = run.written.megatron.get("model.moe_token_dispatcher_type")
    if backend and run.dispatcher not in FLEX and kind != "flex":
        return f"moe_flex_dispatcher_backend={backend} without moe_token_dispatcher_type flex does nothing"
    since = {"hybridep": "0.16.1", "ncclep": "0.19.2"}.get(run.dispatcher)
    return f"{run.dispatcher} is not in core {core_of(run.written)}" if since and core_before(run, since) else None


@rule(
    "enable-deepep-legacy", "error", "moe_enable_deepep with another dispatcher",
    why="The old switch needs the flex dispatcher and cannot meet hybridep.", fix="set dispatcher: deepep instead",
    where="config", fields="model.moe_enable_deepep dispatcher", source=CONFIG,
    fails={"megatron": {"model.moe_enable_deepep": True}}, passes={"dispatcher": "deepep", "megatron": {"model.moe_enable_deepep": True}},
)  # fmt: skip
def _legacy(run: Run) -> str | None:
    on = run.written.megatron.get("model.moe_enable_deepep")
    flex = run.dispatcher in (FLEX if core_before(run, "0.16.1") else ("deepep", "ncclep")) or run.written.megatron.get("model.moe_token_dispatcher_type") == "flex"
    return f"moe_enable_deepep with dispatcher {run.dispatcher}" if on and not flex else None


@rule(
    "flex-gpu-arch", "error", "the dispatcher backend does not know this GPU",
    why="Bridge checks the local device: deepep on Ampere, Hopper, B200 and B300 but not Grace-Blackwell; hybridep from Ampere.",
    fix="use hybridep on GB200/GB300, deepep on H100", where="config", fields="dispatcher gpu", source=BRIDGE_FLEX,
    frontends=("bridge",), fails={"gpu": "GB200", "dispatcher": "deepep"}, passes={"gpu": "GB200", "dispatcher": "hybridep"},
    needs=("gpu",), repair=lambda run: {"dispatcher": "hybridep"},
)  # fmt: skip
def _arch(run: Run) -> str | None:
    gpu = run.gpu
    if run.dispatcher == "deepep" and gpu.id.upper().startswith("GB"):
        return f"deepep is refused on {gpu.id}"
    old = run.dispatcher in FLEX and 0 < gpu.compute_capability < 8
    return f"{run.dispatcher} needs compute capability 8 or newer" if old else None


@rule(
    "flex-tp-ep-gt1", "error", "flex dispatcher on one expert rank", why="deepep and ncclep need ETP*EP > 1.",
    fix="use alltoall, or EP > 1", where="model build", fields="dispatcher expert_model_parallel_size", source=DISPATCH,
    fails={"ep": 1, "dispatcher": "deepep"}, passes={"dispatcher": "deepep"}, repair=lambda run: {"dispatcher": "alltoall"},
)  # fmt: skip
def _one(run: Run) -> str | None:
    bad = run.dispatcher in ("deepep", "ncclep") and run.arch.is_moe and _span(run) == 1
    return f"{run.dispatcher} with ETP*EP = 1" if bad else None


@rule(
    "flex-etp-inflates-topk", "warning", "flex dispatcher with ETP sends every token ETP times",
    why="The router map is repeated over ETP.", fix="set expert_tensor_parallel_size to 1", where="silently",
    fields="dispatcher expert_tensor_parallel_size", source=DISPATCH,
    fails={"tp": 2, "sp": True, "etp": 2, "dispatcher": "deepep"}, passes={"tp": 2, "sp": True, "etp": 1, "dispatcher": "deepep"},
)  # fmt: skip
def _inflate(run: Run) -> str | None:
    return f"{run.dispatcher} with ETP={run.sizes.etp} multiplies the routed copies" if run.dispatcher in FLEX and run.sizes.etp > 1 else None


@rule(
    "deepep-ep-sizes", "error", "DeepEP has no configuration for this group size",
    why="Its tables hold 2 to 8 ranks on one node and 8 per node beyond.",
    fix=f"use ETP*EP from {DEEPEP_RANKS[1:]}", where="first forward", fields="dispatcher expert_model_parallel_size",
    source="deepseek-ai/DeepEP deep_ep/buffer.py get_dispatch_config",
    fails={"model": "deepseek-v3", "num_gpus": 256, "ep": 256, "dispatcher": "deepep"}, passes={"dispatcher": "deepep"},
)  # fmt: skip
def _sizes(run: Run) -> str | None:
    bad = run.dispatcher == "deepep" and _span(run) not in DEEPEP_RANKS and _span(run) > 1
    return f"DeepEP has no configuration for ETP*EP = {_span(run)}" if bad else None


@rule(
    "deepep-internode", "warning", "DeepEP across nodes depends on the fabric",
    why="It needs NVSHMEM and IBGDA; timeouts in dispatch are the commonest report.",
    fix="keep EP inside the node, or test EP across two nodes first; fall back to alltoall", where="first forward",
    fields="dispatcher expert_model_parallel_size", source="deepseek-ai/DeepEP README; public reports of dispatch timeouts",
    fails={"ep": 16, "dispatcher": "deepep"}, passes={"dispatcher": "deepep"}, needs=("gpu",),
)  # fmt: skip
def _internode(run: Run) -> str | None:
    bad = run.dispatcher == "deepep" and _span(run) > run.gpus_per_node
    return f"ETP*EP = {_span(run)} leaves the node of {run.gpus_per_node} GPUs" if bad else None


@rule(
    "ep-cross-domain", "warning", "EP leaves the NVLink domain",
    why="Dispatch and combine run over the network in every MoE layer.", fix="keep ETP*EP within the NVLink domain where memory allows",
    where="silently", fields="expert_model_parallel_size", source="megatron-core 0.19.2 parallel_state.py rank order",
    fails={"ep": 16}, passes={}, needs=("gpu",), silenced_by=("deepep-internode", "hybridep-nvl8-ep-gt8"),
)  # fmt: skip
def _cross(run: Run) -> str | None:
    bad = run.arch.is_moe and _span(run) > run.gpu.nvlink_domain
    return f"ETP*EP = {_span(run)} spans more than the NVLink domain of {run.gpu.nvlink_domain}" if bad else None


@rule(
    "deepep-pad-capacity", "error", "DeepEP with padding to capacity", why="It has no drop-and-pad path.",
    fix="use alltoall for drop-and-pad", where="config", fields="dispatcher moe.pad_to_capacity", source=CONFIG,
    fails={"dispatcher": "deepep", "moe": {"capacity_factor": 1.0, "pad_to_capacity": True}},
    passes={"moe": {"capacity_factor": 1.0, "pad_to_capacity": True}},
)  # fmt: skip
def _pad(run: Run) -> str | None:
    lacking = FLEX if core_before(run, "0.16.1") else ("deepep",)
    replaced = run.dispatcher in FLEX and run.written.megatron.get("model.moe_enable_deepep")
    bad = (run.dispatcher in lacking or replaced) and run.written.moe.pad_to_capacity
    return f"moe_pad_expert_input_to_capacity with {run.dispatcher}" if bad else None


@rule(
    "hybridep-domain-divides", "error", "expert ranks are not a multiple of the HybridEP domain",
    why="HybridEP works in whole NVLink domains once it spans more than one.", fix="make ETP*EP a multiple of the domain",
    where="first forward", fields="dispatcher expert_model_parallel_size env", source="deepseek-ai/DeepEP hybrid-ep branch",
    since="0.16.1", fails={"model": "deepseek-v3", "num_gpus": 48, "ep": 16, "dispatcher": "hybridep", "env": {"NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN": "12"}},
    passes={"dispatcher": "hybridep"}, needs=("gpu",),
)  # fmt: skip
def _domain(run: Run) -> str | None:
    if run.dispatcher != "hybridep":
        return None
    text = run.written.env.get("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", "")
    said = int(text) if text.isdigit() else 0
    domain = said or min(run.gpu.nvlink_domain, _span(run))
    return f"ETP*EP = {_span(run)} is not a multiple of the domain of {domain}" if _span(run) % domain else None


@rule(
    "hybridep-nvl8-ep-gt8", "warning", "HybridEP across 8-GPU nodes",
    why="Its inter-node path on NVL8 systems is young.", fix="compare with deepep or alltoall", where="first forward",
    fields="dispatcher gpu", source="deepseek-ai/DeepEP hybrid-ep branch; Megatron Bridge dispatcher skill",
    since="0.16.1", fails={"ep": 16, "dispatcher": "hybridep"}, passes={"dispatcher": "hybridep"}, needs=("gpu",),
)  # fmt: skip
def _nvl8(run: Run) -> str | None:
    bad = run.dispatcher == "hybridep" and run.gpu.nvlink_domain <= 8 < _span(run)
    return f"hybridep with ETP*EP = {_span(run)} on 8-GPU NVLink domains" if bad else None


@rule(
    "hybridep-equal-tokens", "error", "HybridEP with unequal tokens per rank",
    why="Ranks must dispatch equal numbers of tokens unless inputs are padded. Bridge 0.6.2 pads only for THD datasets without graphs.",
    fix="set moe_hybridep_pad_uneven_dispatch_inputs (core 0.19), or use alltoall", where="first forward",
    fields="dispatcher data.variable_length model.moe_hybridep_pad_uneven_dispatch_inputs",
    source="megatron-bridge 0.6.2 models/transformer_config.py _enable_safe_hybridep_dispatch", since="0.16.1",
    fails={"dispatcher": "hybridep", "data": {"variable_length": True}},
    passes={"dispatcher": "hybridep", "data": {"variable_length": True}, "megatron": {"model.moe_hybridep_pad_uneven_dispatch_inputs": True}},
    repair=lambda run: {"megatron": {"model.moe_hybridep_pad_uneven_dispatch_inputs": True}},
)  # fmt: skip
def _equal(run: Run) -> str | None:
    padded = run.written.megatron.get("model.moe_hybridep_pad_uneven_dispatch_inputs")
    data = run.written.data
    uneven = data.variable_length or (data.packed and not run.bridge)
    bad = run.dispatcher == "hybridep" and uneven and not padded
    return "unequal token counts with hybridep and no padding of uneven inputs" if bad else None


@rule(
    "hybridep-chunk-tokens", "warning", "tokens per rank are not a multiple of the HybridEP chunk",
    why="It works in chunks of 64 tokens (128 for combine on some settings).", fix="pad the micro batch to a multiple of 64 tokens",
    where="first forward", fields="dispatcher seq_length micro_batch_size", source="deepseek-ai/DeepEP hybrid-ep branch", since="0.16.1",
    fails={"dispatcher": "hybridep", "seq_length": 32800}, passes={"dispatcher": "hybridep"}, needs=("seq_length",),
)  # fmt: skip
def _chunk(run: Run) -> str | None:
    tokens = run.tokens_per_cp_rank // (run.sizes.tp if run.sequence_parallel else 1)
    return f"{tokens} tokens per rank are not a multiple of 64" if run.dispatcher == "hybridep" and tokens % 64 else None


@rule(
    "hybridep-ib-token-limit", "warning", "HybridEP between nodes limits tokens per rank",
    why="Older builds assert 3 * tokens + 1 < 65536 send slots (tx_depth) per queue pair on InfiniBand.",
    fix="lower micro_batch_size, raise CP or TP, or use a newer build", where="first forward",
    fields="dispatcher micro_batch_size seq_length", source="public reports of the tx_depth assertion (NVIDIA-NeMo/Megatron-Bridge)",
    fails={"ep": 16, "dispatcher": "hybridep", "mbs": 8, "seq_length": 8192}, passes={"dispatcher": "hybridep", "seq_length": 8192},
    needs=("gpu", "seq_length"),
)  # fmt: skip
def _tx(run: Run) -> str | None:
    tokens = run.tokens_per_cp_rank // (run.sizes.tp if run.sequence_parallel else 1)
    bad = run.dispatcher == "hybridep" and _span(run) > run.gpu.nvlink_domain and 3 * tokens + 1 >= 65536
    return f"3 * {tokens} + 1 send slots exceed 65535" if bad else None


@rule(
    "expert-rank-capacity", "error", "expert rank capacity with a dispatcher that lacks it",
    why="moe_expert_rank_capacity_factor is implemented by hybridep and ncclep.", fix="use hybridep, or remove the factor",
    where="config", fields="model.moe_expert_rank_capacity_factor dispatcher", source=CONFIG, since="0.18.0",
    fails={"megatron": {"model.moe_expert_rank_capacity_factor": 1.5}},
    passes={"dispatcher": "hybridep", "megatron": {"model.moe_expert_rank_capacity_factor": 1.5, "model.use_transformer_engine_op_fuser": True}},
)  # fmt: skip
def _rank_capacity(run: Run) -> str | None:
    if run.written.megatron.get("model.moe_expert_rank_capacity_factor") is None:
        return None
    if run.dispatcher not in (("hybridep",) if core_before(run, "0.19.2") else ("hybridep", "ncclep")):
        return f"moe_expert_rank_capacity_factor with {run.dispatcher} in core {core_of(run.written)}"
    lacks = run.dispatcher == "hybridep" and not run.written.megatron.get("model.use_transformer_engine_op_fuser")
    return "moe_expert_rank_capacity_factor on hybridep needs use_transformer_engine_op_fuser" if lacks else None


@rule(
    "flex-sm-counts-conflict", "error", "two old SM counts that disagree",
    why="Both spellings became moe_flex_dispatcher_num_sms in 0.19.", fix="set only model.moe_flex_dispatcher_num_sms", where="config",
    fields="model.moe_deepep_num_sms model.moe_hybridep_num_sms", source=CONFIG, since="0.19.2",
    fails={"megatron": {"model.moe_deepep_num_sms": 20, "model.moe_hybridep_num_sms": 16}},
    passes={"megatron": {"model.moe_flex_dispatcher_num_sms": 20}},
)  # fmt: skip
def _sms(run: Run) -> str | None:
    m = run.written.megatron
    old = {m.get("model.moe_deepep_num_sms"), m.get("model.moe_hybridep_num_sms")} - {None}
    bad = len(old) > 1 and m.get("model.moe_flex_dispatcher_num_sms") is None
    return f"moe_deepep_num_sms and moe_hybridep_num_sms say {sorted(old, key=str)}" if bad else None


@rule(
    "ncclep-requirements", "error", "ncclep on hardware or a core that lacks it",
    why="It needs Hopper or newer and a TransformerEngine build with NCCL-EP.", fix="use hybridep or deepep", where="config",
    fields="dispatcher gpu", source=BRIDGE_FLEX, since="0.19.2",
    fails={"gpu": "A100", "dispatcher": "ncclep"}, passes={"dispatcher": "ncclep"}, needs=("gpu",),
)  # fmt: skip
def _ncclep(run: Run) -> str | None:
    old = 0 < run.gpu.compute_capability < 9
    return f"ncclep needs Hopper or newer, {run.gpu.id} is older" if run.dispatcher == "ncclep" and old else None


@rule(
    "capacity-factor-lb", "error", "capacity factor with an unsupported balancing type",
    why="Dropping needs aux_loss, seq_aux_loss, global_aux_loss or none; padding needs a capacity factor.",
    fix="set the load-balancing type to aux_loss, or remove the capacity factor", where="config",
    fields="moe.capacity_factor moe.pad_to_capacity model.moe_router_load_balancing_type", source=CONFIG,
    fails={"moe": {"capacity_factor": 1.0}, "megatron": {"model.moe_router_load_balancing_type": "sinkhorn"}},
    passes={"moe": {"capacity_factor": 1.0}},
)  # fmt: skip
def _capacity(run: Run) -> str | None:
    moe, kind = run.written.moe, run.written.megatron.get("model.moe_router_load_balancing_type", "aux_loss")
    if moe.pad_to_capacity and moe.capacity_factor is None:
        return "moe_pad_expert_input_to_capacity without moe_expert_capacity_factor"
    legal = ("aux_loss", "seq_aux_loss", "none", *(() if core_before(run, "0.15.0") else ("global_aux_loss",)))
    kinds = kind if isinstance(kind, list | tuple) else [kind]
    bad = moe.capacity_factor is not None and any(k not in legal for k in kinds)
    return f"moe_expert_capacity_factor with {kind}" if bad else None


@rule(
    "shared-overlap-dispatcher", "error", "shared-expert overlap with a dispatcher that lacks it",
    why="alltoall until 0.17, flex too from 0.18.", fix="use alltoall, or turn moe_shared_expert_overlap off", where="config",
    fields="overlap.shared_expert dispatcher", source=CONFIG,
    fails={"model": "deepseek-v2-lite", "dispatcher": "allgather", "overlap": {"shared_expert": True}},
    passes={"model": "deepseek-v2-lite", "overlap": {"shared_expert": True}}, repair=lambda run: {"overlap": {"shared_expert": False}},
)  # fmt: skip
def _shared(run: Run) -> str | None:
    if not run.written.overlap.shared_expert or not run.arch.moe_shared_expert_intermediate_size:
        return None
    legal = ("alltoall",) if core_before(run, "0.18.0") else ("alltoall", *FLEX)
    return f"moe_shared_expert_overlap with {run.dispatcher} in core {core_of(run.written)}" if run.dispatcher not in legal else None


@rule(
    "shared-overlap-without-shared", "warning", "shared-expert overlap without shared experts",
    why="There is nothing to overlap.", fix="remove moe_shared_expert_overlap", where="silently", fields="overlap.shared_expert",
    source="megatron-core 0.19.2 transformer/moe/moe_layer.py", fails={"overlap": {"shared_expert": True}}, passes={},
    repair=lambda run: {"overlap": {"shared_expert": False}}, needs=("model",),
)  # fmt: skip
def _no_shared(run: Run) -> str | None:
    bad = run.written.overlap.shared_expert and not run.arch.moe_shared_expert_intermediate_size
    return "moe_shared_expert_overlap on a model without shared experts" if bad else None


@rule(
    "permute-fusion-te", "error", "permute fusion with an old TransformerEngine", why="The fused kernels came with 2.1.",
    fix="use TransformerEngine 2.1 or newer", where="config", fields="model.moe_permute_fusion versions.transformer_engine",
    source=CONFIG, fails={"megatron": {"model.moe_permute_fusion": True}, "versions": {"transformer_engine": "2.0.0"}},
    passes={"megatron": {"model.moe_permute_fusion": True}},
)  # fmt: skip
def _permute(run: Run) -> str | None:
    on = run.written.megatron.get("model.moe_permute_fusion")
    return "moe_permute_fusion needs TransformerEngine 2.1" if on and run.te_version < (2, 1) else None


@rule(
    "grouped-gemm-sm80", "error", "grouped GEMM on an old GPU", why="It needs compute capability 8.",
    fix="use a newer GPU", where="command line", fields="model.moe_grouped_gemm gpu",
    source="megatron-core 0.19.2 megatron/training/arguments.py", frontends=("megatron_lm",),
    fails={"frontend": "megatron_lm", "gpu": {"id": "V100", "memory_gib": 32, "bf16_tflops": 125, "compute_capability": 7}},
    passes={"frontend": "megatron_lm"}, needs=("gpu",),
)  # fmt: skip
def _sm80(run: Run) -> str | None:
    return "grouped GEMM needs compute capability 8" if 0 < run.gpu.compute_capability < 8 else None


@rule(
    "deepep-package", "info", "the dispatcher backend is a separate package",
    why="deepep needs deep_ep, hybridep its hybrid-ep branch, ncclep a TransformerEngine build with NCCL-EP.",
    fix="check the container before the reservation starts", where="first forward", fields="dispatcher", source=DISPATCH,
    fails={"dispatcher": "deepep"}, passes={},
    correction="the file has it as an error; a configuration cannot show what is installed, so it is a note",
)  # fmt: skip
def _package(run: Run) -> str | None:
    need = {"deepep": "deep_ep", "hybridep": "deep_ep built from the hybrid-ep branch", "ncclep": "TransformerEngine with NCCL-EP"}
    return f"{run.dispatcher} needs {need[run.dispatcher]} in the container" if run.dispatcher in need else None


@rule(
    "validate-needs-gpu-for-flex", "info", "Bridge's own validate() needs a GPU with the flex dispatcher",
    why="It reads the properties of device 0.", fix="check here, or with a stand-in for the device", where="config",
    fields="dispatcher", source=BRIDGE_FLEX, frontends=("bridge",), fails={"dispatcher": "hybridep"}, passes={},
    correction="a note, not a warning: it does not touch the run",
)  # fmt: skip
def _validate(run: Run) -> str | None:
    return "ConfigContainer.validate() reads CUDA device 0 with this dispatcher" if run.dispatcher in FLEX else None
