"""Text of `throughput`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import bar, findings, table


def blocks(answer: Any) -> list[RenderableType]:
    """Speed with its band, where the step's time goes, the bottleneck."""
    r = answer.result
    low, high = r.interval_tflops
    head = (
        f"{r.model_tflops_per_gpu:.0f} model TFLOP/s per GPU (modelled, 90 % band {low:.0f} to {high:.0f}), "
        f"{r.tokens_per_s_per_gpu:,.0f} tokens/s per GPU, step {r.step_time_s:.2f} s, "
        f"MFU {100 * r.mfu:.1f} % of {r.mfu_peak}"
    )
    b = r.breakdown
    parts = {"compute": b.compute_s, **_communication(b), "pipeline bubble": b.bubble_s, "recompute": b.recompute_s,
             "launch": b.launch_s, "optimizer": b.optimizer_s}  # fmt: skip
    rows = [(name, s, bar(s / r.step_time_s, 20)) for name, s in parts.items() if s > 0.0005 * r.step_time_s]
    out: list[RenderableType] = [Text(head, style="bold"), Text(""), table(("step", "s", "share"), rows)]
    out.append(
        Text(f"bottleneck: {r.bottleneck.name} ({100 * r.bottleneck.share_of_step:.0f} %). {r.bottleneck.change}")
    )
    return [*out, *findings(answer.findings)]


def _communication(b: Any) -> dict[str, float]:
    return {f"exposed {name.removesuffix('_s').replace('_', ' ')}": value for name, value in b.exposed_communication}
