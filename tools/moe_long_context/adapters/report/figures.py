"""Figures of the report: memory by stage, the step by cause, the recompute frontier, the length sweep.

Each takes the JSON of a tool's result and only places its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import Element

from markupsafe import Markup

from moe_long_context.adapters.report import svg
from moe_long_context.units import length_text, parse_length

WIDTH, LEFT, RIGHT = 860, 92, 84
ROW = 26
MAX_STAGES = 64
PLOT_HEIGHT = 300
Scale = Callable[[float], float]


def components(memory: dict[str, Any]) -> list[str]:
    """Names of the components that any stage holds, in the tool's order."""
    return [n for n in memory["stages"][0]["components"] if any(s["components"][n] for s in memory["stages"])]


def memory_bars(memory: dict[str, Any]) -> Markup:
    """One stacked bar for each stage, the capacity as a line, the band of the peak as a bracket."""
    stages, names = memory["stages"][:MAX_STAGES], components(memory)
    high = max(memory["capacity_gib"], memory["interval_gib"][1], *(s["peak_gib"] for s in stages)) * 1.02
    scale = _scale(0, high, LEFT, WIDTH - RIGHT)
    height = ROW * len(stages) + 52
    root = svg.canvas(WIDTH, height, "Peak memory of each pipeline stage by component, in GiB, against the capacity")
    for index, stage in enumerate(stages):
        y = 24 + ROW * index
        svg.text(root, LEFT - 8, y + 14, f"stage {stage['stage']}", "end")
        x = scale(0)
        for name in names:
            size = stage["components"][name]
            width = scale(size) - scale(0)
            svg.rect(root, (x, y, width, ROW - 8), f"c-{name}", f"{name.replace('_', ' ')}: {size:.2f} GiB")
            x += width
        svg.text(root, max(x, scale(0)) + 6, y + 14, f"{stage['peak_gib']:.1f}", "strong halo")
        if stage["stage"] == memory["peak_stage"]:
            low, top = (scale(v) for v in memory["interval_gib"])
            svg.line(root, ((low, y + ROW - 5), (top, y + ROW - 5)), "band")
    _capacity(root, scale(memory["capacity_gib"]), memory["capacity_gib"], height - 26)
    _x_axis(root, scale, high, height - 26, "GiB")
    return svg.markup(root)


def _capacity(root: Element, x: float, gib: float, bottom: float) -> None:
    svg.line(root, ((x, 16), (x, bottom)), "capacity")
    svg.text(root, x, 11, f"capacity {gib:.1f} GiB", "middle strong")


def step_parts(throughput: dict[str, Any]) -> list[tuple[str, float]]:
    """(cause, seconds) of a step as the tool splits it, empty causes left out."""
    b = throughput["breakdown"]
    parts = [("compute", b["compute_s"]), ("recompute", b["recompute_s"])]
    parts += [(f"{n.removesuffix('_s')} communication", v) for n, v in b["exposed_communication"].items()]
    parts += [("bubble", b["bubble_s"]), ("launch", b["launch_s"]), ("optimizer", b["optimizer_s"])]
    return [(name.replace("_", " "), seconds) for name, seconds in parts if seconds]


def step_bar(throughput: dict[str, Any]) -> Markup:
    """The step as one bar, divided by cause."""
    parts = step_parts(throughput)
    high = sum(seconds for _, seconds in parts)
    scale = _scale(0, high, 14, WIDTH - 20)
    root = svg.canvas(WIDTH, 66, "Seconds of one step by cause")
    x = scale(0)
    for name, seconds in parts:
        width = scale(seconds) - scale(0)
        svg.rect(root, (x, 6, width, 30), f"p-{name.replace(' ', '_')}", f"{name}: {seconds:.3g} s")
        x += width
    _x_axis(root, scale, high, 42, "s")
    return svg.markup(root)


