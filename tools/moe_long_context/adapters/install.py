"""Where the skill's files are: inside an installed wheel, or in the checkout."""

from __future__ import annotations

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
