"""The tool `diagnose_failure`: from a configuration and a log to the cause and the next configuration."""

from __future__ import annotations

from collections import Counter
from typing import Any

from pydantic import Field

from moe_long_context.config.run_config import RunConfig
from moe_long_context.diagnosis.diagnose import Diagnosis, diagnose
from moe_long_context.diagnosis.places import words_for
from moe_long_context.diagnosis.questions import HOW
from moe_long_context.diagnosis.tensors import matches
from moe_long_context.evidence.nearest import nearest
from moe_long_context.evidence.store import source_text
from moe_long_context.memory.capacity import Verdict
from moe_long_context.results import Evidence, Frozen
from moe_long_context.tools._tool import Draft, Options, tool
from moe_long_context.units import gib

BISECT_CAUSES = {"regression_after_upgrade", "container", "changed_default"}
LOOKS_LIKE_ANOTHER_RUN = 0.6
"""Share of the estimated peak below which a failed allocation does not belong to this configuration."""
COUNT_LIMIT = 1 << 20
"""Below this a printed value is a count or less than 1 MiB."""
NEAR = 4.0
"""Distance up to which a published run is worth quoting."""
LOG_TEXT_LIMIT = 8 << 20


class DiagnoseOptions(Options):
    """What is known about the failure."""

    log: str | None = Field(default=None, max_length=LOG_TEXT_LIMIT, description="path of a log (or - ), or its text")
    snapshot: str | None = Field(default=None, max_length=4096, description="path of a CUDA memory snapshot pickle")
    symptom: str = Field(default="", max_length=20_000, description="what a person saw, in their own words")


class DiagnosedCause(Frozen):
    """One possible cause."""

    cause: str
    confidence: float = Field(description="0 to 1; a judgement, not a frequency")
    because: str


class DiagnosedFix(Frozen):
    """One change, checked against the rules and estimated where the run is known."""

    change: str
    tag: str
    tags: tuple[str, ...]
    for_cause: str
    saves_gib: float | None = Field(description="estimated peak before minus after; absent where it is no such change")
    speed_ratio: float | None = Field(description="modelled tokens per second and GPU, after over before")
    peak_gib: float | None
    fits: Verdict | None
    cost: str
    config: dict[str, Any] | None


class FailedAllocation(Frozen):
    """The allocation that failed and what it is."""

    requested_gib: float | None
    allocated_gib: float | None
    reserved_unallocated_gib: float | None
    free_gib: float | None
    place: str
    rank: str | None
    pipeline_stage: int | None
    stage_holds: str = Field(default="", description="chunks of that stage in layout letters, and its kinds of layers")
    after_iteration: int | None
    explained: tuple[str, ...] = Field(description="tensors of the model that have this size")


class DiagnoseResult(Frozen):
    """Causes likeliest first, fixes in order, and what to ask for."""

    causes: tuple[DiagnosedCause, ...]
    fixes: tuple[DiagnosedFix, ...]
    missing: tuple[str, ...]
    how_to_get: dict[str, str]
    failed_allocation: FailedAllocation | None = None
    bisect_plan: tuple[dict[str, Any], ...] = ()
    mesh: dict[str, int] = Field(default_factory=dict, description="sizes of the run as resolved, with DP and EDP")
    log: dict[str, Any] = Field(default_factory=dict, description="what was read: bytes, steps, ranks, memory reports")


@tool("diagnose", DiagnoseOptions, DiagnoseResult)
def diagnose_failure(config: RunConfig, options: DiagnoseOptions) -> Draft:
    """Find why a run died or slowed down, and the fixes in order with what each buys."""
    found = diagnose(config, options.log, options.snapshot, options.symptom)
    result = DiagnoseResult(
        causes=tuple(
            DiagnosedCause(cause=c.cause, confidence=round(c.confidence, 2), because=c.because) for c in found.causes
        ),
        fixes=_fixes(found),
        missing=found.missing,
        how_to_get={name: HOW[name] for name in found.missing if name in HOW},
        failed_allocation=_allocation(found),
        bisect_plan=_bisect(found),
        mesh=_mesh(found),
        log=_log(found),
    )
    run = found.case.run
    return Draft(
        result,
        findings=found.case.findings,
        assumptions=(*found.taken_from_log, *_cautions(found), *run.assumptions),
        evidence=_evidence(found),
    )


def _fixes(found: Diagnosis) -> tuple[DiagnosedFix, ...]:
    return tuple(
        DiagnosedFix(
            change=f.change, tag=f.tag, tags=f.tags, for_cause=f.cause, saves_gib=f.saves_gib,
            speed_ratio=f.speed_ratio,
            peak_gib=f.peak_gib,
            fits=f.fits, cost=f.cost, config=f.config,
        )
        for f in found.fixes
    )  # fmt: skip


def _allocation(found: Diagnosis) -> FailedAllocation | None:
    event, run = found.case.oom, found.case.run
    if event is None:
        return None
    known = event.requested is not None and found.case.knows_model and "seq_length" not in run.missing
    explained = matches(run, event.requested or 0.0, event.place) if known else []
    return FailedAllocation(
        requested_gib=_gib(event.requested),
        allocated_gib=_gib(event.allocated),
        reserved_unallocated_gib=_gib(event.reserved_unallocated),
        free_gib=_gib(event.free),
        place=words_for(event.place),
        rank=event.rank,
        pipeline_stage=found.case.stage_of(event.rank),
        stage_holds=_stage_holds(found, found.case.stage_of(event.rank)),
        after_iteration=event.iteration,
        explained=tuple(f"{m.tensor.name}: {m.tensor.formula} = {gib(m.tensor.n_bytes):.2f} GiB" for m in explained),
    )


