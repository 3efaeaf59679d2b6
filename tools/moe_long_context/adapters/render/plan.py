"""Text of `plan`."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import findings, table
from moe_long_context.units import length_text

SIZES = (
    ("TP", "tensor_model_parallel_size"), ("CP", "context_parallel_size"), ("PP", "pipeline_model_parallel_size"),
    ("EP", "expert_model_parallel_size"), ("MBS", "micro_batch_size"), ("GBS", "global_batch_size"),
)  # fmt: skip


def blocks(answer: Any) -> list[RenderableType]:
    """Best plans, why the first, what the rest failed on."""
    r = answer.result
    if not r.plans:
        return _nothing(r)
    first = r.plans[0]
    c = first.config
    head = (
        f"best of {r.searched:,} layouts for {c['model']} at {length_text(c['seq_length'])} "
        f"on {c['num_gpus']} {c['gpu']}: "
        f"{first.throughput.model_tflops_per_gpu:.0f} TFLOP/s per GPU, {first.memory.peak_gib:.1f} of "
        f"{first.memory.capacity_gib:.1f} GiB ({first.memory.fits}; modelled)"
    )
    rows = [_row(p) for p in r.plans]
    names = (
        "",
        *(n for n, _ in SIZES),
        "VPP",
        "CP comm",
        "recompute",
        "offload",
        "peak GiB",
        "fits",
        "TFLOP/s",
        "tokens/s",
    )
    out: list[RenderableType] = [Text(head, style="bold"), Text(""), table(names, rows), Text("")]
    out.append(Text(f"why: {first.why}"))
    layout = c.get("pipeline_model_parallel_layout")
    if layout:
        out.append(Text(f"layout: {layout}"))
    out.append(Text(r.rule_of_thumb))
    out.append(Text("not shown: " + ", ".join(f"{n:,} {reason}" for reason, n in r.rejected.items())))
    return [*out, *findings(first.findings, 6)]


def _row(p: Any) -> tuple[Any, ...]:
    c = p.config
    recompute = c.get("recompute") or {}
    label = "+".join(recompute.get("modules") or ()) or recompute.get("granularity") or "none"
    offload = (c.get("optimizer") or {}).get("cpu_offload_fraction") or 0
    stages = p.memory.stages
    vpp = stages[0].layers.count("|") + 1
    return (
        "*" if p.pareto else "", *(c.get(key) for _, key in SIZES), vpp, c.get("cp_comm_type") or "-", label,
        f"{offload:.0%}", p.memory.peak_gib, p.memory.fits, p.throughput.model_tflops_per_gpu,
        p.throughput.tokens_per_s_per_gpu,
    )  # fmt: skip


def _nothing(r: Any) -> list[RenderableType]:
    w = r.wall
    head = f"nothing fits: the wall is {w.wall}"
    head += f", {w.missing_gib:.1f} GiB too much on the closest layout" if w.missing_gib > 0 else ""
    out: list[RenderableType] = [Text(head, style="bold")]
    if w.ways:
        out.append(table(("what gets through", "peak GiB"), [(x.change, x.peak_gib) for x in w.ways]))
    out.append(Text("tried: " + ", ".join(f"{n:,} {reason}" for reason, n in r.rejected.items())))
    return out
