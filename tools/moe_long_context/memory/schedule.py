"""How many microbatches of each model chunk a pipeline rank holds when a backward starts: 1F1B and interleaved 1F1B.

Source: megatron-core 0.19.2 megatron/core/pipeline_parallel/schedules.py,
forward_backward_pipelining_without_interleaving, forward_backward_pipelining_with_interleaving and get_schedule_table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple


class Moment(NamedTuple):
    """One instant of a rank's schedule: `in_flight[v]` microbatches of virtual stage v hold activations, and the
    backward of virtual stage `backward` starts (its microbatch is counted in `in_flight`)."""

    in_flight: tuple[int, ...]
    backward: int


@lru_cache(maxsize=65536)
def moments(
    pp: int, rank: int, vpp: int, microbatches: int, group: int = 0, ep_overlap: bool = False
) -> tuple[Moment, ...]:
    """The instants that can be a memory peak on `rank`: the ends of every stretch in which one chunk runs forward and
    one runs backward; between them counts change by one from chunk to chunk.

    Args:
        pp, rank, vpp: pipeline size, rank and virtual stages.
        microbatches: of one step; at least 1.
        group: microbatch_group_size_per_vp_stage, 0 = the framework's default (PP).
        ep_overlap: overlap_moe_expert_parallel_comm keeps one more forward in flight in the interleaved schedule.
    """
    microbatches = max(microbatches, 1)
    if vpp == 1:
        return (Moment((min(microbatches, pp - rank),), 0),)
    size = group or pp
    # Steady state repeats every group of microbatches, so a few groups hold every distinct instant.
    shown = min(microbatches, size * 3 + microbatches % size)
    return tuple(dict.fromkeys(_interleaved(pp, rank, vpp, shown, size, ep_overlap)))


def warmup_forwards(pp: int, rank: int, vpp: int, total: int, group: int, ep_overlap: bool = False) -> int:
    """Forward passes before the first backward of the interleaved schedule, at most `total`."""
    ahead = (pp - rank - 1) * 2 + (vpp - 1) * group + (1 if ep_overlap else 0)
    return min(ahead, total)


def _interleaved(pp: int, rank: int, vpp: int, microbatches: int, group: int, ep_overlap: bool) -> Iterator[Moment]:
    runs = [
        (chunk, min(group, microbatches - start)) for start in range(0, microbatches, group) for chunk in range(vpp)
    ]
    left = warmup_forwards(pp, rank, vpp, microbatches * vpp, group, ep_overlap)
    counts = [0] * vpp
    forward = list(runs)
    while left:
        chunk, length = forward[0]
        done = min(left, length)
        counts[chunk] += done
        left -= done
        forward[0] = (chunk, length - done)
        if length == done:
            forward.pop(0)
    for chunk, length in runs:
        yield from _backward_run(counts, vpp - 1 - chunk, length, forward)


def _backward_run(counts: list[int], chunk: int, length: int, forward: list[tuple[int, int]]) -> Iterator[Moment]:
    """One stretch of `length` backwards of a chunk beside the forwards that are left."""
    while length:
        ahead, available = forward[0] if forward else (-1, length)
        steps = min(length, available)
        for step in (1, steps) if steps > 1 else (1,):
            held = list(counts)
            if ahead >= 0:
                held[ahead] += step
            held[chunk] -= step - 1
            yield Moment(tuple(held), chunk)
        if ahead >= 0:
            counts[ahead] += steps
            forward[0] = (ahead, available - steps)
            if available == steps:
                forward.pop(0)
        counts[chunk] -= steps
        length -= steps
