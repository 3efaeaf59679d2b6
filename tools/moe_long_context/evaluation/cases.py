"""The eval cases: where they lie, their two published shapes, and what one looks like once read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moe_long_context.catalog.loader import first_problem
from moe_long_context.errors import BadValueError, UnreadableFileError

SKILL = "nemo-mbridge-perf-moe-long-context"
Bucket = Literal["explicit", "implicit", "contextual", "negative"]
MAX_EVALS_BYTES = 8 << 20


class Strict(BaseModel):
    """Frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Expect(Strict):
    """One fact that an answer must hold. `path` walks the JSON of the answer; `x[].y` collects y over a list."""

    path: str
    op: Literal["eq", "in", "near", "min", "max", "has", "lacks"]
    value: Any
    tolerance: float = Field(default=0.0, ge=0, description="relative, for `near`")
    source: str = Field(default="", description="where the expected value comes from")


class Step(Strict):
    """One tool call that a good agent makes, and what the answer must hold."""

    tool: str
    args: dict[str, Any] = {}
    expect: tuple[Expect, ...] = ()
    told: tuple[str, ...] = Field(default=(), description="words that the text shown to the model must contain")


class Case(Strict):
    """One eval case in the public agent-skills shape, with the deterministic part in `steps`."""

    id: str
    prompt: str
    expected_output: str
    assertions: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    expected_skill: str | None = None
    expected_script: str | None = None
    bucket: Bucket = "explicit"
    lang: Literal["en", "zh"] = "en"
    steps: tuple[Step, ...] = ()
    must: tuple[str, ...] = Field(default=(), description="patterns that a live answer must match")
    must_not: tuple[str, ...] = Field(default=(), description="patterns that a live answer must not match")
    source: str = ""


def skill_root() -> Path:
    """The folder with SKILL.md: the checkout, or the copy inside an installed package.

    Raises:
        UnreadableFileError: neither is there.
    """
    package = Path(__file__).resolve().parents[1]
    for root in (package.parents[1], package / ".agents" / "skills" / SKILL):
        if (root / "SKILL.md").is_file():
            return root
    message = "The skill's folder is not beside this package."
    raise UnreadableFileError(message, given=str(package), fix="run in a checkout")


def default_evals() -> Path:
    """The shipped evals.json."""
    return skill_root() / "evals" / "evals.json"


def load_cases(path: Path | None = None) -> tuple[Case, ...]:
    """Cases of a file in the public or in the older flat shape.

    Raises:
        UnreadableFileError, BadValueError: not such a file.
    """
    where = path or default_evals()
    try:
        if where.stat().st_size > MAX_EVALS_BYTES:
            raise BadValueError(f"{where.name} is larger than {MAX_EVALS_BYTES} bytes.", given=str(where))
        document = json.loads(where.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"{where} is no evals file: {error}.", given=str(where)) from None
    held = document.get("evals") if isinstance(document, dict) else None
    rows = from_flat(document) if isinstance(document, list) else held
    if not isinstance(rows, list):
        raise BadValueError(f"{where.name} has no list `evals`.", given=str(where), allowed=["skill_name", "evals"])
    try:
        cases = tuple(Case.model_validate(row) for row in rows)
    except ValidationError as error:
        raise BadValueError(f"{where.name}: {first_problem(error)}.", given=str(where)) from None
    repeated = {case.id for case in cases if sum(other.id == case.id for other in cases) > 1}
    if repeated:
        raise BadValueError(f"{where.name} has repeated ids.", given=sorted(repeated))
    return cases


def from_flat(rows: list[Any]) -> list[dict[str, Any]]:
    """The older flat shape (question, ground_truth, expected_behavior) as the public one."""
    return [
        {
            "id": row.get("id"),
            "prompt": row.get("question"),
            "expected_output": row.get("ground_truth"),
            "assertions": row.get("expected_behavior") or [],
            "expected_skill": row.get("expected_skill"),
            "expected_script": row.get("expected_script"),
            "bucket": "explicit" if row.get("expected_skill") else "negative",
        }
        for row in rows
        if isinstance(row, dict)
    ]


def to_flat(cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """The older flat shape, for runners that read only that."""
    return [
        {
            "id": case.id,
            "question": case.prompt,
            "expected_skill": case.expected_skill,
            "expected_script": case.expected_script,
            "ground_truth": case.expected_output,
            "expected_behavior": list(case.assertions),
        }
        for case in cases
    ]
