"""Text of `compare`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import findings, table


def blocks(answer: Any) -> list[RenderableType]:
    """What differs and what it does."""
    r = answer.result
    if r.same:
        return [Text("the two runs are the same", style="bold")]
    training = f"; changes the training: {', '.join(r.changes_training)}" if r.changes_training else "; same training"
    out: list[RenderableType] = [Text(f"{len(r.differences)} fields differ{training}", style="bold"), Text("")]
    out.append(table(("field", "a", "b", "effect", "alone, GiB"), [_row(d) for d in r.differences[:40]]))
    m, s = r.memory, r.speed
    out.append(Text(f"peak GiB: {_pair(m.model_dump())}"))
    out.append(Text(f"speed: {_pair(s.model_dump())}"))
    return [*out, *findings(answer.findings)]


def _row(d: Any) -> tuple[Any, ...]:
    return (d.field, d.a, d.b, d.effect, d.peak_gib_alone)


def _pair(values: dict[str, Any]) -> str:
    flat = {k: v for k, v in values.items() if isinstance(v, int | float | str) and v != ""}
    return ", ".join(f"{name} {value}" for name, value in flat.items())
