"""`Rule`: one thing that the framework refuses or gets wrong, as one self-contained unit.

A rule is declared by decorating its predicate; the predicate returns the message, or None when there is nothing to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from moe_long_context.config.resolve import Run
from moe_long_context.results import Severity

Where = Literal[
    "config", "command line", "process groups", "model build", "first forward", "first backward", "optimizer step",
    "data", "launch", "silently", "derived",
]  # fmt: skip
View = Literal["validate", "pitfalls"]
Effect = Literal["execution-only", "changes memory", "convergence-changing"]
Predicate = Callable[[Run], str | None]
Repair = Callable[[Run], dict[str, Any]]


@dataclass(frozen=True)
class Rule:
    """Data of one rule; `check` is its predicate, `family` its module."""

    id: str
    severity: Severity
    title: str
    why: str
    fix: str
    where: Where
    fields: tuple[str, ...]
    source: str
    fails: dict[str, Any]
    passes: dict[str, Any]
    check: Predicate
    family: str
    since: str | None = None
    until: str | None = None
    frontends: tuple[str, ...] = ("bridge", "megatron_lm")
    needs: tuple[str, ...] = ()
    silenced_by: tuple[str, ...] = ()
    repair: Repair | None = None
    effect: Effect = "execution-only"
    correction: str = ""
    escalates: Callable[[Run], bool] | None = None

    def severity_of(self, run: Run) -> Severity:
        """The severity for this run: `error` where `escalates` says that it is worse than the rule's own."""
        return "error" if self.escalates is not None and self.escalates(run) else self.severity

    @property
    def versions(self) -> str:
        """The range of megatron-core releases as text."""
        if self.since is None and self.until is None:
            return "all known"
        return f"{self.since or '0.14.0'} to {self.until or 'main'}"


DECLARED: dict[str, Rule] = {}


def rule(
    id: str,
    severity: Severity,
    title: str,
    *,
    why: str,
    fix: str,
    where: Where,
    fields: str,
    source: str,
    fails: dict[str, Any],
    passes: dict[str, Any],
    **more: Any,
) -> Callable[[Predicate], Predicate]:
    """Declare a rule. `fields` are RunConfig or dotted Bridge fields, separated by blanks; `fails` and `passes` are run
    configurations over the family's base; `needs` are facts without which the rule stays silent."""

    def decorate(check: Predicate) -> Predicate:
        if id in DECLARED:
            raise ValueError(f"rule {id} is declared twice")
        DECLARED[id] = Rule(
            id, severity, title, why, fix, where, tuple(fields.split()), source, fails, passes, check,
            check.__module__.rsplit(".", 1)[-1].replace("_", "-"), **more,
        )  # fmt: skip
        return check

    return decorate
