"""The three families as shipped, and what memory, recompute and plan owe each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_long_context import estimate_memory, plan_layout, recommend_recompute, validate_config

CONFIGS = sorted((Path(__file__).parents[2] / "skill" / "configs").glob("*.yaml"))
SMALL: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 16, "seq_length": 32768, "ep": 8, "cp": 4}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_shipped_families_are_legal_and_fit(path: Path) -> None:
    assert validate_config(path).result.errors == 0
    assert estimate_memory(path).result.fits == "yes"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_peak_is_the_largest_stage_and_its_components_add_up_to_it(path: Path) -> None:
    result = estimate_memory(path).result
    peak = max(result.stages, key=lambda stage: stage.peak_gib)
    assert result.peak_gib == peak.peak_gib
    assert sum(peak.components.values()) == pytest.approx(peak.peak_gib, abs=0.02)
    low, high = result.interval_gib
    assert low < result.peak_gib < high


def test_ring_context_parallelism_keeps_the_sequence_of_every_rank() -> None:
    """One layer's K, V (128 heads of 192 + 128) and partial outputs (128 of 128), 2 bytes, for all 131072 tokens."""
    ring = estimate_memory(CONFIGS[0], cp_comm_type="p2p").result
    whole_gib = 131072 * 128 * (192 + 128 + 128) * 2 / 2**30
    assert ring.stages[1].components["working_set"] == pytest.approx(whole_gib, rel=0.03)


def test_more_recompute_never_keeps_more() -> None:
    sets: tuple[list[str], ...] = ([], ["moe_act"], ["moe_act", "layernorm"], ["moe", "layernorm"])
    kept = [
        estimate_memory({**SMALL, "recompute": {"granularity": "selective", "modules": m}} if m else SMALL)
        .result.stages[0]
        .components["activations"]
        for m in sets
    ]
    assert kept == sorted(kept, reverse=True)
    assert kept[-1] < kept[0]


def test_the_recommended_recompute_fits_when_it_is_written_down() -> None:
    result = recommend_recompute(SMALL).result
    again = estimate_memory(result.config).result
    assert again.fits == "yes"
    assert again.peak_gib in [choice.peak_gib for choice in result.choices]


def test_a_plan_is_a_whole_configuration_that_estimates_to_what_it_says() -> None:
    plan = plan_layout({"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 8, "seq_length": 32768}).result.plans[0]
    assert validate_config(plan.config).result.errors == 0
    assert estimate_memory(plan.config).result.peak_gib == plan.memory.peak_gib


def test_a_plan_that_cannot_fit_says_no_with_the_wall_and_a_way_through() -> None:
    answer = plan_layout({"model": "deepseek-v3", "gpu": "H100", "num_gpus": 32, "seq_length": 131072})
    wall = answer.result.wall
    assert answer.exit_status == 1
    assert wall.wall == "gradients"
    assert wall.missing_gib > 0
    assert wall.ways
