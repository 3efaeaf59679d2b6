"""`plan_layout`: which parallel layouts fit, ranked; the smallest GPU count; why the others fail."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.planning.explain import Wall, ways_through, why
from moe_long_context.planning.limits import limits_of
from moe_long_context.planning.search import Plan, SearchResult, search
from moe_long_context.planning.smallest import smallest_count
from moe_long_context.results import Evidence, Finding, Frozen
from moe_long_context.rules.registry import check
from moe_long_context.tools._tool import Draft, Options, tool
from moe_long_context.tools.memory import MemoryResult, memory_result
from moe_long_context.tools.throughput import ThroughputResult, throughput_result
from moe_long_context.units import gib


class PlanOptions(Options):
    """Options of `plan_layout`; every size given in the run configuration is pinned."""

    top: int = Field(default=5, ge=1, le=50, description="how many plans to return")
    forbid: tuple[str, ...] = Field(
        default=(), max_length=32, description="FIELD=VALUE that must not be used; repeatable"
    )
    min_gpus: bool = Field(default=False, description="search the smallest GPU count that fits")
    min_dp: int = Field(default=1, ge=1, le=1 << 20, description="keep at least this much data parallelism")
    objective: Literal["throughput", "memory"] = Field(default="throughput", description="what the best plan maximises")
    no_offload: bool = Field(default=False, description="never offload the optimizer to the host")
    cross_domain_tp: bool = Field(default=False, description="also try TP beyond the NVLink domain")


class PlannedLayout(Frozen):
    """One plan: a complete run configuration with both estimates."""

    config: dict[str, Any]
    memory: MemoryResult
    throughput: ThroughputResult
    findings: tuple[Finding, ...]
    why: str
    pareto: bool = Field(description="no other plan shown is both faster and smaller")


class WayThrough(Frozen):
    """One change that makes it fit."""

    change: str
    peak_gib: float
    config: dict[str, Any]


class WallReport(Frozen):
    """What stops every layout."""

    wall: str
    missing_gib: float
    closest: dict[str, Any]
    ways: tuple[WayThrough, ...]


class PlanResult(Frozen):
    """Plans best first, and what became of every candidate."""

    plans: tuple[PlannedLayout, ...]
    min_gpus: int | None = Field(
        description="smallest GPU count: searched with min_gpus, else the first plan's own minimum"
    )
    searched: int
    rejected: dict[str, int]
    rule_of_thumb: str
    wall: WallReport | None = None


@tool("plan", PlanOptions, PlanResult)
def plan_layout(config: RunConfig, options: PlanOptions) -> Draft:
    """Which parallel layouts of this model at this length fit these GPUs, ranked, and why the others fail."""
    counted: int | None = None
    if options.min_gpus:
        counted = smallest_count(
            config, options.forbid, options.min_dp, not options.no_offload, options.cross_domain_tp
        )
        if counted is not None:
            config = config.model_copy(update={"num_gpus": counted})
    run = resolve(config)
    limits = limits_of(config, run, options.forbid, options.min_dp, options.cross_domain_tp)
    found = search(config, limits, options.top, not options.no_offload, options.objective)
    plans = _pareto([_planned(plan) for plan in found.plans])
    minimum = counted if options.min_gpus else (found.plans[0].run.sizes.min_gpus if found.plans else None)
    result = PlanResult(
        plans=tuple(plans), min_gpus=minimum, searched=found.searched, rejected=found.rejected,
        rule_of_thumb=_thumb(run, found), wall=_wall(config, run, found, options),
    )  # fmt: skip
    assumptions = tuple(found.plans[0].run.assumptions) if plans else ()
    return Draft(
        result, findings=plans[0].findings if plans else (), assumptions=assumptions, evidence=BASIS, no=not plans
    )


BASIS = (
    Evidence(
        what="ranking by modelled tokens/s per GPU, fit by modelled peak memory",
        basis="modelled",
        source="memory and throughput of this package",
    ),
)


def _planned(plan: Plan) -> PlannedLayout:
    run = Run(plan.config)
    found = tuple(f for f in check(run) if f.severity != "info")
    return PlannedLayout(
        config=plan.config.written(), memory=memory_result(run), throughput=throughput_result(run), findings=found,
        why=why(plan), pareto=False,
    )  # fmt: skip


def _pareto(plans: list[PlannedLayout]) -> list[PlannedLayout]:
    def beaten(p: PlannedLayout) -> bool:
        return any(
            q.throughput.tokens_per_s_per_gpu >= p.throughput.tokens_per_s_per_gpu
            and q.memory.peak_gib < p.memory.peak_gib
            and q is not p
            for q in plans
        )

    return [p.model_copy(update={"pareto": not beaten(p)}) for p in plans]


def _thumb(run: Run, found: SearchResult) -> str:
    guess = max(run.seq_length // 4096, 1)
    if not found.plans:
        return f"the published starting point CP = seq/4096 would be CP={guess}"
    s = found.plans[0].run.sizes
    shard = run.seq_length // (s.cp * s.tp)
    return (
        f"the published starting point CP = seq/4096 is CP={guess}; the best plan takes CP={s.cp} with TP={s.tp}: "
        f"{shard} tokens per GPU"
    )


def _wall(config: RunConfig, run: Run, found: SearchResult, options: PlanOptions) -> WallReport | None:
    if found.plans:
        return None
    wall: Wall = found.wall or Wall(config, 0.0, {})
    commonest = max(found.rejected, key=lambda why: found.rejected[why], default="no mesh fits the GPU count")
    biggest = max(wall.components, key=lambda name: wall.components[name], default=commonest)
    ways = ways_through(config, run, options.forbid, options.min_dp, not options.no_offload)
    return WallReport(
        wall=biggest.replace("_", " "), missing_gib=round(gib(wall.missing_bytes), 2), closest=wall.config.written(),
        ways=tuple(
            WayThrough(change=text, peak_gib=round(gib(p.memory.peak.peak_bytes), 2), config=p.config.written())
            for text, p in ways
        ),
    )  # fmt: skip
