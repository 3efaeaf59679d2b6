"""`estimate_memory`: GiB per GPU by pipeline stage and component, and whether it fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, MoeError, shorten
from moe_long_context.memory.capacity import RESERVED_OVER_ALLOCATED, Verdict, peak_interval, verdict
from moe_long_context.memory.estimate import StageEstimate, estimate
from moe_long_context.results import Evidence, Frozen
from moe_long_context.tools._tool import Draft, Options, tool
from moe_long_context.units import gib, length_text, parse_length

MAX_SWEEP = 64
STRESS_IMBALANCE = 1.5
"""Tokens of the fullest rank over the mean that the stress figure assumes (reported early-training range 1.3 to 3)."""


class MemoryOptions(Options):
    """Options of `estimate_memory`."""

    sweep: str | None = Field(
        default=None, max_length=400, description="one field over several values, e.g. seq_length=4k..1M or cp=1,2,4,8"
    )


class StageMemory(Frozen):
    """One pipeline stage at its peak, GiB."""

    stage: int
    peak_gib: float
    static_gib: float
    params_dense: int
    params_expert: int
    phase: str = Field(description="the moment of the step at which the stage peaks")
    layers: str = Field(description="the stage's chunks in layout letters")
    components: dict[str, float]


class SweepRow(Frozen):
    """One point of a sweep; `peak_gib` is absent where the layout has no meaning."""

    value: str
    peak_gib: float | None = None
    fits: Verdict | None = None
    peak_stage: int | None = None
    problem: str = ""


class MemoryResult(Frozen):
    """Peak memory of the run, GiB per GPU."""

    peak_gib: float
    capacity_gib: float
    fits: Verdict
    headroom_gib: float
    peak_stage: int
    peak_phase: str
    interval_gib: tuple[float, float]
    reserved_gib: float
    static_gib: float
    host_gib_per_node: float
    stress_peak_gib: float = Field(description=f"peak when one rank gets {STRESS_IMBALANCE} times the mean tokens")
    stages: tuple[StageMemory, ...]
    sweep: tuple[SweepRow, ...] = ()
    basis: dict[str, str]


BASIS = {
    "params_dense": "exact", "params_expert": "exact", "weights": "exact", "gradients": "exact", "optimizer": "exact",
    "activations": "modelled", "logits": "modelled", "working_set": "modelled", "workspace": "modelled",
    "communication": "modelled", "peak_gib": "modelled", "reserved_gib": "modelled", "host_gib_per_node": "modelled",
}  # fmt: skip

ACCURACY = (
    Evidence(
        what="peak memory of Megatron-LM runs on 8 B200, every rank (SimuMax release 1.2)",
        basis="measured",
        source="MooreThreads/SimuMax docs/b200/b200_release_v1.2_summary.json @4dcaae5",
    ),
)


@tool("memory", MemoryOptions, MemoryResult)
def estimate_memory(config: RunConfig, options: MemoryOptions) -> Draft:
    """GiB per GPU by pipeline stage and component, the moment of the peak, and whether it fits."""
    run = resolve(config)
    result = memory_result(run)
    if options.sweep:
        result = result.model_copy(update={"sweep": tuple(_sweep(config, options.sweep))})
    return Draft(result, assumptions=tuple(run.assumptions), evidence=ACCURACY, no=result.fits == "no")


def memory_result(run: Run) -> MemoryResult:
    """The typed result for a resolved run.

    Raises:
        InvalidLayoutError: nothing to compute.
    """
    stages = estimate(run).stages
    worst = max(stages, key=lambda s: s.peak_bytes)
    interval = peak_interval(run, worst)
    return MemoryResult(
        peak_gib=_round(worst.peak_bytes),
        capacity_gib=round(run.gpu.memory_gib, 3),
        fits=verdict(run, interval),
        headroom_gib=_round(run.gpu.memory_bytes - worst.peak_bytes),
        peak_stage=worst.stage,
        peak_phase=worst.phase.name,
        interval_gib=(_round(interval.low), _round(interval.high)),
        reserved_gib=_round(worst.peak_bytes * RESERVED_OVER_ALLOCATED),
        static_gib=max(_round(s.static_bytes) for s in stages),
        host_gib_per_node=_round(max(s.states.host for s in stages) * run.gpus_per_node),
        stress_peak_gib=_stressed(run, worst),
        stages=tuple(_stage(run, s) for s in stages),
        basis=BASIS,
    )


def _stage(run: Run, s: StageEstimate) -> StageMemory:
    return StageMemory(
        stage=s.stage,
        peak_gib=_round(s.peak_bytes),
        static_gib=_round(s.static_bytes),
        params_dense=s.parameters.dense,
        params_expert=s.parameters.expert,
        phase=s.phase.name,
        layers="|".join(chunk.letters for chunk in run.partition.of_rank(s.stage)),
        components={name: _round(size) for name, size in s.components.items()},
    )


def _stressed(run: Run, worst: StageEstimate) -> float:
    """Peak with one rank overloaded; equal to the peak where routing cannot move tokens."""
    moe = run.written.moe
    if not run.arch.is_moe or moe.pad_to_capacity or moe.token_imbalance >= STRESS_IMBALANCE:
        return _round(worst.peak_bytes)
    stressed = resolve(run.written.replace(moe={"token_imbalance": STRESS_IMBALANCE}))
    return _round(max(s.peak_bytes for s in estimate(stressed).stages))


def _round(n_bytes: float) -> float:
    return round(gib(n_bytes), 3)


def _sweep(config: RunConfig, text: str) -> Iterator[SweepRow]:
    field, values = parse_sweep(text)
    for value in values:
        try:
            run = resolve(config.replace(**{field: value}))
            stages = estimate(run).stages
        except MoeError as error:
            yield SweepRow(value=str(value), problem=error.message)
            continue
        worst = max(stages, key=lambda s: s.peak_bytes)
        shown = length_text(value) if field.startswith("seq") and isinstance(value, int) else str(value)
        yield SweepRow(
            value=shown,
            peak_gib=_round(worst.peak_bytes),
            fits=verdict(run, peak_interval(run, worst)),
            peak_stage=worst.stage,
        )


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """("seq_length=4k..1M") -> ("seq_length", [4096, 8192, ...]); `a..b` doubles from a to b, commas list values.

    Raises:
        BadValueError: not FIELD=VALUES, or more than 64 values.
    """
    field, _, values = text.partition("=")
    if not field.strip() or not values.strip():
        raise BadValueError(
            f"--sweep must be FIELD=VALUES, got {shorten(text)}.",
            given=text,
            allowed=["seq_length=4k..1M", "cp=1,2,4,8"],
        )
    out: list[Any] = []
    for part in values.split(","):
        low, dots, high = part.strip().partition("..")
        if not dots:
            out.append(_sweep_value(low))
            continue
        start, stop = parse_length(low, "sweep start"), parse_length(high, "sweep end")
        while start <= stop and len(out) <= MAX_SWEEP:
            out.append(start)
            start *= 2
    if not 0 < len(out) <= MAX_SWEEP:
        raise BadValueError(f"--sweep takes 1 to {MAX_SWEEP} values, got {len(out)}.", given=text)
    return field.strip(), out


def _sweep_value(text: str) -> Any:
    try:
        return parse_length(text)
    except BadValueError:
        return text
