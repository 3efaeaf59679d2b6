"""Public reports: the rule that explains each one fires with at least its severity, and the repaired form is quiet."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_long_context.config.resolve import resolve
from moe_long_context.results import SEVERITIES
from moe_long_context.rules.registry import all_rules, check

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text(encoding="utf-8"))


def severities(config: dict[str, Any]) -> dict[str, str]:
    return {finding.rule: finding.severity for finding in check(resolve(config, partial=True))}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_report(case: dict[str, Any]) -> None:
    """What must be flagged is flagged, what must stay quiet is quiet, and a working form has no error."""
    found = severities(case["config"])
    for wanted in case.get("flag", ()):
        rule, _, least = wanted.partition(">=")
        assert rule in found, f"{rule} did not fire; found {found}"
        assert SEVERITIES.index(found[rule]) <= SEVERITIES.index(least), f"{rule} is {found[rule]}, wanted {least}"
    assert not set(case.get("quiet", ())) & set(found)
    if case.get("clean"):
        assert "error" not in found.values(), found


def test_cases_name_real_rules() -> None:
    """Every rule id in the cases exists, and every case has a source and says something."""
    names = {w.partition(">=")[0] for case in CASES for key in ("flag", "quiet") for w in case.get(key, ())}
    assert names <= set(all_rules())
    assert all(c["source"].startswith("https://") for c in CASES)
    assert all(c.get("flag") or c.get("quiet") or c.get("clean") for c in CASES)