def _stage_holds(found: Diagnosis, stage: int | None) -> str:
    """`Et*4|t*4: 3 mla+dense, 5 mla+moe` for a stage; empty where it cannot be told."""
    if stage is None or found.case.memory is None:
        return ""
    run = found.case.run
    chunks = run.partition.of_rank(stage)
    kinds = [k for c in chunks for k in run.arch.layer_kinds[c.first : c.first + c.layers]]
    counts = Counter(f"{kind.attention}+{kind.ffn}" for kind in kinds)
    listed = ", ".join(f"{count} {name}" for name, count in counts.items())
    return f"{'|'.join(chunk.letters for chunk in chunks)}: {listed}"


def _gib(n_bytes: float | None) -> float | None:
    return None if n_bytes is None else round(gib(n_bytes), 3)


def _bisect(found: Diagnosis) -> tuple[dict[str, Any], ...]:
    if not BISECT_CAUSES & {cause.cause for cause in found.causes[:4]}:
        return ()
    from moe_long_context.diagnosis.bisect import bisect_plan

    return tuple(step._asdict() for step in bisect_plan())


def _mesh(found: Diagnosis) -> dict[str, int]:
    """Sizes of both meshes, empty where no size is known or the GPUs do not divide."""
    run = found.case.run
    s = run.sizes
    if not found.case.knows_sizes or not (s.fits_attention and s.fits_expert):
        return {}
    return {
        "num_gpus": s.num_gpus, "tp": s.tp, "cp": s.cp, "pp": s.pp, "vpp": s.vpp, "dp": s.dp, "ep": s.ep, "etp": s.etp,
        "edp": s.edp, "min_gpus": s.min_gpus, "num_microbatches": run.num_microbatches,
        "tokens_per_cp_rank": run.tokens_per_cp_rank,
    }  # fmt: skip


def _log(found: Diagnosis) -> dict[str, Any]:
    facts = found.case.facts
    return {
        "bytes": facts.n_bytes,
        "steps_printed": facts.iteration_count,
        "last_iteration": facts.last_iteration.number if facts.last_iteration else None,
        "out_of_memory_lines_sampled": facts.oom_count,
        "out_of_memory_ranks": sorted(facts.oom_ranks)[:16],
        "exceptions": facts.failure_count,
        "memory_reports": {
            str(rank): {name: round(gib(value), 3) for name, value in report.values.items() if value > COUNT_LIMIT}
            for rank, report in sorted(facts.reports.items())[:16]
        },
        "theoretical_gib": {name: round(gib(value), 3) for name, value in facts.theoretical_bytes.items()},
    }


def _cautions(found: Diagnosis) -> tuple[str, ...]:
    return (*_other_run(found), *_theory(found))


def _other_run(found: Diagnosis) -> tuple[str, ...]:
    """A hint that the configuration given is not the one that wrote the log."""
    event, memory = found.case.oom, found.case.memory
    if event is None or memory is None or event.allocated is None or event.place in (None, "build", "checkpoint"):
        return ()
    stage = found.case.stage_of(event.rank)
    expected = memory.stages[stage].peak_bytes if stage is not None else min(s.peak_bytes for s in memory.stages)
    reached = event.allocated + (event.requested or 0.0)
    if reached > LOOKS_LIKE_ANOTHER_RUN * expected:
        return ()
    return (
        f"the log shows {gib(reached):.1f} GiB wanted where the estimate of this configuration has "
        f"{gib(expected):.1f}: check that it is the configuration that ran (recompute, batch, loss, offload)",
    )


def _theory(found: Diagnosis) -> tuple[str, ...]:
    if not found.case.facts.theoretical_bytes:
        return ()
    return (
        "the theoretical footprint in the log is not used: its activation formula knows no experts, no dispatcher, no "
        "recompute, and the loss only at PP 1 (megatron-core theoretical_memory_usage.py)",
    )


def _evidence(found: Diagnosis) -> tuple[Evidence, ...]:
    from moe_long_context.diagnosis.signature import signatures

    hits = found.case.facts.hits
    seen = tuple(
        Evidence(what=f"signature {s.id}, {hits[s.id].count} lines", basis="exact", source=s.source)
        for s in signatures()
        if s.id in hits
    )
    return (*seen, *_measured(found), *_published(found))


def _measured(found: Diagnosis) -> tuple[Evidence, ...]:
    """The highest peak that the run itself reported, beside the estimate of that rank's stage."""
    known = {rank: report.peak for rank, report in found.case.facts.reports.items() if report.peak}
    if not known:
        return ()
    rank = max(known, key=lambda r: known[r])
    stage = found.case.stage_of(str(rank))
    memory = found.case.memory
    beside = "" if memory is None or stage is None else f"; estimated {gib(memory.stages[stage].peak_bytes):.2f} GiB"
    what = f"peak that rank {rank} reported after its first steps{beside}"
    return (Evidence(what=what, basis="measured", source="the log", value=_gib(known[rank]), unit="GiB"),)


def _published(found: Diagnosis) -> tuple[Evidence, ...]:
    """The nearest published runs that worked, for a run that died of memory."""
    if not (found.case.died_of_memory and found.case.knows_model and found.case.config.seq_length):
        return ()
    near = [n for n in nearest(found.case.config, top=6) if n.run.kind != "oom" and n.distance <= NEAR][:2]
    return tuple(
        Evidence(
            what=f"published run {n.run.id} worked; differs in {'; '.join(d.text for d in n.differs[:5]) or 'nothing'}",
            basis="measured",
            source=source_text(n.run),
        )
        for n in near
    )
