"""The named constants of the step-time model, read from `data/efficiency.yaml`, one frozen tuple per GPU platform."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from moe_long_context.catalog.gpu import Gpu
from moe_long_context.yaml_safe import load_file

FILE = Path(__file__).parent / "data" / "efficiency.yaml"


class Efficiency(NamedTuple):
    """One platform's parameters. Units, sources and ranges stand in the data file."""

    gemm_bf16: float
    gemm_fp8: float
    nvfp4_gain: float
    gemm_half_rows: float
    gemm_half_depth: float
    gemm_memory: float
    memory: float
    attention_forward: float
    attention_backward: float
    attention_half_forward: float
    attention_half_backward: float
    attention_narrow_power: float
    attention_fp8_speedup: float
    scan: float
    launch_us: float
    nvlink_alltoall: float
    nvlink_flex: float
    nvlink_deepep: float
    nic: float
    nic_collective: float
    nvlink_collective: float
    nvlink_p2p: float
    ep_hidden: float
    ep_overlap_launches: float
    dp_hidden: float
    dp_tail: float
    dsa_unfused: float
    step_overhead_s: float
    cpu_adam_gparams_s: float


class Launches(NamedTuple):
    """Kernel launches of one layer's parts, forward, one microbatch."""

    gqa: int
    mla: int
    gdn: int
    mamba: int
    none: int
    dense: int
    moe_router: int
    moe_preprocess: int
    moe_dispatch_flex: int
    moe_dispatch_alltoall: int
    moe_experts: int
    moe_shared: int
    replay_core_attn: int
    replay_mla_up_proj: int
    replay_layernorm: int
    replay_moe_act: int
    replay_shared_experts: int
    replay_mlp: int
    per_expert_bf16: int
    per_expert_fp8: int
    per_expert_bias: int


class Traffic(NamedTuple):
    """Memory traffic that no GEMM or attention kernel does: passes over a BF16 tensor, or bytes per element."""

    norm_forward: float
    norm_backward: float
    permute: float
    mla_heads: float
    gqa_heads: float
    qk_norm: float
    gdn: float
    mamba: float
    ring_merge: float
    expert_bias_forward: float
    expert_bias_backward: float
    logits_eager: float
    logits_fused: float
    logits_linear_fused: float
    optimizer_step: float

    def logits(self, loss: str) -> float:
        """Bytes per logit of a loss; a chunked one moves what the fused one moves."""
        return {"eager": self.logits_eager, "linear_fused": self.logits_linear_fused}.get(loss, self.logits_fused)


@lru_cache(maxsize=1)
def document() -> dict[str, Any]:
    """The data file as read."""
    data: dict[str, Any] = load_file(FILE)
    return data


@lru_cache(maxsize=16)
def of_platform(platform: str) -> Efficiency:
    """The parameters of a platform named in the data file."""
    table = document()["parameters"]
    return Efficiency(**{name: float(table[name]["value"][platform]) for name in Efficiency._fields})


@lru_cache(maxsize=1)
def launches() -> Launches:
    """Kernel launch counts."""
    table = document()["launches"]
    return Launches(**{name: int(table[name]) for name in Launches._fields})


@lru_cache(maxsize=1)
def traffic() -> Traffic:
    """Memory traffic of the kernels that only move bytes."""
    table = document()["traffic"]
    return Traffic(**{name: float(table[name]["value"]) for name in Traffic._fields})


def platform_of(gpu: Gpu) -> str:
    """The platform of a GPU: by id, else by architecture; an unknown one counts as Hopper."""
    for platform, ids in document()["platforms"].items():
        if gpu.id in ids:
            return str(platform)
    if gpu.architecture == "blackwell":
        return "grace_blackwell" if gpu.nvlink_domain > gpu.gpus_per_node else "blackwell"
    return gpu.architecture if gpu.architecture == "ampere" else "hopper"


@lru_cache(maxsize=1)
def interval() -> tuple[float, float]:
    """(low, high) of measured over modelled throughput that 90 % of the calibration rows stay inside."""
    table = document()["interval"]
    return float(table["low"]), float(table["high"])
