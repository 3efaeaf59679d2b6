"""Where the skill's files are, and putting them where an agent looks for skills.

Only the one entry named like the skill, in the agent's own skills folder, is ever made, replaced or removed.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from moe_long_context.errors import InputError

SKILL = "nemo-mbridge-perf-moe-long-context"


def skill_folder() -> Path:
    """The folder that holds SKILL.md.

    Raises:
        InputError: neither the wheel nor a checkout holds it.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / ".agents" / "skills" / SKILL, package.parents[1]):
        if (folder / "SKILL.md").is_file():
            return folder
    raise InputError("The skill's files are not part of this installation.", fix="reinstall moe-long-context")


AGENTS = {"claude": ".claude", "codex": ".codex", "cursor": ".cursor", "agents": ".agents"}
"""Agent to the folder, under the home or the project, that holds its `skills` folder."""
PARTS = ("SKILL.md", "card.yaml", "skill")
MARK = ".installed-by-moe-long-context"


@dataclass(frozen=True)
class Target:
    """One place of the skill: the entry, and where it comes from."""

    entry: Path
    source: Path

    @property
    def state(self) -> str:
        """`absent`, `link` or `copy` (current), `stale` (ours, to be renewed), or `foreign`."""
        if self.entry.is_symlink():
            if self.entry.resolve() == self.source.resolve():
                return "link"
            return "stale" if not self.entry.exists() else "foreign"
        if not self.entry.exists():
            return "absent"
        if not (self.entry / MARK).is_file():
            return "foreign"
        return "copy" if _listing(self.entry) == _listing(self.source) and self._same() else "stale"

    def _same(self) -> bool:
        names = _listing(self.source)
        return filecmp.cmpfiles(self.source, self.entry, names, shallow=False)[0] == names


def target(agent: str, root: Path) -> Target:
    """The skill's place for an agent below `root` (a home or a project).

    Raises:
        InputError: a link on the way leads out of `root`.
    """
    entry = root / AGENTS[agent] / "skills" / SKILL
    if not entry.parent.resolve().is_relative_to(root.resolve()):
        raise InputError(
            f"{entry.parent} is a link out of {root}; nothing was changed.",
            given=str(entry.parent),
            fix="remove the link, or install where it leads by hand",
        )
    return Target(entry, skill_folder())


def install(place: Target, copy: bool) -> bool:
    """Link or copy the skill there in one step; False when it already was so.

    Raises:
        InputError: something that is not ours stands there.
    """
    state = place.state
    if state == ("copy" if copy else "link"):
        return False
    _refuse_foreign(place, state)
    place.entry.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.entry.with_name(f".{SKILL}.new-{os.getpid()}")
    try:
        if copy:
            _copy(place.source, fresh)
        else:
            fresh.symlink_to(place.source.resolve(), target_is_directory=True)
        _replace(place.entry, fresh)
    finally:
        _remove(fresh)
    return True


def uninstall(place: Target) -> bool:
    """Remove the skill from there; False when it was not there.

    Raises:
        InputError: something that is not ours stands there.
    """
    state = place.state
    _refuse_foreign(place, state)
    _remove(place.entry)
    return state != "absent"


def _refuse_foreign(place: Target, state: str) -> None:
    if state == "foreign":
        raise InputError(
            f"{place.entry} was not made by this command; nothing was changed.",
            given=str(place.entry),
            fix="move it away, then try again",
        )


def _listing(folder: Path) -> list[str]:
    def files() -> Iterator[Path]:
        for part in PARTS:
            path = folder / part
            yield from (f for f in path.rglob("*") if f.is_file()) if path.is_dir() else (path,)

    return sorted(str(file.relative_to(folder)) for file in files() if file.is_file())


def _copy(source: Path, to: Path) -> None:
    for name in _listing(source):
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, to / name)
    (to / MARK).write_text("moe-long-context install --uninstall removes this folder\n", encoding="utf-8")


def _replace(entry: Path, fresh: Path) -> None:
    """Rename over a link; a folder cannot be renamed over, so it first steps aside."""
    aside = entry.with_name(f".{SKILL}.old-{os.getpid()}")
    if entry.is_dir() and not entry.is_symlink():
        entry.rename(aside)
    elif entry.is_symlink() and not fresh.is_symlink():
        entry.unlink()
    fresh.replace(entry)
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)
