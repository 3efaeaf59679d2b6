"""Rules: what the released frameworks refuse or get wrong, each a unit in `families/`, checked offline over a `Run`."""

from __future__ import annotations

from moe_long_context.rules.registry import all_rules, check, errors_only, rule_named

__all__ = ["all_rules", "check", "errors_only", "rule_named"]
