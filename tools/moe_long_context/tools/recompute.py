"""`recommend_recompute`: the cheapest recompute and offload that fits, and what each choice saves and costs."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from moe_long_context.config.resolve import resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.memory.capacity import Verdict
from moe_long_context.planning.recommend import Choice, Recommendation, frontier, recommend
from moe_long_context.results import Evidence, Frozen
from moe_long_context.tools._tool import Draft, Options, tool
from moe_long_context.units import gib


class RecomputeOptions(Options):
    """Options of `recommend_recompute`."""

    top: int = Field(default=20, ge=1, le=200, description="how many choices to return beside the frontier")


class Recommended(Frozen):
    """What to set."""

    granularity: str | None
    method: str | None
    num_layers: int | None
    modules: tuple[str, ...]
    offload: dict[str, Any] = Field(description="optimizer.cpu_offload_fraction and activation modules")


class RecomputeChoiceRow(Frozen):
    """One choice at the real peak."""

    granularity: str | None
    modules: tuple[str, ...]
    label: str
    optimizer_offload_fraction: float
    peak_gib: float
    saves_gib: float = Field(description="peak without recompute minus this peak, at the run's own offload")
    step_time_ratio: float = Field(description="step time over that without recompute")
    host_gib_per_node: float
    fits: Verdict
    peak_stage: int
    peak_phase: str
    frontier: bool


class RecomputeResult(Frozen):
    """The recommendation, every choice, and where the run stands now."""

    recommended: Recommended | None
    config: dict[str, Any] | None = Field(description="the run with the recommendation set")
    choices: tuple[RecomputeChoiceRow, ...]
    baseline_peak_gib: float
    current_peak_gib: float
    current_fits: Verdict
    capacity_gib: float
    advice: tuple[str, ...]


@tool("recompute", RecomputeOptions, RecomputeResult)
def recommend_recompute(config: RunConfig, options: RecomputeOptions) -> Draft:
    """The cheapest recompute and offload set that fits, and what each choice saves and costs at the real peak."""
    run = resolve(config)
    found = recommend(run)
    best, front = found.recommended, frontier(found)
    rows = [_row(found, c, index in front) for index, c in enumerate(found.choices)]
    shown = [r for index, r in enumerate(rows) if index < options.top or r.frontier]
    result = RecomputeResult(
        recommended=_recommended(best) if best else None,
        config=best.run.written.written() if best else None,
        choices=tuple(shown),
        baseline_peak_gib=_gib(found.none),
        current_peak_gib=_gib(found.current),
        current_fits=found.current.fits,
        capacity_gib=round(run.gpu.memory_gib, 3),
        advice=tuple(_advice(found)),
    )
    return Draft(result, assumptions=tuple(run.assumptions), evidence=BASIS, no=best is None)


BASIS = (
    Evidence(
        what="measured savings on Moonlight: mla_up_proj 0.72 GB, moe_act 0.68 GB, core_attn 0.004 GB",
        basis="measured",
        source="NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-activation-recompute @067f987",
    ),
)


def _gib(c: Choice) -> float:
    return round(gib(c.peak_bytes), 3)


def _recommended(best: Choice) -> Recommended:
    r = best.recompute
    offload = {"optimizer_cpu_offload_fraction": best.offload, "activation_modules": sorted(best.run.offload_modules)}
    return Recommended(
        granularity=r.granularity, method=r.method, num_layers=r.num_layers, modules=r.modules, offload=offload
    )


def _row(found: Recommendation, c: Choice, on_frontier: bool) -> RecomputeChoiceRow:
    worst = c.memory.peak
    host = max(s.states.host for s in c.memory.stages) * c.run.gpus_per_node
    return RecomputeChoiceRow(
        granularity=c.recompute.granularity, modules=c.recompute.modules, label=c.recompute.label,
        optimizer_offload_fraction=c.offload, peak_gib=_gib(c),
        saves_gib=round(gib(found.none.peak_bytes - c.peak_bytes), 3),
        step_time_ratio=round(c.time.step_time_s / found.none.time.step_time_s, 4),
        host_gib_per_node=round(gib(host), 1), fits=c.fits, peak_stage=worst.stage, peak_phase=worst.phase.name,
        frontier=on_frontier,
    )  # fmt: skip


def _advice(found: Recommendation) -> list[str]:
    out: list[str] = []
    best, now = found.recommended, found.current
    if best is None:
        lack = min(found.choices, key=lambda c: c.peak_bytes)
        over = gib(lack.peak_bytes - lack.run.gpu.memory_bytes)
        out.append(
            f"nothing fits: the leanest choice ({lack.recompute.label}) is {over:.1f} GiB over; "
            "ask `plan` for another layout"
        )
        return out
    if now.fits == "yes" and best.time.step_time_s < 0.995 * now.time.step_time_s:
        gain = now.time.step_time_s / best.time.step_time_s - 1
        out.append(f"you can switch off part of it: {best.recompute.label} still fits and is {gain:.0%} faster")
    if found.none.fits == "yes":
        out.append("no recompute is needed")
    core = next((c for c in found.choices if c.recompute.modules == ("core_attn",) and c.offload == now.offload), None)
    if core is not None:
        saved, cost = (
            gib(found.none.peak_bytes - core.peak_bytes),
            core.time.step_time_s / found.none.time.step_time_s - 1,
        )
        out.append(
            f"core_attn alone saves {saved:.2f} GiB for {cost:.0%} more step time: not worth it with flash attention"
        )
    unmoved = [c for c in found.choices if c.recompute.modules and found.none.peak_bytes - c.peak_bytes < 1e7]
    if unmoved:
        names = sorted({c.recompute.label for c in unmoved})[:4]
        out.append(f"no saving at the peak: {', '.join(names)} (the peak lies in another phase or stage)")
    return out
