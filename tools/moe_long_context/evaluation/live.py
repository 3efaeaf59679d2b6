"""Layer (c): the same cases with a real model, with and without the skill. Runs only for a provider given by name.

Graded by code: which tools were called, that the words an answer must hold are there, and that forbidden ones are not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from langchain.agents import create_agent
from langchain.chat_models import init_chat_model
from langchain_core.messages import HumanMessage

from moe_long_context.errors import BadValueError
from moe_long_context.evaluation.cases import Case, skill_root
from moe_long_context.evaluation.grading import Grade
from moe_long_context.evaluation.trajectory import agent_tools

BARE_PROMPT = "You are an engineer's assistant for training large language models. Answer shortly."
MAX_ATTACHED_CHARACTERS = 20_000


def chat_model(name: str) -> Any:
    """The chat model of `provider:model`.

    Raises:
        BadValueError: the provider's package or key is missing, or the name is unknown.
    """
    try:
        return init_chat_model(name)
    except Exception as error:  # every provider package raises its own kind
        fix = "install the provider, set its key"
        raise BadValueError(f"No chat model {name!r}: {error}.", given=name, fix=fix) from None


def prompt_of(case: Case) -> str:
    """The person's words and the attached files."""
    parts = [case.prompt]
    for name in case.files:
        text = (skill_root() / name).read_text(encoding="utf-8")[:MAX_ATTACHED_CHARACTERS]
        parts.append(f"\n--- {name}\n{text}")
    return "\n".join(parts)


def grade_live(cases: tuple[Case, ...], name: str, runs: int, tell: Callable[[str], None]) -> list[Grade]:
    """Every case, `runs` times, with the skill and its tools, and without."""
    model = chat_model(name)
    skill = (skill_root() / "SKILL.md").read_text(encoding="utf-8")
    arms = {"live-with-skill": (agent_tools(), f"{BARE_PROMPT}\n\n{skill}"), "live-without-skill": ([], BARE_PROMPT)}
    grades: list[Grade] = []
    for arm, (tools, system) in arms.items():
        agent = create_agent(model, tools, system_prompt=system)
        for case in cases:
            for number in range(1, runs + 1):
                grades += _one(agent, case, arm, number)
            tell(f"{arm}: {case.id}")
    return grades


def _one(agent: Any, case: Case, arm: str, number: int) -> list[Grade]:
    try:
        messages = agent.invoke({"messages": [HumanMessage(prompt_of(case))]})["messages"]
    except Exception as error:  # a provider's failure is a failed run, not the end of all runs
        return [Grade(case.id, arm, f"run {number} answers", False, repr(error)[:300])]
    return grade_answer(case, arm, number, str(messages[-1].text), called(messages))


def called(messages: list[Any]) -> list[str]:
    """Names of the tools that a conversation called, in order."""
    return [call["name"] for message in messages for call in getattr(message, "tool_calls", None) or ()]


def grade_answer(case: Case, arm: str, number: int, answer: str, tools: list[str]) -> list[Grade]:
    """Grades of one answer, by code alone."""
    rows = [(f"matches {p}", bool(re.search(p, answer, re.I))) for p in case.must]
    rows += [(f"does not match {p}", not re.search(p, answer, re.I)) for p in case.must_not]
    if arm == "live-with-skill":
        wanted = {step.tool for step in case.steps}
        rows.append(("calls a right tool", bool(wanted & set(tools)) if wanted else not tools))
    return [Grade(case.id, arm, f"run {number}: {text}", passed, answer[:200]) for text, passed in rows]
