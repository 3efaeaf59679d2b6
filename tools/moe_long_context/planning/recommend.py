"""The cheapest recompute and offload that fits: each choice estimated at the real peak, not savings added up."""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.config.resolve import Run
from moe_long_context.memory.capacity import Verdict, peak_interval, verdict
from moe_long_context.memory.estimate import MemoryEstimate, estimate
from moe_long_context.planning.recompute_sets import NONE, RecomputeChoice, choices
from moe_long_context.planning.search import variant_of
from moe_long_context.speed import StepTime, step_time

ORDER: dict[str, int] = {"yes": 0, "tight": 1, "no": 2}


class Choice(NamedTuple):
    """One recompute set and optimizer offload, estimated."""

    run: Run
    recompute: RecomputeChoice
    offload: float
    memory: MemoryEstimate
    time: StepTime
    fits: Verdict

    @property
    def peak_bytes(self) -> float:
        """Peak of the fullest rank."""
        return self.memory.peak.peak_bytes


class Recommendation(NamedTuple):
    """All choices cheapest first, the one to take (None when nothing fits), and the two ends."""

    choices: tuple[Choice, ...]
    recommended: Choice | None
    none: Choice
    current: Choice


def recommend(run: Run) -> Recommendation:
    """Estimate every distinct recompute choice of a run, with its own offload and, where that helps, full offload.

    Raises:
        InvalidLayoutError: nothing to estimate.
    """
    run.require_mesh()
    offloads = [run.cpu_offload_fraction]
    if run.cpu_offload_fraction < 1 and run.optimizer == "adam":
        offloads.append(1.0)
    found = [_choice(run, choice, offload) for offload in offloads for choice in choices(run)]
    ranked = sorted(found, key=lambda c: (ORDER[c.fits], c.time.step_time_s, c.peak_bytes))
    none = next(c for c in found if c.recompute == NONE and c.offload == run.cpu_offload_fraction)
    best = ranked[0] if ranked[0].fits != "no" else None
    return Recommendation(tuple(ranked), best, none, _current(run))


def _choice(run: Run, choice: RecomputeChoice, offload: float) -> Choice:
    variant = variant_of(run, choice, offload)
    memory = estimate(variant)
    return Choice(
        variant, choice, offload, memory, step_time(variant), verdict(variant, peak_interval(variant, memory.peak))
    )


def _current(run: Run) -> Choice:
    memory = estimate(run)
    modules = tuple(sorted(run.recompute_modules))
    now = RecomputeChoice(run.recompute_granularity, run.recompute_method, run.recompute_num_layers, modules)
    return Choice(
        run, now, run.cpu_offload_fraction, memory, step_time(run), verdict(run, peak_interval(run, memory.peak))
    )


def frontier(found: Recommendation) -> set[int]:
    """Indices of the choices that no other one beats in both peak and step time."""
    out = set()
    for index, c in enumerate(found.choices):
        if not any(
            o is not c and o.peak_bytes <= c.peak_bytes and o.time.step_time_s <= c.time.step_time_s
            and (o.peak_bytes, o.time.step_time_s) != (c.peak_bytes, c.time.step_time_s)
            for o in found.choices
        ):  # fmt: skip
            out.add(index)
    return out
