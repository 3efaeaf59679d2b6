"""The ten tools for LangChain agents, and an agent with the skill loaded by progressive disclosure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from moe_long_context.adapters import schemas
from moe_long_context.adapters.install import skill_folder
from moe_long_context.tools._tool import Tool

MAX_CHARACTERS = 3600  # aims under 1,500 tokens, assuming 2.5 characters a token (not yet measured)
MAX_FILE_CHARACTERS = 20_000


def content_of(answer: Any, command: str) -> str:
    """The answer as short text for a model; cut with a note when long."""
    from moe_long_context.adapters.render import render

    if not answer.ok:
        error = answer.error
        allowed = f" Allowed: {', '.join(error.allowed[:40])}." if error.allowed else ""
        text = f"error {error.code}: {error.message}{allowed}" + (f" Try: {error.fix}." if error.fix else "")
    else:
        text = render(answer, command, width=100)
    if len(text) <= MAX_CHARACTERS:
        return text
    return text[:MAX_CHARACTERS].rsplit("\n", 1)[0] + "\n... cut here; the artifact holds the whole answer"


def get_tools() -> list[Any]:
    """The ten tools as StructuredTools: text for the model, the whole answer as artifact."""
    return [_structured(tool) for tool in schemas.tools()]


def _structured(tool: Tool) -> Any:
    from langchain_core.tools import BaseTool

    class SkillTool(BaseTool):
        """Not a StructuredTool: that one keeps an argument named `config` for itself and drops it."""

        def _run(self, **given: Any) -> tuple[str, dict[str, Any]]:
            answer = schemas.call(tool, given)
            return content_of(answer, tool.command), answer.model_dump(mode="json")

    return SkillTool(
        name=tool.name, description=tool.summary, args_schema=schemas.input_schema(tool),
        response_format="content_and_artifact",
    )  # fmt: skip


def read_skill_file(path: str) -> str:
    """A text file of the skill folder; anything outside of it is refused in words."""
    root = skill_folder().resolve()
    file = (root / path).resolve()
    inside = file.is_relative_to(root / "skill") or file in (root / "SKILL.md", root / "card.yaml")
    if not inside or not file.is_file():
        return f"error: no file {path[:200]!r} in the skill; start with SKILL.md"
    text = file.read_text(encoding="utf-8", errors="replace")
    return text if len(text) <= MAX_FILE_CHARACTERS else text[:MAX_FILE_CHARACTERS] + "\n... cut here"


def skill_prompt() -> str:
    """Name and description of the skill, for a system prompt."""
    from moe_long_context.yaml_safe import load_text

    head = load_text(Path(skill_folder() / "SKILL.md").read_text(encoding="utf-8").split("---")[1], "SKILL.md")
    return f"Skill {head['name']}: {head['description']}\nRead it with read_skill('SKILL.md') before using its tools."


def create_skill_agent(model: Any, **options: Any) -> Any:
    """A LangChain agent with the ten tools, `read_skill`, and the skill's description as system prompt."""
    from langchain.agents import create_agent
    from langchain_core.tools import StructuredTool

    reader = StructuredTool.from_function(
        read_skill_file, name="read_skill", description="Read one file of the skill, such as SKILL.md"
    )
    extra = options.pop("tools", [])
    prompt = "\n\n".join(filter(None, (options.pop("system_prompt", None), skill_prompt())))
    return create_agent(model, tools=[*get_tools(), reader, *extra], system_prompt=prompt, **options)
