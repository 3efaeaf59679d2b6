"""The command `moe-long-context eval`: what it prints, writes, refuses, and never sends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from moe_long_context.adapters.cli import cli
from moe_long_context.errors import BadValueError
from moe_long_context.evaluation.cases import Case, load_cases, to_flat
from moe_long_context.evaluation.grading import Grade
from moe_long_context.evaluation.live import grade_answer
from moe_long_context.evaluation.report import Run, benchmark, grading

CASE = next(case for case in load_cases() if case.id == "explicit-names-zh")


def _evals(tmp_path: Path, *cases: Case) -> str:
    path = tmp_path / "evals.json"
    rows = [case.model_dump(mode="json") for case in cases]
    path.write_text(json.dumps({"skill_name": "x", "evals": rows}), encoding="utf-8")
    return str(path)


def _run(*words: str) -> tuple[int, dict[str, Any]]:
    outcome = CliRunner().invoke(cli, ["eval", *words, "--json"])
    return outcome.exit_code, json.loads(outcome.stdout)


def test_a_passing_case_ends_with_status_0_and_both_files(tmp_path: Path) -> None:
    """grading.json and BENCHMARK.md are written where told, and say that no real model ran."""
    words = ("--evals", _evals(tmp_path, CASE), "--layer", "tool", "-o", str(tmp_path / "out"))
    status, document = _run(*words)
    assert status == 0 and document["real_model"] is None
    assert document["summary"]["tool"]["assertions_passed"] == document["summary"]["tool"]["assertions"] == 2
    assert "No layer ran with a real model" in (tmp_path / "out" / "BENCHMARK.md").read_text()


def test_a_failing_case_ends_with_status_1(tmp_path: Path) -> None:
    """One wrong expectation is enough."""
    data = CASE.model_dump(mode="json")
    data["steps"][0]["expect"] = [{"path": "result.valid", "op": "eq", "value": True}]
    status, document = _run("--evals", _evals(tmp_path, Case.model_validate(data)), "--layer", "tool")
    assert status == 1 and document["summary"]["tool"]["cases_failed"] == [CASE.id]


def test_live_without_a_named_provider_is_refused() -> None:
    """Nothing is sent unless a provider was asked for by name."""
    outcome = CliRunner().invoke(cli, ["eval", "--layer", "live"])
    assert isinstance(outcome.exception, BadValueError) and "provider" in str(outcome.exception)


def test_an_unknown_layer_is_refused_with_the_known_ones() -> None:
    """The message names what is allowed."""
    outcome = CliRunner().invoke(cli, ["eval", "--layer", "judge"])
    assert isinstance(outcome.exception, BadValueError) and "tool" in outcome.exception.as_dict()["allowed"]


@pytest.mark.parametrize(
    ("answer", "tools", "failed"),
    [
        ("mla_up_proj and layernorm", ["validate_config"], 0),
        ("mla_up_proj and layernorm", [], 1),
        ("mla_up_proj", ["validate_config"], 1),
        ("mla_up_proj, layernorm; CP x EP x TP x PP <= 256", ["validate_config"], 1),
    ],
)
def test_live_answers_are_graded_by_code(answer: str, tools: list[str], failed: int) -> None:
    """Words that must and must not be there, and a right tool called."""
    assert sum(not grade.passed for grade in grade_answer(CASE, "live-with-skill", 1, answer, tools)) == failed


def test_the_report_names_the_model_that_ran() -> None:
    """BENCHMARK.md says plainly which layers had a real model."""
    run = Run((CASE,), [Grade("x", "live-with-skill", "t", False)], {}, None, "vendor:model")
    assert "vendor:model" in benchmark(run) and grading(run)["real_model"] == "vendor:model"
    assert "0 of 1" in benchmark(run)


def test_the_flat_shape_has_the_publishers_keys() -> None:
    """Keys of NVIDIA-NeMo/Megatron-Bridge skills/*/evals/evals.json."""
    keys = {"id", "question", "expected_skill", "expected_script", "ground_truth", "expected_behavior"}
    assert set(to_flat((CASE,))[0]) == keys
