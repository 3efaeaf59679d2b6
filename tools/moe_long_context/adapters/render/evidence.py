"""Text of `evidence`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import table


def blocks(answer: Any) -> list[RenderableType]:
    """Nearest published runs and what differs."""
    r = answer.result
    rows = [(run.id, run.distance, _measured(run), "; ".join(run.differs[:4]), run.source) for run in r.runs]
    head = Text(f"nearest of {r.searched} published runs (measured)", style="bold")
    return [head, table(("run", "distance", "measured", "differs (asked / published)", "source"), rows)]


def _measured(run: Any) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in run.measured.items()) or run.kind
