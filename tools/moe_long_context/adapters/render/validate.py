"""Text of `validate`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import findings


def blocks(answer: Any) -> list[RenderableType]:
    """Verdict line, then the findings."""
    count = {name: sum(f.severity == name for f in answer.findings) for name in ("error", "warning", "info")}
    verdict = "the framework refuses this run" if count["error"] else "nothing that the framework refuses"
    head = f"{verdict}: {count['error']} errors, {count['warning']} warnings, {count['info']} notes"
    return [Text(head, style="bold"), *findings(answer.findings, 40)]
