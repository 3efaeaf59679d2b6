"""Layer (b): a scripted chat model drives the real LangChain agent over the real tools.

The script plays the steps of a case, so this layer grades everything between a model and a number: that the tools exist
under their names, that their schemas take the arguments, that results come back as text for the model and as the full
object beside it, that errors do not end the run, and that an emitted recipe validates. It says nothing about how well a
real model chooses; that is the live layer.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from moe_long_context.adapters.fields import run_fields
from moe_long_context.evaluation.cases import Case, Step, skill_root
from moe_long_context.evaluation.grading import Grade, holds
from moe_long_context.evaluation.recheck import recipe_problem
from moe_long_context.evaluation.tool_layer import resolved_args
from moe_long_context.units import parse_length

ANSWER_TOKENS = 1500
"""Budget of one answer's text for the model (contract of the LangChain tools)."""
CHARACTERS_PER_TOKEN = 3.0
"""Cautious: English prose has about 4, tables and numbers fewer."""


class ScriptedChatModel(GenericFakeChatModel):
    """Plays prepared turns; binding tools changes nothing in what it says."""

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """The script already names its tools."""
        return self


def agent_tools() -> list[Any]:
    """The ten LangChain tools."""
    return list(import_module("moe_long_context.adapters.langchain").get_tools())


def agent_args(step: Step, accepted: dict[str, Any]) -> dict[str, Any]:
    """The step's arguments under the names that the tool's schema takes; nested sections become their flat fields."""
    names = {name: field for field in run_fields() for name in field.names}
    paths = {field.path: field for field in run_fields()}
    out: dict[str, Any] = {}
    for key, value in resolved_args(step.args, skill_root()).items():
        if isinstance(value, dict) and key not in accepted:
            flat = {f"{key}.{inner}": item for inner, item in value.items()}
        else:
            flat = {key: value}
        for path, item in flat.items():
            field = names.get(path) or paths.get(path)
            spelled = [n for n in (path, *(field.names if field else ())) if n in accepted]
            if not spelled and path in ("config", "a", "b"):  # LangChain keeps the name `config` for itself
                spelled = sorted(
                    n for n in accepted if n.startswith("config") and (path == "config" or n.endswith(path))
                )
            out[spelled[0] if spelled else path] = parse_length(item) if field and field.path == "seq_length" else item
    return out


def _turns(case: Case, tools: dict[str, Any]) -> list[AIMessage]:
    turns = [
        AIMessage(
            "", tool_calls=[{"name": step.tool, "args": agent_args(step, tools[step.tool].args), "id": f"call-{n}"}]
        )
        for n, step in enumerate(case.steps, 1)
    ]
    return [*turns, AIMessage(case.expected_output)]


def grade_trajectory(case: Case, tools: list[Any]) -> list[Grade]:
    """All grades of one case run through the agent; an exception in the run fails it."""
    by_name = {tool.name: tool for tool in tools}
    missing = sorted({step.tool for step in case.steps} - set(by_name))
    if missing:
        return [Grade(case.id, "trajectory", "the agent has the tools", False, f"no {missing}")]
    agent = create_agent(ScriptedChatModel(messages=iter(_turns(case, by_name))), tools)
    try:
        messages = agent.invoke({"messages": [HumanMessage(case.prompt)]})["messages"]
    except Exception as error:  # an exception that ends an agent's run is exactly the fault graded here
        return [Grade(case.id, "trajectory", "the run ends by itself", False, repr(error)[:300])]
    called = [call["name"] for message in messages for call in getattr(message, "tool_calls", None) or ()]
    grades = [_grade(case, "calls in order", called == [step.tool for step in case.steps], ", ".join(called))]
    replies = [message for message in messages if isinstance(message, ToolMessage)]
    for step, reply in zip(case.steps, replies, strict=False):
        grades += _grade_reply(case, step, reply)
    return grades


def _grade_reply(case: Case, step: Step, reply: ToolMessage) -> list[Grade]:
    text, document = str(reply.content), _document(reply.artifact)
    tokens = len(text) / CHARACTERS_PER_TOKEN
    grades = [
        _grade(case, f"{step.tool}: full result beside the text", document is not None, text[:160]),
        _grade(
            case, f"{step.tool}: text within {ANSWER_TOKENS} tokens", tokens <= ANSWER_TOKENS, f"about {tokens:.0f}"
        ),
    ]
    grades += [_grade(case, f"{step.tool}: tells {word!r}", word in text, text[:160]) for word in step.told]
    if document is None:
        return grades
    for expect in step.expect:
        passed, seen = holds(expect, document)
        grades.append(_grade(case, f"{step.tool}: {expect.path} {expect.op} {expect.value}", passed, seen))
    if step.tool == "emit_recipe":
        problem = recipe_problem(document)
        grades.append(_grade(case, "the emitted recipe validates", not problem, problem))
    return grades


def _document(artifact: Any) -> dict[str, Any] | None:
    if hasattr(artifact, "model_dump"):
        artifact = artifact.model_dump(mode="json")
    return json.loads(json.dumps(artifact)) if isinstance(artifact, dict) else None


def _grade(case: Case, text: str, passed: bool, evidence: str) -> Grade:
    return Grade(case.id, "trajectory", text, passed, evidence)
