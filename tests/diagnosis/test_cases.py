"""Public failure reports, each as a synthetic log in the real format: the cause, the fixes and the questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_long_context.tools import diagnose_failure

from . import make_log

CASES = yaml.safe_load((Path(__file__).parent / "cases.yaml").read_text(encoding="utf-8"))


def log_of(recipe: dict[str, Any]) -> str | None:
    """The text of a log from a case's recipe; None without one."""
    lines: list[str] = []
    norms = recipe.get("grad_norms", [])
    for number in range(1, recipe.get("steps", 0) + 1):
        norm = norms[number - 1] if norms else 1.2
        lines.append(make_log.step(number, tflops=recipe.get("tflops", 210.0), grad_norm=norm))
    if "oom" in recipe:
        more = {k: recipe[k] for k in ("unused", "total", "pools", "others", "version") if k in recipe}
        lines += make_log.oom(*recipe["oom"], **more)
    if "error" in recipe:
        lines += make_log.traceback(*recipe["error"])
    for line in recipe.get("lines", []):
        lines += {"nccl_timeout": [make_log.nccl_timeout()], "host_oom": make_log.host_oom()}.get(line, [line])
    return "\n".join(lines) + "\n" if lines else None


def answer_of(case: dict[str, Any]) -> Any:
    """The tool's answer as JSON."""
    log = log_of(case.get("log", {}))
    answer = diagnose_failure(dict(case["config"]), log=log, symptom=case.get("symptom", ""))
    assert answer.ok, answer.error
    return answer.model_dump(mode="json")["result"]


def failures(case: dict[str, Any], result: dict[str, Any]) -> list[str]:
    """Expectations that are not met."""
    expect = case["expect"]
    causes = [cause["cause"] for cause in result["causes"]]
    tags = {tag for fix in result["fixes"] for tag in fix["tags"]}
    wrong = []
    if "top1" in expect and causes[0] != expect["top1"]:
        wrong.append(f"top1 {causes[:3]}")
    if "any_of" in expect and not set(causes[:3]) & set(expect["any_of"]):
        wrong.append(f"any_of {causes[:3]}")
    if "fix_any" in expect and not tags & set(expect["fix_any"]):
        wrong.append(f"fix_any {sorted(tags)}")
    wrong += [f"fix_all {tag} not in {sorted(tags)}" for tag in expect.get("fix_all", []) if tag not in tags]
    wrong += [f"never {tag}" for tag in expect.get("never", []) if _recommended(tag, result, tags)]
    wrong += [f"asks {name}" for name in expect.get("asks", []) if name not in result["missing"]]
    axes = {step["axis"] for step in result["bisect_plan"]}
    wrong += [f"bisect {axis}" for axis in expect.get("bisect", []) if axis not in axes]
    return wrong


def _recommended(tag: str, result: dict[str, Any], tags: set[str]) -> bool:
    if tag == "claim_imbalance_as_certain":
        return any(c["cause"] == "expert_imbalance" and c["confidence"] > 0.8 for c in result["causes"])
    if tag.endswith("_as_only_fix"):
        return tags == {tag.removesuffix("_as_only_fix")}
    if tag.endswith("_as_first_fix"):
        return bool(result["fixes"]) and result["fixes"][0]["tag"] == tag.removesuffix("_as_first_fix")
    return tag in tags


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_public_report_is_diagnosed(case: dict[str, Any]) -> None:
    """The cause, the fixes and the open questions that the thread in `source` supports."""
    assert failures(case, answer_of(case)) == []
