"""Text of `memory`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import bar, findings, table

SAYS = {"yes": "fits", "tight": "tight: inside the error band of the capacity", "no": "does not fit"}


def blocks(answer: Any) -> list[RenderableType]:
    """Verdict, one row per stage, the peak's components, the sweep."""
    r = answer.result
    low, high = r.interval_gib
    head = (
        f"{r.peak_gib:.1f} GiB peak of {r.capacity_gib:.1f} GiB: {SAYS[r.fits]} "
        f"(modelled, 90 % band {low:.1f} to {high:.1f}; stage {r.peak_stage} at its {r.peak_phase})"
    )
    out: list[RenderableType] = [Text(head, style="bold"), Text("")]
    out.append(_stages(r))
    out += [Text(""), _components(r)]
    out.append(Text(_notes(r)))
    if r.sweep:
        out += [
            Text(""),
            table(("value", "peak GiB", "fits", "stage", ""), [_sweep(row, r.capacity_gib) for row in r.sweep]),
        ]
    return [*out, *findings(answer.findings)]


def _stages(r: Any) -> RenderableType:
    rows = [
        (s.stage, _short(s.layers), s.params_dense / 1e9, s.params_expert / 1e9,
         s.static_gib, s.peak_gib, bar(s.peak_gib / r.capacity_gib, 20), s.phase)
        for s in r.stages
    ]  # fmt: skip
    return table(("stage", "layers", "dense B", "expert B", "static GiB", "peak GiB", "of capacity", "peak at"), rows)


def _short(layers: str) -> str:
    return layers if len(layers) <= 28 else layers[:25] + "..."


def _components(r: Any) -> RenderableType:
    stage = r.stages[r.peak_stage]
    rows = [
        (name.replace("_", " "), size, bar(size / max(stage.peak_gib, 1e-9), 20), r.basis.get(name, "modelled"))
        for name, size in stage.components.items()
        if size
    ]
    return table((f"stage {stage.stage}", "GiB", "share", "basis"), rows)


def _notes(r: Any) -> str:
    text = f"reserved by the allocator about {r.reserved_gib:.1f} GiB"
    if r.host_gib_per_node:
        text += f"; host memory for offload {r.host_gib_per_node:.0f} GiB per node"
    if r.stress_peak_gib > r.peak_gib:
        text += f"; {r.stress_peak_gib:.1f} GiB if one rank gets 1.5 times the mean tokens"
    return text


def _sweep(row: Any, capacity: float) -> tuple[Any, ...]:
    if row.peak_gib is None:
        return (row.value, None, None, None, row.problem)
    return (row.value, row.peak_gib, row.fits, row.peak_stage, bar(row.peak_gib / capacity, 20))
