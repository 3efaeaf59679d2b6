"""Compares an answer's JSON with what a case expects, and holds the grades."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from moe_long_context.evaluation.cases import Expect


@dataclass(frozen=True)
class Grade:
    """One assertion of one case: passed or not, with what was seen."""

    case: str
    layer: str
    text: str
    passed: bool
    evidence: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The row that grading.json holds."""
        return dict(vars(self))


MISSING = object()


def look_up(document: Any, path: str) -> Any:
    """The value at a dotted path; `a[].b` collects b over the list a; MISSING where there is none."""
    value = document
    parts = path.split(".")
    for index, part in enumerate(parts):
        if part.endswith("[]"):
            rows = look_up(value, part[:-2])
            rest = ".".join(parts[index + 1 :])
            return [look_up(row, rest) if rest else row for row in rows] if isinstance(rows, list) else MISSING
        value = _child(value, part)
        if value is MISSING:
            return MISSING
    return value


def _child(value: Any, part: str) -> Any:
    if isinstance(value, dict):
        return value.get(part, MISSING)
    if isinstance(value, list) and part.lstrip("-").isdigit() and -len(value) <= int(part) < len(value):
        return value[int(part)]
    return MISSING


def holds(expect: Expect, document: Any) -> tuple[bool, str]:
    """Whether the fact holds, and what was found."""
    found = look_up(document, expect.path)
    if found is MISSING:
        return False, f"{expect.path} is absent"
    return _compare(expect, found), f"{expect.path} = {str(found)[:160]}"


def _compare(expect: Expect, found: Any) -> bool:
    wanted = expect.value
    if expect.op == "eq":
        return bool(found == wanted)
    if expect.op == "in":
        return found in wanted
    if expect.op in ("has", "lacks"):
        return _contains(found, wanted) == (expect.op == "has")
    if isinstance(found, bool) or not isinstance(found, int | float):
        return False
    if expect.op == "near":
        return bool(abs(found - wanted) <= expect.tolerance * abs(wanted))
    return bool(found >= wanted) if expect.op == "min" else bool(found <= wanted)


def _contains(found: Any, wanted: Any) -> bool:
    wants: Iterable[Any] = wanted if isinstance(wanted, list) else [wanted]
    if isinstance(found, str):
        return all(str(want) in found for want in wants)
    return isinstance(found, list | dict) and all(want in found for want in wants)
