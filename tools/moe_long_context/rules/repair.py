"""Applies the rules' own repairs until nothing repairable is left; every edit names its rule and its effect."""

from __future__ import annotations

from typing import Any, NamedTuple

from moe_long_context.config.resolve import resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.rules.registry import check, rule_named

MAX_ROUNDS = 8


class Edit(NamedTuple):
    """One changed field."""

    rule: str
    field: str
    before: Any
    after: Any
    effect: str


def repair(config: RunConfig) -> tuple[RunConfig, list[Edit]]:
    """The configuration after all repairs, and the edits in order; rules without a repair stay."""
    edits: list[Edit] = []
    for _ in range(MAX_ROUNDS):
        step = _one_round(config, {edit.rule for edit in edits})
        if step is None:
            break
        config, made = step
        edits += made
    return config, edits


def _one_round(config: RunConfig, done: set[str]) -> tuple[RunConfig, list[Edit]] | None:
    run = resolve(config, partial=True)
    for finding in check(run):
        rule = rule_named(finding.rule)
        if rule.repair is None or rule.id in done or finding.severity == "info":
            continue
        changes = rule.repair(run)
        fixed = config.replace(**changes)
        if fixed == config:
            continue
        before, after = config.written(), fixed.written()
        names = [n for n in {**before, **after} if before.get(n) != after.get(n)]
        return fixed, [Edit(rule.id, n, before.get(n), after.get(n), rule.effect) for n in names]
    return None
