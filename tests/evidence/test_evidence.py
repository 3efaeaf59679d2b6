"""The published runs and the lookup of the nearest one."""

from __future__ import annotations

import pytest

from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import MoeError
from moe_long_context.evidence.distance import Wanted, differences, shape_of
from moe_long_context.evidence.nearest import nearest
from moe_long_context.evidence.store import INDEX, UNITS, compile_index, published_runs, run_by_id
from moe_long_context.tools import find_evidence

DSV3_128K = {
    "model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_length": "128k", "tp": 1, "cp": 32, "pp": 8,
    "vpp": 4, "ep": 32, "precision": "fp8_blockwise",
    "recompute": {"granularity": "selective", "modules": ["mla_up_proj", "layernorm", "moe", "mlp"]},
}  # fmt: skip


def test_the_index_is_what_the_data_files_say() -> None:
    """`python -m moe_long_context.evidence.store` has been run after the last change of a data file."""
    assert INDEX.read_text(encoding="utf-8") == compile_index()


def test_ids_are_unique_and_every_row_has_a_source() -> None:
    """A published figure can be cited: one id, and a repository or a paper."""
    runs = published_runs()
    assert len({run.id for run in runs}) == len(runs)
    assert all(run.source.get("repo") or run.source.get("paper") for run in runs)


def test_every_measured_value_has_a_unit() -> None:
    """No figure without a unit."""
    assert {name for run in published_runs() for name in run.measured} <= set(UNITS)


def test_every_published_configuration_can_be_read() -> None:
    """The config of a row is a run configuration: its names and values are accepted."""
    for run in published_runs():
        RunConfig.read(dict(run.config))


def test_the_published_deepseek_v3_128k_run_is_found_at_distance_zero() -> None:
    """Bridge long-context skill card, DeepSeek-V3 128K on 256 H100 at about 300 TFLOP/s."""
    first = find_evidence(DSV3_128K, top=1).result.runs[0]
    assert (first.id, first.distance, first.measured) == (
        "skill_lc_dsv3_h100_128k", 0.0, {"model_tflops_per_gpu": 300},
    )  # fmt: skip


def test_one_doubling_of_the_length_costs_one() -> None:
    """The unit of the distance."""
    run = run_by_id("skill_lc_dsv3_h100_64k")
    parts = differences(Wanted("deepseek-v3", shape_of("deepseek-v3"), {"seq_length": 131072}), run)
    assert [(part.cost, part.text) for part in parts] == [(1.0, "length 128k / 64k")]


def test_another_model_is_farther_than_four_times_the_length() -> None:
    """A person would rather look at the same model at 32K than at another family at 128K."""
    found = nearest(RunConfig.read({"model": "deepseek-v3", "gpu": "H100", "seq_length": "128k"}), top=4)
    assert {n.run.model for n in found} == {"deepseek-v3"}


def test_only_failures_are_returned_when_asked() -> None:
    """`kind` narrows the search."""
    assert {run.kind for run in find_evidence(DSV3_128K, top=3, kind="oom").result.runs} == {"oom"}


def test_unknown_published_run_names_near_ones() -> None:
    """A misspelt id is answered with the nearest ids."""
    with pytest.raises(MoeError) as error:
        run_by_id("skill_lc_dsv3_h100_128")
    assert "skill_lc_dsv3_h100_128k" in error.value.allowed


def test_facts_left_open_are_named_and_cost_nothing() -> None:
    """A search by model alone works and says what it could not compare."""
    answer = find_evidence(model="deepseek-v3", top=1)
    assert answer.result.runs[0].distance == 0.0
    assert answer.assumptions == ("not given, so not compared: gpu, num_gpus, seq_length",)
