"""Layer (a): every step of every case calls the real function; its JSON is compared with the expected values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import moe_long_context.tools as tools
from moe_long_context.evaluation.cases import Case, Step, skill_root
from moe_long_context.evaluation.grading import Grade, holds

PATHS = ("config", "a", "b", "log", "snapshot")


def resolved_args(args: dict[str, Any], root: Path) -> dict[str, Any]:
    """Arguments with the skill's own files as absolute paths; anything that is no file stays as written."""
    out = dict(args)
    for name in PATHS:
        value = out.get(name)
        if isinstance(value, str) and "\n" not in value and len(value) < 200 and (root / value).is_file():
            out[name] = str(root / value)
    return out


def call(step: Step, root: Path) -> dict[str, Any]:
    """The JSON object of the step's tool."""
    args = resolved_args(step.args, root)
    function = getattr(tools, step.tool)
    sources = [args.pop(name) for name in ("config", "a", "b") if name in args]
    answer: dict[str, Any] = function(*sources, **args).model_dump(mode="json")
    return answer


def grade_tools(case: Case) -> list[Grade]:
    """All grades of one case; a tool that raises fails its step."""
    root = skill_root()
    grades = []
    for number, step in enumerate(case.steps, 1):
        try:
            document = call(step, root)
        except Exception as error:  # a tool must never raise: that is what is graded here
            grades.append(Grade(case.id, "tool", f"{number}. {step.tool} answers", False, repr(error)[:200]))
            continue
        for expect in step.expect:
            passed, seen = holds(expect, document)
            text = f"{number}. {step.tool}: {expect.path} {expect.op} {expect.value}"
            grades.append(Grade(case.id, "tool", text, passed, seen))
    return grades
