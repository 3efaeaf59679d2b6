"""The tool `compare_configs`: what changed between two runs and what it does to memory, speed and validity."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from moe_long_context.config.resolve import resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.diagnosis.bisect import bisect_plan
from moe_long_context.diagnosis.checking import findings_of
from moe_long_context.diagnosis.compare import (
    Difference,
    Effect,
    alone,
    differences,
    timing,
    unknown_sides,
    version_changes,
    worst_stage,
)
from moe_long_context.memory.estimate import StageEstimate
from moe_long_context.results import Evidence, Finding, Frozen
from moe_long_context.speed import StepTime
from moe_long_context.tools._tool import Draft, Options, tool
from moe_long_context.units import gib


class CompareOptions(Options):
    """Options of `compare_configs`."""

    attribute: bool = Field(default=True, description="also estimate each difference alone")


class FieldDifference(Frozen):
    """One field that differs."""

    field: str
    a: Any
    b: Any
    effect: Effect = Field(
        description="execution: same training; rounding: other number formats; training: another run"
    )
    why: str = ""
    defaulted: bool = Field(description="neither side wrote it; the defaults differ")
    peak_gib_alone: float | None = Field(
        description="change of the peak when only this field of a is changed; modelled"
    )


class MemoryDelta(Frozen):
    """Peak of both sides on the stage that peaks, GiB, modelled."""

    a_peak_gib: float | None
    b_peak_gib: float | None
    delta_gib: float | None
    a_peak_stage: int | None
    b_peak_stage: int | None
    components: dict[str, float] = Field(default_factory=dict, description="b minus a by component")


class SpeedDelta(Frozen):
    """Step time of both sides, seconds, modelled."""

    a_step_time_s: float | None
    b_step_time_s: float | None
    ratio: float | None = Field(description="tokens per second and GPU of b over a; above 1 = b is faster")
    components_s: dict[str, float] = Field(default_factory=dict, description="b minus a by cause, seconds per step")


class Validity(Frozen):
    """Rules that refuse each side."""

    a: tuple[str, ...]
    b: tuple[str, ...]
    only_in_b: tuple[str, ...]
    fixed_in_b: tuple[str, ...]


class CompareResult(Frozen):
    """Everything that differs and what it does."""

    same: bool
    differences: tuple[FieldDifference, ...]
    changes_training: tuple[str, ...]
    memory: MemoryDelta
    speed: SpeedDelta
    validity: Validity
    version_changes: tuple[dict[str, str], ...]
    bisect_plan: tuple[dict[str, Any], ...]
    missing: tuple[str, ...]


@tool("compare", CompareOptions, CompareResult, configs=2)
def compare_configs(a: RunConfig, b: RunConfig, options: CompareOptions) -> Draft:
    """Compare two runs field by field: training or execution, memory, speed, validity, and how to bisect them."""
    found = differences(a, b)
    effects = alone(a, found) if options.attribute else {}
    versions = version_changes(a, b)
    findings_a, findings_b = (findings_of(resolve(side, partial=True)) for side in (a, b))
    result = CompareResult(
        same=not found and not versions,
        differences=tuple(_field(d, effects) for d in found),
        changes_training=tuple(d.field for d in found if d.effect == "training"),
        memory=_memory(worst_stage(a), worst_stage(b)),
        speed=_speed(timing(a), timing(b)),
        validity=_validity(findings_a, findings_b),
        version_changes=tuple(change._asdict() for change in versions),
        bisect_plan=_plan(a, b, found),
        missing=tuple(unknown_sides(a, b)),
    )
    notes = (*_assumed("a", a), *_assumed("b", b))
    return Draft(result, findings=findings_b, assumptions=notes, evidence=_EVIDENCE)


_EVIDENCE = (
    Evidence(what="memory and speed of both sides", basis="modelled", source="estimate_memory, estimate_throughput"),
    Evidence(what="what changed between releases", basis="exact", source="megatron-core 0.14.0 to 0.19.2 wheels"),
)


def _assumed(label: str, config: RunConfig) -> tuple[str, ...]:
    return tuple(f"{label}: {text}" for text in resolve(config, partial=True).assumptions)


def _field(d: Difference, effects: dict[str, float]) -> FieldDifference:
    change = effects.get(d.field)
    return FieldDifference(
        field=d.field, a=d.before, b=d.after, effect=d.effect, why=d.why, defaulted=d.defaulted,
        peak_gib_alone=None if change is None else round(gib(change), 3),
    )  # fmt: skip


def _memory(a: StageEstimate | None, b: StageEstimate | None) -> MemoryDelta:
    both = a is not None and b is not None
    return MemoryDelta(
        a_peak_gib=_gib(a.peak_bytes) if a else None,
        b_peak_gib=_gib(b.peak_bytes) if b else None,
        delta_gib=_gib(b.peak_bytes - a.peak_bytes) if a and b else None,
        a_peak_stage=a.stage if a else None,
        b_peak_stage=b.stage if b else None,
        components={n: _gib(b.components[n] - a.components[n]) for n in a.components} if both and a and b else {},
    )


def _gib(n_bytes: float) -> float:
    return round(gib(n_bytes), 3)


def _speed(a: StepTime | None, b: StepTime | None) -> SpeedDelta:
    both = a is not None and b is not None
    return SpeedDelta(
        a_step_time_s=round(a.step_time_s, 4) if a else None,
        b_step_time_s=round(b.step_time_s, 4) if b else None,
        ratio=round(b.tokens_per_s_per_gpu / a.tokens_per_s_per_gpu, 4) if a and b else None,
        components_s=_causes(a, b) if both and a and b else {},
    )


def _causes(a: StepTime, b: StepTime) -> dict[str, float]:
    pairs = {
        "compute": (a.compute_s, b.compute_s), "recompute": (a.recompute_s, b.recompute_s),
        "tensor_parallel": (a.tp_s, b.tp_s), "expert_parallel": (a.ep_s, b.ep_s),
        "context_parallel": (a.cp_s, b.cp_s), "pipeline": (a.pp_s, b.pp_s), "data_parallel": (a.dp_s, b.dp_s),
        "bubble": (a.bubble_s, b.bubble_s), "launch": (a.launch_s, b.launch_s),
        "optimizer": (a.optimizer_s, b.optimizer_s),
    }  # fmt: skip
    return {name: round(after - before, 4) for name, (before, after) in pairs.items()}


def _validity(a: tuple[Finding, ...], b: tuple[Finding, ...]) -> Validity:
    left, right = ({f.rule for f in side if f.severity == "error"} for side in (a, b))
    return Validity(
        a=tuple(sorted(left)), b=tuple(sorted(right)), only_in_b=tuple(sorted(right - left)),
        fixed_in_b=tuple(sorted(left - right)),
    )  # fmt: skip


def _plan(a: RunConfig, b: RunConfig, found: list[Difference]) -> tuple[dict[str, Any], ...]:
    changed = tuple(f"{d.field}: {d.before} (a), {d.after} (b)" for d in found if not d.field.startswith("versions."))
    container = " / ".join(str(side.versions.torch or side.versions.transformer_engine or "?") for side in (a, b))
    source = " / ".join(str(side.versions.megatron_core or side.versions.megatron_bridge or "?") for side in (a, b))
    plan = bisect_plan(changed, "" if "?" in container else container, "" if "?" in source else source)
    return tuple(step._asdict() for step in plan)
