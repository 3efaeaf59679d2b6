"""The pipeline's schedule as a picture: Megatron's order of passes, each as long as the throughput tool says.

Only the first microbatches are drawn; the step's seconds and bubble are the tool's, never read off the picture.
Source of the order: megatron-core 0.19.2 megatron/core/pipeline_parallel/schedules.py (1F1B and interleaved 1F1B).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from markupsafe import Markup

from moe_long_context.adapters.report import svg
from moe_long_context.memory.schedule import warmup_forwards

WIDTH, LEFT = 860, 76
MAX_PASSES = 6000
MAX_ROWS = 32


class Pass(NamedTuple):
    """One forward or backward of one chunk on one rank, in seconds from the start of the step."""

    rank: int
    forward: bool
    chunk: int
    microbatch: int
    start: float
    end: float


def drawn_microbatches(pp: int, vpp: int, total: int) -> int:
    """How many microbatches the picture shows: two rounds of the pipeline, one when that is too many to see.

    The interleaved schedule runs whole groups of PP; the framework refuses a last group that is smaller.
    """
    rounds = 2 if 4 * pp * pp * vpp <= MAX_PASSES else 1
    shown = max(1, min(total, rounds * pp if pp > 1 else 4))
    return shown // pp * pp if vpp > 1 and shown > pp else shown


def _order(pp: int, rank: int, vpp: int, microbatches: int) -> list[tuple[bool, int, int]]:
    """(forward, chunk, microbatch) in the order in which one rank runs them."""
    groups = [range(start, min(start + pp, microbatches)) for start in range(0, microbatches, pp)]
    forwards = [(True, chunk, m) for group in groups for chunk in range(vpp) for m in group]
    backwards = [(False, chunk, m) for group in groups for chunk in reversed(range(vpp)) for m in group]
    total = len(forwards)
    ahead = min(total, pp - rank - 1) if vpp == 1 else warmup_forwards(pp, rank, vpp, total, pp)
    steady = [each for pair in zip(forwards[ahead:], backwards, strict=False) for each in pair]
    return [*forwards[:ahead], *steady, *backwards[total - ahead :]]


def schedule(stages: list[dict[str, Any]], vpp: int, microbatches: int) -> list[Pass]:
    """Every pass as early as its inputs and its rank allow."""
    pp = len(stages)
    orders = [_order(pp, rank, vpp, microbatches) for rank in range(pp)]
    done: dict[tuple[int, bool, int, int], float] = {}
    free, at = [0.0] * pp, [0] * pp
    passes: list[Pass] = []
    while any(at[rank] < len(orders[rank]) for rank in range(pp)):
        before = len(passes)
        for rank in range(pp):
            while at[rank] < len(orders[rank]):
                forward, chunk, m = orders[rank][at[rank]]
                needed = _input_of(rank, forward, chunk, pp, vpp)
                if needed is not None and (*needed, m) not in done:
                    break
                start = max(free[rank], done[(*needed, m)] if needed else 0.0)
                end = start + stages[rank]["forward_s" if forward else "backward_s"] / vpp
                done[(rank, forward, chunk, m)] = free[rank] = end
                passes.append(Pass(rank, forward, chunk, m, start, end))
                at[rank] += 1
        if len(passes) == before:
            return []
    return passes


def _input_of(rank: int, forward: bool, chunk: int, pp: int, vpp: int) -> tuple[int, bool, int] | None:
    """The pass whose output this one waits for."""
    if forward:
        if rank:
            return rank - 1, True, chunk
        return (pp - 1, True, chunk - 1) if chunk else None
    if rank < pp - 1:
        return rank + 1, False, chunk
    return (0, False, chunk + 1) if chunk < vpp - 1 else (rank, True, chunk)


def timeline(throughput: dict[str, Any], vpp: int) -> Markup:
    """One row for each pipeline rank: forward, backward, the exposed communication in each, and idle gaps."""
    stages = throughput["stages"]
    shown = drawn_microbatches(len(stages), vpp, throughput["num_microbatches"])
    passes = schedule(stages, vpp, shown)
    rows = {rank: i for i, rank in enumerate(range(min(len(stages), MAX_ROWS)))}
    height = 24 if len(rows) <= 16 else 16
    end = max((p.end for p in passes), default=1.0)
    scale = (WIDTH - LEFT - 10) / end
    root = svg.canvas(WIDTH, height * len(rows) + 34, "Passes of each pipeline rank over time, idle gaps left open")
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    for p in passes:
        if p.rank in rows:
            span = LEFT + p.start * scale, (p.end - p.start) * scale
            _place(boxes, p, _share(stages[p.rank]), span, height * rows[p.rank], height)
    for rank, row in rows.items():
        svg.text(root, LEFT - 8, height * row + height * 0.68, f"stage {rank}", "end")
        svg.rect(root, (LEFT, height * row + 2, WIDTH - LEFT - 10, height - 4), "idle")
    for style, drawn in boxes.items():
        svg.blocks(root, drawn, style)
    svg.text(root, LEFT, height * len(rows) + 20, "0 s", "soft")
    svg.text(root, WIDTH - 10, height * len(rows) + 20, f"{end:.3g} s", "end soft")
    return svg.markup(root)


def _share(stage: dict[str, Any]) -> float:
    whole = stage["forward_s"] + stage["backward_s"]
    return float(min(1.0, stage["communication_s"] / whole)) if whole else 0.0


def _place(
    boxes: dict[str, list[tuple[float, float, float, float]]],
    p: Pass, share: float, span: tuple[float, float], y: float, height: float,
) -> None:  # fmt: skip
    x, width = span
    inner = max(width - 0.5, 0.3)
    style = f"{'forward' if p.forward else 'backward'}-{p.microbatch % 2}"
    boxes.setdefault(style, []).append((x, y + 2, inner * (1 - share), height - 4))
    if share:
        boxes.setdefault("exposed", []).append((x + inner * (1 - share), y + 2, inner * share, height - 4))
