"""Asks the rules what the framework would refuse, and how they would repair it."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.errors import MoeError, UnknownNameError
from moe_long_context.results import Finding
from moe_long_context.rules import all_rules, check, errors_only


def _judged(run: Run) -> Run:
    """The run, or the same run on the newest versions where the rules were not read from the ones given."""
    v = run.written.versions
    if v.megatron_core is None and v.megatron_bridge is None:
        return run
    try:
        errors_only(run)
        check(run)
    except UnknownNameError:
        newest = {"megatron_core": None, "megatron_bridge": None}
        return resolve(run.written.replace(versions=newest), partial=bool(run.missing))
    return run


def findings_of(run: Run) -> tuple[Finding, ...]:
    """Every finding about a run, and what leaves no layout to compute where no rule speaks of it."""
    found = check(_judged(run))
    known = {finding.rule for finding in found if finding.severity == "error"}
    return (*found, *(() if known else _structural(run)))


def error_rules(run: Run) -> frozenset[str]:
    """The ids of the rules that refuse a run."""
    found = frozenset(errors_only(_judged(run)))
    return found or frozenset(finding.rule for finding in _structural(run))


def repair_of(rule: str, run: Run) -> dict[str, Any] | None:
    """The change by which a rule repairs a run, None when it has none."""
    unit = all_rules().get(rule)
    if unit is None or unit.repair is None:
        return None
    try:
        return unit.repair(run) or None
    except MoeError:
        return None


def _structural(run: Run) -> tuple[Finding, ...]:
    found = []
    for rule, test in (("world-size", run.require_mesh), ("layers-div-pp", lambda: run.partition)):
        try:
            test()
        except MoeError as error:
            found.append(Finding(rule=rule, severity="error", message=error.message, fix=error.fix))
    return tuple(found)
