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
    """The instants that can be a memory peak on `rank`: for each backward chunk, those that no other dominates.

    Args:
        pp, rank, vpp: pipeline size, rank and virtual stages.
        microbatches: of one step; at least 1.
        group: microbatch_group_size_per_vp_stage, 0 = the framework's default (PP).
        ep_overlap: overlap_moe_expert_parallel_comm keeps one more forward in flight in the interleaved schedule.
    """
    microbatches = max(microbatches, 1)
    if vpp == 1:
        return (Moment((min(microbatches, pp - rank),), 0),)
    seen: dict[int, set[tuple[int, ...]]] = {}
    for counts, chunk in _interleaved(pp, rank, vpp, microbatches, group or pp, ep_overlap):
        seen.setdefault(chunk, set()).add(counts)
    return tuple(Moment(c, chunk) for chunk, held in sorted(seen.items()) for c in _undominated(held))


def _undominated(vectors: set[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return [
        v
        for v in sorted(vectors)
        if not any(w != v and all(a >= b for a, b in zip(w, v, strict=True)) for w in vectors)
    ]


def warmup_forwards(pp: int, rank: int, vpp: int, total: int, group: int, ep_overlap: bool = False) -> int:
    """Forward passes before the first backward of the interleaved schedule, at most `total`."""
    ahead = (pp - rank - 1) * 2 + (vpp - 1) * group + (1 if ep_overlap else 0)
    return min(ahead, total)


def _interleaved(
    pp: int, rank: int, vpp: int, microbatches: int, group: int, ep_overlap: bool
) -> Iterator[tuple[tuple[int, ...], int]]:
    """(in-flight counts, chunk of the starting backward) at every backward of the step."""
    # Steady state repeats every group of microbatches, so a few groups hold every distinct instant.
    shown = min(microbatches, group * 3 + microbatches % group)
    order = list(_table(shown, vpp, group))
    total = len(order)
    forwards = warmup_forwards(pp, rank, vpp, total, group, ep_overlap)
    counts = [0] * vpp
    for chunk in order[:forwards]:
        counts[chunk] += 1
    for step in range(total):
        if forwards + step < total:
            counts[order[forwards + step]] += 1
        chunk = vpp - 1 - order[step]
        yield tuple(counts), chunk
        counts[chunk] -= 1


def _table(microbatches: int, vpp: int, group: int) -> Iterator[int]:
    """The virtual stage of each forward pass in order: groups of microbatches, chunk by chunk."""
    for start in range(0, microbatches, group):
        size = min(group, microbatches - start)
        for chunk in range(vpp):
            for _ in range(size):
                yield chunk
