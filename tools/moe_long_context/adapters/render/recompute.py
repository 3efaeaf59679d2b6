"""Text of `recompute`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import findings, table


def blocks(answer: Any) -> list[RenderableType]:
    """The recommendation, the frontier, the advice."""
    r = answer.result
    if r.recommended is None:
        head = f"nothing fits {r.capacity_gib:.1f} GiB"
    else:
        row = next(c for c in r.choices if _same(c, r.recommended))
        offload = (
            f", optimizer on the host {row.optimizer_offload_fraction:.0%}" if row.optimizer_offload_fraction else ""
        )
        head = (
            f"recompute {row.label}{offload}: {row.peak_gib:.1f} GiB of {r.capacity_gib:.1f} ({row.fits}), "
            f"step time x{row.step_time_ratio:.3f} (modelled)"
        )
    out: list[RenderableType] = [Text(head, style="bold"), Text("")]
    rows = [
        (c.label, f"{c.optimizer_offload_fraction:.0%}", c.peak_gib, c.saves_gib, f"{c.step_time_ratio:.3f}", c.fits,
         f"stage {c.peak_stage}, {c.peak_phase}")
        for c in sorted(r.choices, key=lambda c: -c.peak_gib)
        if c.frontier
    ]  # fmt: skip
    out.append(table(("recompute", "offload", "peak GiB", "saves GiB", "step time x", "fits", "peak at"), rows))
    out += [Text(f"- {text}") for text in r.advice]
    return [*out, *findings(answer.findings)]


def _same(choice: Any, wanted: Any) -> bool:
    same = choice.granularity == wanted.granularity and choice.modules == wanted.modules
    return bool(same and choice.optimizer_offload_fraction == wanted.offload["optimizer_cpu_offload_fraction"])
