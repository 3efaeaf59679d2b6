"""Answers as short text for people and models. One module per tool (`render/<command>.py`, function `blocks`).

The verdict stands first, then the tables, findings, and what was assumed.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

MARKS = {"error": "error  ", "warning": "warning", "info": "info   "}
MAX_WIDTH = 132


def table(headers: Iterable[str], rows: Iterable[Iterable[Any]], title: str = "") -> Table:
    """A plain table; numbers to the right."""
    out = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    body = [[cell(value) for value in row] for row in rows]
    for index, name in enumerate(headers):
        numeric = all(_is_number(row[index]) for row in body) if body else False
        out.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        out.add_row(*[Text(text) for text in row])
    return out


def cell(value: Any) -> str:
    """A value as table text."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _is_number(text: str) -> bool:
    return text == "-" or text.replace(",", "").replace(".", "", 1).lstrip("+-").isdigit()


def bar(share: float, width: int = 24) -> str:
    """A bar of `share` (0 to 1) of `width` characters."""
    filled = max(0, min(width, round(share * width)))
    return "█" * filled + "·" * (width - filled)


def findings(items: Iterable[Any], limit: int = 20) -> list[RenderableType]:
    """Findings, one line each and its fix below."""
    shown = list(items)
    out: list[RenderableType] = []
    for item in shown[:limit]:
        out.append(Text(f"{MARKS[item.severity]} {item.rule}: {item.message}"))
        if item.fix:
            out.append(Text(f"        fix: {item.fix}"))
    if len(shown) > limit:
        out.append(Text(f"... and {len(shown) - limit} more (--json has all)"))
    return out


def render(answer: Any, command: str, width: int | None = None) -> str:
    """The whole answer as text, at most `width` columns wide."""
    module = f"moe_long_context.adapters.render.{command}"
    own = (Path(__file__).parent / f"{command}.py").is_file()
    blocks = import_module(module).blocks(answer) if own else _generic(answer)
    if answer.assumptions:
        blocks = [*blocks, Text(""), Text("assumed: " + "; ".join(answer.assumptions), style="dim")]
    columns = width or min(shutil.get_terminal_size((110, 40)).columns, MAX_WIDTH)
    buffer = io.StringIO()
    console = Console(file=buffer, width=columns, color_system=None, highlight=False)
    for block in blocks:
        console.print(block)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _generic(answer: Any) -> list[RenderableType]:
    data = answer.result.model_dump(mode="json")
    rows = [(name, value) for name, value in data.items() if not isinstance(value, list | dict)]
    return [table(("field", "value"), rows), *findings(answer.findings)]
