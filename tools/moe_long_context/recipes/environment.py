"""The environment variables that a layout needs, each with its reason.

Sources: Megatron Bridge 0.6.2 recipes/utils/environment_utils.py and its recipes; Megatron-Core 0.19.2
training/arguments.py.
"""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.config.resolve import Run

HOPPER_OR_OLDER = ("H100", "H200", "H20", "H800", "A100", "A800")
NVL72_DOMAIN = 72
MAX_HYBRIDEP_RANKS = 64
LAYERNORM_SM_MARGIN = "20"


class EnvVar(NamedTuple):
    """One environment variable and why it is set."""

    name: str
    value: str
    why: str


def environment(run: Run) -> list[EnvVar]:
    """Variables of a run, the person's own last; each name once."""
    out = [
        EnvVar("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "long sequences fragment fixed-size segments"),
        EnvVar("NCCL_GRAPH_REGISTER", "0", "NCCL graph registration does not work with expandable segments"),
        EnvVar("NCCL_NVLS_ENABLE", "0", "NVLink SHARP buffers are not used by these recipes and cost memory"),
        EnvVar("TORCH_NCCL_AVOID_RECORD_STREAMS", "1", "collective inputs are freed as soon as they are consumed"),
        EnvVar("TORCH_NCCL_HIGH_PRIORITY", "1", "communication kernels are not starved by compute"),
        *_connections(run),
        *_dispatcher(run),
        *_offload(run),
    ]
    table = {var.name: var for var in out}
    given = "given in the run configuration"
    table.update({name: EnvVar(name, value, given) for name, value in run.written.env.items()})
    return list(table.values())


def bridge_env(run: Run) -> dict[str, str]:
    """The same as Bridge's `env_vars` mapping."""
    return {var.name: var.value for var in environment(run)}


def _connections(run: Run) -> list[EnvVar]:
    """TP or CP overlap before Blackwell relies on one hardware queue; EP overlap and FSDP need many."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    if run.written.overlap.ep_a2a:
        return [EnvVar(name, "32", "EP all-to-all overlap runs compute and communication on several queues")]
    if run.written.fsdp.enabled:
        return [EnvVar(name, "32", "Megatron-FSDP refuses 1")]
    if (run.sizes.tp > 1 or run.sizes.cp > 1) and _hopper_or_older(run):
        return [EnvVar(name, "1", "TP and CP overlap need kernels to start in the order they were issued")]
    return []


def _hopper_or_older(run: Run) -> bool:
    return run.gpu.id.upper().split("-")[0] in HOPPER_OR_OLDER


def _dispatcher(run: Run) -> list[EnvVar]:
    if run.dispatcher not in ("deepep", "hybridep"):
        return []
    out = [
        EnvVar("NVTE_FWD_LAYERNORM_SM_MARGIN", LAYERNORM_SM_MARGIN, "norm kernels leave SMs to the dispatcher"),
        EnvVar("NVTE_BWD_LAYERNORM_SM_MARGIN", LAYERNORM_SM_MARGIN, "norm kernels leave SMs to the dispatcher"),
    ]
    return out + (_hybridep(run) if run.dispatcher == "hybridep" else [])


def _hybridep(run: Run) -> list[EnvVar]:
    """HybridEP has to know which expert ranks share an NVLink domain."""
    domain = run.gpu.nvlink_domain
    multi_node = domain > run.gpus_per_node
    ranks = min(run.sizes.ep, MAX_HYBRIDEP_RANKS if multi_node else run.gpus_per_node)
    return [
        EnvVar("NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN", str(ranks), "expert ranks that reach each other by NVLink"),
        EnvVar("NVLINK_DOMAIN_SIZE", str(NVL72_DOMAIN if multi_node else run.gpus_per_node), "GPUs of one domain"),
        EnvVar("USE_MNNVL", str(int(multi_node)), f"NVLink {'spans nodes' if multi_node else 'ends at the node'}"),
    ]


def _offload(run: Run) -> list[EnvVar]:
    if not run.offload_modules:
        return []
    return [EnvVar("NVTE_CPU_OFFLOAD_V1", "1", "Transformer Engine 2.10 and later would offload weights as well")]
