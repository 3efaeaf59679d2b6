"""From peak bytes to a verdict: how sure the peak is, what lives outside the allocator, and whether it fits.

Three answers: `yes` even the high end fits, `no` even the low end does not, `tight` in between.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from moe_long_context.config.resolve import Run
from moe_long_context.memory.estimate import StageEstimate
from moe_long_context.units import GIB

Verdict = Literal["yes", "tight", "no"]


class Uncertainty(NamedTuple):
    """Relative one-sigma-like half width of one component and where it comes from."""

    relative: float
    source: str


COMPONENT_UNCERTAINTY = {
    "weights": Uncertainty(0.002, "counts are exact (checked against real Megatron-Core models)"),
    "gradients": Uncertainty(0.002, "counts are exact; bucket padding"),
    "optimizer": Uncertainty(0.005, "counts are exact; shard padding"),
    "activations": Uncertainty(0.02, "kept tensors are exact on the CPU path; TE path terms are modelled"),
    "logits": Uncertainty(0.05, "measured B200 runs agree within 0.1 GiB; implementations differ by version"),
    "working_set": Uncertainty(0.35, "modelled: the largest step of one layer's backward"),
    "workspace": Uncertainty(0.10, "cuBLAS and TE placeholders"),
    "communication": Uncertainty(0.30, "modelled receive buffers"),
}
LOW_PRECISION_ACTIVATION_UNCERTAINTY = Uncertainty(0.12, "which copies TE keeps in FP8/FP4 depends on its version")
ROUTING_UNCERTAINTY = Uncertainty(
    0.05, "share of MoE activations that moves with routing when balanced routing is only a goal"
)
INTERVAL_SIGMAS = 2.0
"""Half width of the interval in units of the combined uncertainty; covers 90 % of the measured rows."""

RESERVED_OVER_ALLOCATED = 1.04
"""Median of reserved/allocated on 14 B200 topologies (1.028 to 1.093). Source: MooreThreads/SimuMax
b200_release_v1.2."""
FRAGMENTATION, FRAGMENTATION_HALF_WIDTH = 1.03, 0.03
"""What the allocator holds over the peak it hands out, as a factor and its half width: 1.0 with expandable segments,
1.06 without (three quarters of the same 14 topologies)."""
OUTSIDE_LOW_BYTES, OUTSIDE_HIGH_BYTES = 0.7 * GIB, 2.2 * GIB
"""CUDA context, NCCL and DeepEP/HybridEP buffers, outside PyTorch's allocator. Source: difference between device total
(79.1 GiB) and the highest reserved figures of running H100 cards (73.9 to 75.3 GiB), minus free space."""


class Interval(NamedTuple):
    """Bytes."""

    low: float
    high: float


def peak_interval(run: Run, stage: StageEstimate) -> Interval:
    """The range that should hold the measured peak of this rank in nine of ten runs."""
    variance = 0.0
    for name, size in stage.components.items():
        relative = COMPONENT_UNCERTAINTY[name].relative
        if name == "activations":
            relative = _activation_uncertainty(run)
        variance += (relative * size) ** 2
    half = INTERVAL_SIGMAS * math.sqrt(variance)
    return Interval(stage.peak_bytes - half, stage.peak_bytes + half)


def _activation_uncertainty(run: Run) -> float:
    parts = [COMPONENT_UNCERTAINTY["activations"].relative]
    if run.precision != "bf16":
        parts.append(LOW_PRECISION_ACTIVATION_UNCERTAINTY.relative)
    if run.arch.is_moe and not run.written.moe.pad_to_capacity:
        parts.append(ROUTING_UNCERTAINTY.relative)
    return math.hypot(*parts)


def verdict(run: Run, interval: Interval) -> Verdict:
    """Whether the run fits. The errors of peak and fragmentation are independent, so they add as squares."""
    capacity = run.gpu.memory_bytes
    middle = (interval.low + interval.high) / 2
    half = math.hypot((interval.high - interval.low) / 2, FRAGMENTATION_HALF_WIDTH * middle)
    if interval.low + OUTSIDE_LOW_BYTES > capacity:
        return "no"
    if middle * FRAGMENTATION + half + OUTSIDE_HIGH_BYTES <= capacity:
        return "yes"
    return "tight"
