"""SKILL.md against the public specification, and every command and link in it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from moe_long_context.adapters.cli import cli

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "SKILL.md").read_text(encoding="utf-8")
FRONT: dict[str, Any] = yaml.safe_load(TEXT.split("---")[1])
ALLOWED = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.S) for line in block.strip().splitlines()]
LINKS = re.findall(r"\]\(([^)]+)\)", TEXT)


def test_frontmatter_has_only_the_specified_keys() -> None:
    """agentskills.io specification: six keys, all strings but metadata."""
    assert set(FRONT) <= ALLOWED
    assert all(isinstance(value, str) for key, value in FRONT.items() if key != "metadata")
    assert all(isinstance(value, str) for value in FRONT["metadata"].values())


def test_name_and_author_have_the_specified_form() -> None:
    """Name: lower case, hyphens, at most 64; author: `Name <mail>` (NVIDIA SkillEvaluator schema check)."""
    assert FRONT["name"] == "nemo-mbridge-perf-moe-long-context"
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", FRONT["name"]) and len(FRONT["name"]) <= 64
    assert re.fullmatch(r"[^<>]+ <[^@\s]+@[^@\s]+>", FRONT["metadata"]["author"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", FRONT["metadata"]["version"])


def test_description_says_when_and_when_not_in_budget() -> None:
    """At most 1,024 characters, the trigger words within the first 200, a not-for clause, no angle brackets."""
    text = FRONT["description"]
    assert len(text) <= 1024 and "<" not in text
    assert all(word in text[:200] for word in ("MoE", "long-context", "OOM", "128k", "CP sizing", "recompute"))
    assert "Not for" in text and "Use when" in text


def test_body_is_short_and_has_the_six_sections() -> None:
    """Agents read about 100 lines of a file at once (deepagents read_file default)."""
    assert len(TEXT.splitlines()) < 100
    for section in ("Purpose", "Prerequisites", "Instructions", "Examples", "Limitations", "Troubleshooting"):
        assert f"\n## {section}\n" in TEXT


@pytest.mark.parametrize("link", LINKS)
def test_every_link_stays_in_the_folder_and_exists(link: str) -> None:
    """A path outside the skill's folder breaks once installed."""
    target = (ROOT / link).resolve()
    assert target.is_relative_to(ROOT) and target.is_file()


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_runs(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 0 or 1 from the skill's own folder: a question answered, not wrong input."""
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    assert words[0] == "moe-long-context"
    outcome = CliRunner().invoke(cli, words[1:])
    assert outcome.exit_code in (0, 1), outcome.output[-300:]
    assert outcome.output.strip()


def test_every_tool_of_the_package_is_named() -> None:
    """The table of SKILL.md names all ten commands."""
    from moe_long_context.tools import MODULES

    assert [command for command in MODULES.values() if f"`{command}" not in TEXT] == []
