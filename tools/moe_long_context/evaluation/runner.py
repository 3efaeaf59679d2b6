"""Runs the chosen layers over the cases, with progress told to the caller."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from moe_long_context.evaluation import triggers as discoverability
from moe_long_context.evaluation.cases import Case
from moe_long_context.evaluation.grading import Grade
from moe_long_context.evaluation.mutants import MUTANTS, caught
from moe_long_context.evaluation.report import Run
from moe_long_context.evaluation.tool_layer import grade_tools


def run_evals(
    cases: tuple[Case, ...],
    layers: tuple[str, ...],
    *,
    model: str | None = None,
    runs: int = 3,
    triggers: Path | None = None,
    with_mutants: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> Run:
    """Grades of the chosen layers; the live layer only with a model by name.

    Raises:
        MoeError: see `evaluation.live` and `evaluation.triggers`.
    """
    grades: list[Grade] = []
    for layer in layers:
        tell(f"layer {layer}: {len(cases)} cases")
        grades += _layer(layer, cases, model, runs, tell)
    mutants = {}
    for mutant in MUTANTS if with_mutants else ():
        mutants[mutant.name] = (mutant.what, len(caught(mutant, cases)))
        tell(f"mutant {mutant.name}: {mutants[mutant.name][1]} cases fail")
    scored, notes = _triggers(triggers)
    return Run(cases, grades, mutants, scored, model if model and "live" in layers else "", notes)


def _layer(
    layer: str, cases: tuple[Case, ...], model: str | None, runs: int, tell: Callable[[str], None]
) -> list[Grade]:
    if layer == "tool":
        return [grade for case in cases for grade in grade_tools(case)]
    if layer == "trajectory":
        from moe_long_context.evaluation.trajectory import agent_tools, grade_trajectory

        tools = agent_tools()
        return [grade for case in cases for grade in grade_trajectory(case, tools)]
    from moe_long_context.evaluation.live import grade_live

    return grade_live(cases, model or "", runs, tell)


def _triggers(path: Path | None) -> tuple[dict[str, Any] | None, tuple[str, ...]]:
    rows = discoverability.load_triggers(path)
    if discoverability.available():
        return discoverability.score(rows), ()
    return None, (f"triggers: {discoverability.NOT_SCORED}",)