def frontier(recompute: dict[str, Any]) -> Markup:
    """Peak against step time of every recompute choice; those on the frontier joined."""
    rows = [c for c in recompute["choices"] if c["step_time_ratio"] is not None]
    xs, ys = [c["step_time_ratio"] for c in rows], [c["peak_gib"] for c in rows]
    x = _scale(min(xs), max(max(xs), min(xs) + 0.01), LEFT, WIDTH - RIGHT)
    y = _scale(0, max(*ys, recompute["capacity_gib"]) * 1.05, PLOT_HEIGHT - 40, 14)
    root = svg.canvas(WIDTH, PLOT_HEIGHT, "Peak memory in GiB against step time, one point for each recompute choice")
    _y_axis(root, y, max(*ys, recompute["capacity_gib"]) * 1.05)
    _ceiling(root, y(recompute["capacity_gib"]), recompute["capacity_gib"])
    best = sorted((c for c in rows if c["frontier"]), key=lambda c: c["step_time_ratio"])
    svg.line(root, ((x(c["step_time_ratio"]), y(c["peak_gib"])) for c in best), "curve")
    for c in rows:
        tip = f"{c['label']}: {c['peak_gib']:.1f} GiB, step time x{c['step_time_ratio']:.3f}"
        svg.dot(root, x(c["step_time_ratio"]), y(c["peak_gib"]), _dot_style(c), tip)
    for value in _ticks(x, min(xs), max(xs)):
        svg.text(root, x(value), PLOT_HEIGHT - 22, f"x{value:.3g}", "middle")
    svg.text(root, (LEFT + WIDTH - RIGHT) / 2, PLOT_HEIGHT - 4, "step time against no recompute", "middle soft")
    return svg.markup(root)


def _dot_style(choice: dict[str, Any]) -> str:
    return f"dot fits-{choice['fits']}" + ("" if choice["frontier"] else " faint")


def sweep(memory: dict[str, Any], own: int) -> Markup:
    """Peak by sequence length, both axes by their own; points without an answer are left to the table."""
    rows = [(parse_length(r["value"]), r) for r in memory["sweep"] if r["peak_gib"] is not None]
    high = max([r["peak_gib"] for _, r in rows] + [memory["capacity_gib"]]) * 1.08
    logs = [math.log2(n) for n, _ in rows]
    x = _scale(min(logs), max(max(logs), min(logs) + 1), LEFT + 20, WIDTH - RIGHT)
    y = _scale(0, high, PLOT_HEIGHT - 40, 14)
    root = svg.canvas(WIDTH, PLOT_HEIGHT, "Peak memory in GiB by sequence length, the layout kept")
    _y_axis(root, y, high)
    _ceiling(root, y(memory["capacity_gib"]), memory["capacity_gib"])
    svg.line(root, ((x(at), y(r["peak_gib"])) for at, (_, r) in zip(logs, rows, strict=True)), "curve")
    for at, (length, r) in zip(logs, rows, strict=True):
        svg.dot(root, x(at), y(r["peak_gib"]), f"dot fits-{r['fits']}", f"{length:,} tokens: {r['peak_gib']:.1f} GiB")
        svg.text(root, x(at), y(r["peak_gib"]) - 10, f"{r['peak_gib']:.1f}", "middle halo")
        svg.text(root, x(at), PLOT_HEIGHT - 22, length_text(length), "middle strong" if length == own else "middle")
    svg.text(root, (LEFT + WIDTH - RIGHT) / 2, PLOT_HEIGHT - 4, "tokens in a sequence", "middle soft")
    return svg.markup(root)


def _scale(low: float, high: float, start: float, end: float) -> Scale:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _nice(high: float, count: int = 6) -> float:
    raw = high / count
    power = 10 ** math.floor(math.log10(raw)) if raw > 0 else 1
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw)


def _ticks(scale: Scale, low: float, high: float) -> list[float]:
    step = _nice(max(high - low, 0.01))
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def _x_axis(root: Element, scale: Scale, high: float, y: float, unit: str) -> None:
    for value in _ticks(scale, 0, high):
        svg.line(root, ((scale(value), y), (scale(value), y + 4)), "tick")
        svg.text(root, scale(value), y + 18, f"{value:g} {unit}" if value == 0 else f"{value:g}", "middle soft")


def _y_axis(root: Element, scale: Scale, high: float) -> None:
    for value in _ticks(scale, 0, high):
        svg.line(root, ((LEFT, scale(value)), (WIDTH - RIGHT, scale(value))), "grid")
        svg.text(root, LEFT - 8, scale(value) + 4, f"{value:g}" + (" GiB" if not value else ""), "end soft")


def _ceiling(root: Element, y: float, gib: float) -> None:
    svg.line(root, ((LEFT, y), (WIDTH - RIGHT, y)), "capacity")
    svg.text(root, WIDTH - RIGHT + 4, y + 4, f"{gib:.1f} GiB", "strong")
