"""Finds the published runs nearest to a run configuration."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from moe_long_context.catalog.loader import model_entry
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import MoeError
from moe_long_context.evidence.distance import Difference, Wanted, differences, shape_of
from moe_long_context.evidence.store import Kind, PublishedRun, published_runs


class Neighbour(NamedTuple):
    """One published run, its distance (1 = one doubling of the length) and what differs, costliest first."""

    run: PublishedRun
    distance: float
    differs: tuple[Difference, ...]


def nearest(config: RunConfig, top: int = 5, kind: Kind | None = None) -> list[Neighbour]:
    """The `top` published runs nearest to `config`, nearest first.

    Only facts that `config` states are compared. Ties go to rows with a measured peak, then to the id.
    """
    wanted = _wanted(config)
    rows = (run for run in published_runs() if kind is None or run.kind == kind)
    scored = (_neighbour(wanted, run) for run in rows)
    return heapq.nsmallest(top, scored, key=lambda n: (round(n.distance, 6), n.run.kind != "memory", n.run.id))


def _neighbour(wanted: Wanted, run: PublishedRun) -> Neighbour:
    parts = differences(wanted, run)
    return Neighbour(run, sum(part.cost for part in parts), tuple(parts))


def _wanted(config: RunConfig) -> Wanted:
    model = config.model if isinstance(config.model, str) else None
    try:
        name = model_entry(model).id if model else None
    except MoeError:
        name = model
    return Wanted(name, shape_of(name) if name else None, config.written())
