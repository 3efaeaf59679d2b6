"""The smallest GPU count at which anything fits: doubling up, then halving the last step in whole nodes."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.config.run_config import RunConfig
from moe_long_context.planning.limits import limits_of
from moe_long_context.planning.search import Plan, search

MAX_GPUS = 16384


def smallest_count(
    config: RunConfig, forbid: tuple[str, ...], min_dp: int, allow_offload: bool, cross_domain_tp: bool
) -> int | None:
    """The smallest multiple of a node (or part of one) that fits, None up to 16,384 GPUs."""
    node = Run(config.model_copy(update={"num_gpus": config.num_gpus or 1})).gpu.gpus_per_node

    def fits(count: int) -> bool:
        return first_fitting(config, count, forbid, min_dp, allow_offload, cross_domain_tp) is not None

    low, high = 0, node
    while not fits(high):
        low, high = high, high * 2
        if high > MAX_GPUS:
            return None
    while high - low > max(node, high // 16):
        middle = (low + high) // 2 // node * node
        if middle in (low, high):
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def first_fitting(
    config: RunConfig,
    count: int,
    forbid: tuple[str, ...],
    min_dp: int,
    allow_offload: bool,
    cross_domain_tp: bool = False,
) -> Plan | None:
    """The best plan on `count` GPUs, None when nothing fits."""
    sized = config.model_copy(update={"num_gpus": count})
    run = Run(sized)
    limits = limits_of(sized, run, forbid, min_dp, cross_domain_tp)
    found = search(sized, limits, 1, allow_offload)
    return found.plans[0] if found.plans else None
