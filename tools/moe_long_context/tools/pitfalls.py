"""`check_pitfalls`: what starts but hurts: memory, speed, silent faults."""

from __future__ import annotations

from pydantic import Field

from moe_long_context.config.resolve import resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.results import Frozen
from moe_long_context.rules.registry import check
from moe_long_context.tools._tool import Draft, Options, tool


class PitfallOptions(Options):
    """`check_pitfalls` has no options of its own."""


class PitfallResult(Frozen):
    """Counts; the findings stand beside the result."""

    silent_faults: int = Field(description="errors that the framework does not report")
    warnings: int
    notes: int
    missing: tuple[str, ...] = ()


@tool("pitfalls", PitfallOptions, PitfallResult)
def check_pitfalls(config: RunConfig, options: PitfallOptions) -> Draft:
    """What starts but hurts: silent faults, memory and speed traps, with the fix of each."""
    run = resolve(config, partial=True)
    findings = check(run, "pitfalls")
    count = {name: sum(f.severity == name for f in findings) for name in ("error", "warning", "info")}
    result = PitfallResult(
        silent_faults=count["error"], warnings=count["warning"], notes=count["info"], missing=tuple(sorted(run.missing))
    )
    return Draft(result, findings=findings, assumptions=tuple(run.assumptions), no=count["error"] > 0)
