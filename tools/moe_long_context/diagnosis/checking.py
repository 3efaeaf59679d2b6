"""Asks the rules what the framework would refuse; the mesh and the pipeline split where no rule speaks."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.errors import MoeError
from moe_long_context.results import Finding


def findings_of(run: Run) -> tuple[Finding, ...]:
    """Every finding about a run."""
    from moe_long_context import rules

    return tuple(rules.check(run)) if hasattr(rules, "check") else _structural(run)


def error_rules(run: Run) -> frozenset[str]:
    """The ids of the rules that refuse a run."""
    return frozenset(finding.rule for finding in findings_of(run) if finding.severity == "error")


def _structural(run: Run) -> tuple[Finding, ...]:
    found = []
    for rule, check in (("world-size", run.require_mesh), ("layers-div-pp", lambda: run.partition)):
        try:
            check()
        except MoeError as error:
            found.append(Finding(rule=rule, severity="error", message=error.message, fix=error.fix))
    return tuple(found)
