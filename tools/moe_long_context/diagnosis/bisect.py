"""A plan that separates container, source and defaults when a run got worse after an upgrade."""

from __future__ import annotations

from typing import NamedTuple


class BisectStep(NamedTuple):
    """One run of the plan: what is old and new, and what its outcome says."""

    axis: str
    run: str
    if_bad: str
    if_good: str


def bisect_plan(changed_defaults: tuple[str, ...] = (), container: str = "", source: str = "") -> list[BisectStep]:
    """Runs in order, cheapest separation first. Names of the versions are put in where they are known."""
    old_new_container = f"the new container ({container})" if container else "the new container"
    new_source = f"new source ({source})" if source else "new source"
    plan = [
        BisectStep(
            "reproduce",
            "old container, old source, old configuration on one node with fewer layers",
            "it was never a regression of the software: compare the workload (data, length, routing) first",
            "the reduced case is healthy; go on",
        ),
        BisectStep(
            "container",
            f"{old_new_container} with the old source mounted into it, same configuration",
            "the container (PyTorch, NCCL, cuDNN, TransformerEngine): compare allocated with reserved, try expandable "
            "segments, then swap its libraries one by one",
            "the container is not the reason",
        ),
        BisectStep(
            "source",
            f"the old container with {new_source}, every default pinned to its old value",
            "the source: git bisect between the two revisions in the old container",
            "the source is not the reason",
        ),
        BisectStep(
            "defaults",
            f"old container, {new_source}, defaults as released",
            "a changed default: pin the fields below to their old values in halves",
            "only the combination fails: repeat the last run in the new container",
        ),
    ]
    if changed_defaults:
        listed = "; ".join(changed_defaults[:20])
        plan.append(
            BisectStep("defaults", f"pin half of these, then halve again: {listed}", "in this half", "in the other")
        )
    return plan
