"""Writes the smoke twin as a program: a real ConfigContainer, and one training step of the model it provides."""

from __future__ import annotations

from pathlib import Path

from moe_long_context.config.resolve import Run
from moe_long_context.recipes.bridge_python import bridge_script

MAIN = '\n\nif __name__ == "__main__":'


def smoke_script(twin: Run) -> str:
    """The text of the program for an already scaled-down run (`smoke.smoke_run`)."""
    head, _, _ = bridge_script(twin).rpartition(MAIN)
    step = (Path(__file__).parent / "templates" / "smoke_step.txt").read_text(encoding="utf-8")
    return head + step
