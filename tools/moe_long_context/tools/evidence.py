"""The tool `find_evidence`: published measured runs nearest to one configuration."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from moe_long_context.config.run_config import RunConfig
from moe_long_context.evidence.nearest import Neighbour, nearest
from moe_long_context.evidence.store import UNITS, Kind, PublishedRun, published_runs, source_text
from moe_long_context.results import Evidence, Frozen
from moe_long_context.tools._tool import Draft, Options, tool


class EvidenceOptions(Options):
    """What to look for."""

    top: int = Field(default=5, ge=1, le=50, description="how many runs to return")
    kind: Kind | None = Field(default=None, description="only runs with a peak, a speed, a failure, or no figure")


class NearRun(Frozen):
    """One published run and how it differs from the one asked about."""

    id: str
    kind: Kind
    model: str
    distance: float = Field(description="0 = the same; 1 = as far as one doubling of the sequence length")
    differs: tuple[str, ...] = Field(description="asked / published, the weightiest first")
    measured: dict[str, float]
    config: dict[str, Any]
    caveats: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    source: str


class EvidenceResult(Frozen):
    """Nearest published runs, nearest first."""

    runs: tuple[NearRun, ...]
    searched: int = Field(description="published runs compared")


@tool("evidence", EvidenceOptions, EvidenceResult)
def find_evidence(config: RunConfig, options: EvidenceOptions) -> Draft:
    """Find the published measured runs nearest to this one, and what differs."""
    found = nearest(config, options.top, options.kind)
    result = EvidenceResult(runs=tuple(_near(n) for n in found), searched=len(published_runs()))
    quoted = tuple(item for n in found for item in _quotes(n.run))
    open_facts = [name for name in ("model", "gpu", "num_gpus", "seq_length") if getattr(config, name) is None]
    notes = (f"not given, so not compared: {', '.join(open_facts)}",) if open_facts else ()
    return Draft(result, evidence=quoted, assumptions=notes)


def _near(neighbour: Neighbour) -> NearRun:
    run = neighbour.run
    return NearRun(
        id=run.id,
        kind=run.kind,
        model=run.model,
        distance=round(neighbour.distance, 2),
        differs=tuple(part.text for part in neighbour.differs),
        measured=run.measured,
        config=run.config,
        caveats=run.caveats,
        assumptions=run.assumptions,
        source=source_text(run),
    )


def _quotes(run: PublishedRun) -> list[Evidence]:
    source = source_text(run)
    return [
        Evidence(what=f"{run.id}: {name}", basis="measured", source=source, value=value, unit=UNITS.get(name, ""))
        for name, value in run.measured.items()
    ]
