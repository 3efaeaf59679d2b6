"""Discovers the rules and runs them. A family is registered by its module being in `families/`."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from pathlib import Path

from moe_long_context.config.resolve import Run
from moe_long_context.errors import InvalidLayoutError, UnknownNameError
from moe_long_context.results import SEVERITIES, Finding, Severity
from moe_long_context.rules.rule import DECLARED, Rule, View
from moe_long_context.rules.versions import bridge_of, core_of, within

PITFALL_SEVERITIES = ("warning", "info")


@lru_cache(maxsize=1)
def all_rules() -> dict[str, Rule]:
    """Every rule by id, in order of family and declaration."""
    for file in sorted((Path(__file__).parent / "families").glob("[a-z]*.py")):
        import_module(f"moe_long_context.rules.families.{file.stem}")
    return dict(DECLARED)


def rule_named(name: str) -> Rule:
    """One rule by id.

    Raises:
        UnknownNameError: no such rule; carries the nearest ids.
    """
    rules = all_rules()
    if name not in rules:
        raise UnknownNameError("rule", name, rules, fix="list them with `moe-long-context rules`")
    return rules[name]


def check(run: Run, view: View = "validate") -> tuple[Finding, ...]:
    """What the rules say of a run, most severe first; `pitfalls` leaves out what the framework refuses.

    Raises:
        UnknownNameError: a framework version that the rules were not read from.
    """
    core_of(run.written), bridge_of(run.written)
    hits = {r.id: (r, message) for r in _applicable(run) if (message := _ask(r, run))}
    kept = [(r, m) for r, m in hits.values() if not any(other in hits for other in r.silenced_by)]
    findings = [_finding(r, r.severity_of(run), message) for r, message in kept]
    if view == "pitfalls":
        findings = [f for f in findings if f.severity in PITFALL_SEVERITIES or f.where == "silently"]
    return tuple(sorted(findings, key=lambda f: SEVERITIES.index(f.severity)))


def errors_only(run: Run) -> tuple[str, ...]:
    """Ids of the rules of severity error that a run breaks; quick enough to call for every planned layout."""
    candidates = (r for r in _applicable(run) if r.severity == "error" or r.escalates)
    return tuple(r.id for r in candidates if _ask(r, run) and r.severity_of(run) == "error")


def _applicable(run: Run) -> list[Rule]:
    rules = _for(core_of(run.written), run.written.frontend)
    if not run.missing:
        return list(rules)
    return [r for r in rules if not run.missing.intersection(r.needs)]


@lru_cache(maxsize=64)
def _for(core: str, frontend: str) -> tuple[Rule, ...]:
    return tuple(r for r in all_rules().values() if within(core, r.since, r.until) and frontend in r.frontends)


def _ask(r: Rule, run: Run) -> str | None:
    try:
        return r.check(run)
    except InvalidLayoutError:
        return None


def _finding(r: Rule, severity: Severity, message: str) -> Finding:
    return Finding(
        rule=r.id, severity=severity, message=message, fields=r.fields, fix=r.fix, where=r.where, versions=r.versions,
        source=r.source,
    )  # fmt: skip
