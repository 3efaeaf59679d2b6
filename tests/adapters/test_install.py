"""`install` puts the skill where an agent looks, again and again with one outcome, and touches nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from moe_long_context.adapters.commands.install import command
from moe_long_context.adapters.install import AGENTS, SKILL, skill_folder
from moe_long_context.errors import InputError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def _run(*words: str, agent: str = "claude") -> Result:
    return CliRunner().invoke(command, ["--agent", agent, *words])


def _tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("agent", sorted(AGENTS))
@pytest.mark.parametrize("copy", [[], ["--copy"]])
def test_installed_skill_is_readable_current_and_removable(home: Path, agent: str, copy: list[str]) -> None:
    """Install, check, install again, uninstall: one entry, then none."""
    entry = home / AGENTS[agent] / "skills" / SKILL
    assert _run("--check", agent=agent).exit_code == 1
    assert "installed" in _run(*copy, agent=agent).output
    assert (entry / "SKILL.md").read_bytes() == (skill_folder() / "SKILL.md").read_bytes()
    assert (entry / "skill" / "references" / "recompute.md").is_file() and entry.is_symlink() is not bool(copy)
    assert _run("--check", agent=agent).exit_code == 0
    assert "already current" in _run(*copy, agent=agent).output
    assert [path.name for path in entry.parent.iterdir()] == [SKILL]
    assert "removed" in _run("--uninstall", agent=agent).output
    assert list(entry.parent.iterdir()) == [] and (skill_folder() / "SKILL.md").is_file()


def test_dry_run_changes_nothing(home: Path) -> None:
    """Not even the agent's folder is made."""
    assert "would link" in _run("--dry-run").output and _tree(home) == []


def test_changed_copy_is_stale_and_renewed_and_turns_into_a_link(home: Path) -> None:
    """A copy of another version is noticed; switching between copy and link works both ways."""
    entry = home / ".claude" / "skills" / SKILL
    _run("--copy")
    (entry / "SKILL.md").write_text("old", encoding="utf-8")
    assert _run("--check").output.startswith("stale") and "installed" in _run("--copy").output
    assert _run("--check").exit_code == 0
    _run()
    assert entry.is_symlink()
    _run("--copy")
    assert not entry.is_symlink() and [path.name for path in entry.parent.iterdir()] == [SKILL]


@pytest.mark.parametrize("words", [[], ["--copy"], ["--uninstall"]])
def test_what_somebody_else_put_there_stays(home: Path, words: list[str]) -> None:
    """A folder or link of another maker is refused and left as it is."""
    entry = home / ".claude" / "skills" / SKILL
    entry.mkdir(parents=True)
    (entry / "mine.txt").write_text("mine", encoding="utf-8")
    before = _tree(home)
    assert isinstance(_run(*words).exception, InputError) and _tree(home) == before


def test_link_out_of_the_folder_is_refused(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A skills folder that leads elsewhere is not followed."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (home / ".claude").mkdir()
    (home / ".claude" / "skills").symlink_to(elsewhere)
    assert isinstance(_run().exception, InputError) and list(elsewhere.iterdir()) == []


def test_project_scope_stays_in_the_current_folder(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--scope project` writes below the current folder only."""
    project = home / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    assert _run("--scope", "project").exit_code == 0
    assert [path.name for path in home.iterdir()] == ["project"] and (project / ".claude/skills" / SKILL).is_symlink()
