"""Facts about microbatches in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_long_context.memory.schedule import moments, warmup_forwards


@pytest.mark.parametrize(("rank", "microbatches", "held"), [(0, 64, 8), (7, 64, 1), (3, 64, 5), (0, 4, 4)])
def test_one_forward_one_backward(rank: int, microbatches: int, held: int) -> None:
    """1F1B on PP8: rank r holds PP - r microbatches, never more than the step has."""
    assert moments(8, rank, 1, microbatches) == (((held,), 0),)


def test_interleaved_warmup() -> None:
    """(PP - r - 1)*2 + (VPP - 1)*PP forwards before the first backward (schedules.py)."""
    assert warmup_forwards(8, 0, 4, 256, 8) == 7 * 2 + 3 * 8
    assert warmup_forwards(8, 7, 4, 256, 8) == 3 * 8


def test_interleaved_first_rank_holds_warmup_plus_one() -> None:
    """Rank 0 of PP8 VPP4 holds 38 + 1 chunk activations when a backward starts, most of them of early chunks."""
    held = moments(8, 0, 4, 64)
    assert max(sum(m.in_flight) for m in held) == 39
    first = max(held, key=lambda m: m.in_flight[0])
    assert first.in_flight[0] >= first.in_flight[3]


@given(pp=st.integers(1, 8), vpp=st.integers(1, 4), rounds=st.integers(1, 6), data=st.data())
def test_counts_stay_within_the_step(pp: int, vpp: int, rounds: int, data: st.DataObject) -> None:
    """No chunk ever holds more than the step's microbatches, and the one in backward is held."""
    rank = data.draw(st.integers(0, pp - 1))
    for moment in moments(pp, rank, vpp, pp * rounds):
        assert all(0 <= count <= pp * rounds for count in moment.in_flight)
        assert moment.in_flight[moment.backward] >= 1


def brute_force(pp: int, rank: int, vpp: int, microbatches: int) -> dict[int, int]:
    """Largest total in flight per backward chunk, by walking the whole step."""
    groups = [min(pp, microbatches - start) for start in range(0, microbatches, pp)]
    order = [chunk for size in groups for chunk in range(vpp) for _ in range(size)]
    forwards = min((pp - rank - 1) * 2 + (vpp - 1) * pp, len(order))
    counts = [0] * vpp
    for chunk in order[:forwards]:
        counts[chunk] += 1
    best: dict[int, int] = {}
    for step in range(len(order)):
        if forwards + step < len(order):
            counts[order[forwards + step]] += 1
        chunk = vpp - 1 - order[step]
        best[chunk] = max(best.get(chunk, 0), sum(counts))
        counts[chunk] -= 1
    return best


@given(pp=st.integers(2, 6), vpp=st.integers(2, 4), rounds=st.integers(1, 9), data=st.data())
def test_shortened_walk_equals_the_whole_step(pp: int, vpp: int, rounds: int, data: st.DataObject) -> None:
    """Looking at three groups of microbatches finds the same maxima as walking every microbatch."""
    rank = data.draw(st.integers(0, pp - 1))
    found: dict[int, int] = {}
    for moment in moments(pp, rank, vpp, pp * rounds):
        found[moment.backward] = max(found.get(moment.backward, 0), sum(moment.in_flight))
    assert found == brute_force(pp, rank, vpp, pp * rounds)
