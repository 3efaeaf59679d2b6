"""Text of `diagnose`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import findings, table


def blocks(answer: Any) -> list[RenderableType]:
    """Causes, fixes in order, what to ask for."""
    r = answer.result
    out: list[RenderableType] = []
    if r.causes:
        out.append(Text(f"likeliest cause: {r.causes[0].cause}. {r.causes[0].because}", style="bold"))
        rows = [(c.cause, f"{c.confidence:.2f}", c.because) for c in r.causes[:5]]
        out += [Text(""), table(("cause", "confidence", "because"), rows)]
    else:
        out.append(Text("no cause could be told from what was given", style="bold"))
    if r.fixes:
        fixes = [(f.change, f.saves_gib, f.cost, f.fits) for f in r.fixes[:8]]
        out += [Text(""), table(("fix, in order", "saves GiB", "cost", "fits"), fixes)]
    if r.missing:
        out.append(Text("missing: " + "; ".join(f"{m} ({r.how_to_get.get(m, '')})" for m in r.missing[:10])))
    return [*out, *findings(answer.findings)]
