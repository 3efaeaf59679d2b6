"""Layer (b): the scripted model drives the real agent; and the layer itself fails what it should fail."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import StructuredTool

from moe_long_context.evaluation.cases import Case, Expect, Step, load_cases
from moe_long_context.evaluation.grading import holds
from moe_long_context.evaluation.recheck import recipe_problem
from moe_long_context.evaluation.trajectory import agent_tools, grade_trajectory

CASES = load_cases()


@pytest.fixture(scope="module")
def tools() -> list[Any]:
    """The ten LangChain tools."""
    pytest.importorskip("moe_long_context.adapters.langchain")
    return agent_tools()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_agent_walks_every_case(case: Case, tools: list[Any]) -> None:
    """Calls, order, arguments, text budget, full result and emitted recipe hold in a real agent run."""
    assert [f"{g.text}: {g.evidence}" for g in grade_trajectory(case, tools) if not g.passed] == []


def _case(expect: dict[str, Any]) -> Case:
    step = Step(tool="estimate_memory", args={"tp": 2}, expect=(Expect.model_validate(expect),))
    return Case(id="x", prompt="p", expected_output="e", steps=(step,))


def _tool(answer: Any) -> StructuredTool:
    def run(tp: int) -> Any:
        """A stand-in."""
        if isinstance(answer, Exception):
            raise answer
        return answer

    return StructuredTool.from_function(run, name="estimate_memory", response_format="content_and_artifact")


def test_a_wrong_number_fails() -> None:
    """The artifact is compared, not the text."""
    case = _case({"path": "result.peak_gib", "op": "near", "value": 10, "tolerance": 0.01})
    right = grade_trajectory(case, [_tool(("10 GiB", {"result": {"peak_gib": 10.05}}))])
    wrong = grade_trajectory(case, [_tool(("10 GiB", {"result": {"peak_gib": 11}}))])
    assert all(g.passed for g in right) and not all(g.passed for g in wrong)


def test_an_exception_that_ends_the_run_fails() -> None:
    """langchain 1.x lets a tool's exception end the agent; that must be seen."""
    grades = grade_trajectory(_case({"path": "ok", "op": "eq", "value": True}), [_tool(RuntimeError("boom"))])
    assert [g.text for g in grades if not g.passed] == ["the run ends by itself"]


def test_an_endless_answer_fails() -> None:
    """The text for the model has a budget."""
    grades = grade_trajectory(_case({"path": "ok", "op": "eq", "value": True}), [_tool(("x" * 6000, {"ok": True}))])
    assert [g.text for g in grades if not g.passed] == ["estimate_memory: text within 1500 tokens"]


def test_a_missing_tool_fails() -> None:
    """A case whose tool is not there cannot pass."""
    assert not grade_trajectory(_case({"path": "ok", "op": "eq", "value": True}), [])[0].passed


@pytest.mark.parametrize(
    ("path", "op", "value", "passed"),
    [
        ("a.b", "eq", 2, True), ("a.c", "eq", None, False), ("r[].x", "has", [1, 2], True), ("r[].x", "lacks", 3, True),
        ("r.1.x", "min", 2, True), ("r.1.x", "max", 1, False), ("t", "has", ["lo", "he"], True),
        ("a.b", "in", [1, 2], True),
        ("a", "near", 1, False),
    ],
)  # fmt: skip
def test_expectations(path: str, op: Any, value: Any, passed: bool) -> None:
    """Each operator, true and false, worked out by hand."""
    document = {"a": {"b": 2}, "r": [{"x": 1}, {"x": 2}], "t": "hello"}
    assert holds(Expect(path=path, op=op, value=value), document)[0] == passed


@pytest.mark.parametrize(
    ("path", "text", "sound"),
    [
        ("a.py", "def build_config():\n    return 1\n", True),
        ("a.py", "def build_config(:\n", False),
        ("a.py", "x = 1\n", False),
        ("a.yaml", "model: qwen3-30b-a3b\ngpu: H100\nnum_gpus: 7\nseq_length: 4096\nep: 8\n", False),
    ],
)
def test_recipes_are_rechecked(path: str, text: str, sound: bool) -> None:
    """Seven GPUs hold no eight expert ranks; a script without build_config is no recipe."""
    assert (recipe_problem({"result": {"files": [{"path": path, "text": text}]}}) == "") == sound
