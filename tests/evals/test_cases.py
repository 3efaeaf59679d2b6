"""The eval cases: valid, complete, readable in both shapes, and passing offline."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

from moe_long_context.errors import InputError
from moe_long_context.evaluation.cases import Case, default_evals, from_flat, load_cases, skill_root, to_flat
from moe_long_context.evaluation.mutants import MUTANTS, Mutant, caught
from moe_long_context.evaluation.tool_layer import grade_tools

CASES = load_cases()


def test_the_file_is_valid() -> None:
    """evals.json against the shipped schema."""
    schema = json.loads((skill_root() / "skill" / "schemas" / "evals.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(json.loads(default_evals().read_text(encoding="utf-8")))


def test_four_buckets_two_languages_sixty_cases() -> None:
    """Size and spread of the set, with the publisher's own published case."""
    buckets = Counter(case.bucket for case in CASES)
    assert len(CASES) >= 60 and min(buckets.values()) >= 10 and len(buckets) == 4
    assert sum(case.lang == "zh" for case in CASES) >= 8
    assert any("evals/evals.json" in case.source for case in CASES)


def test_only_negative_cases_expect_no_skill() -> None:
    """A negative case names no skill and calls no tool; every other names this one and calls some."""
    for case in CASES:
        assert (case.expected_skill is None) == (case.bucket == "negative") == (not case.steps)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_attached_files_exist(case: Case) -> None:
    """Every attached file ships with the skill."""
    assert all((skill_root() / name).is_file() for name in case.files)


@pytest.mark.parametrize("case", [case for case in CASES if case.steps], ids=lambda case: case.id)
def test_the_tools_give_what_the_case_expects(case: Case) -> None:
    """Layer (a): each expected value holds in the real function's answer."""
    assert [f"{g.text}: {g.evidence}" for g in grade_tools(case) if not g.passed] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant: Mutant) -> None:
    """An eval set that a wrong tool passes is no eval set."""
    assert caught(mutant, CASES)


def test_both_shapes_hold_the_same_cases(tmp_path: Path) -> None:
    """The older flat shape, written and read back, keeps prompt, expectation and skill."""
    path = tmp_path / "flat.json"
    path.write_text(json.dumps(to_flat(CASES)), encoding="utf-8")
    back = load_cases(path)
    assert [(c.id, c.prompt, c.expected_output, c.expected_skill) for c in back] == [
        (c.id, c.prompt, c.expected_output, c.expected_skill) for c in CASES
    ]


def test_the_publishers_flat_case_is_read() -> None:
    """Keys as in NVIDIA-NeMo/Megatron-Bridge skills/*/evals/evals.json."""
    row = {"id": "x", "question": "q", "expected_skill": "s", "expected_script": None, "ground_truth": "g"}
    assert Case.model_validate(from_flat([row])[0]).prompt == "q"


@pytest.mark.parametrize("text", ["", "{", "[]x", '{"evals": 3}', '{"evals": [{"id": "a"}]}', "5"])
def test_a_broken_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    """Wrong input is an error of the family, never a traceback."""
    path = tmp_path / "evals.json"
    path.write_text(text)
    with pytest.raises(InputError):
        load_cases(path)
