"""Parameters of every pipeline stage equal those of real Megatron-Core models, recorded in tests/golden."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from moe_long_context.catalog.loader import model_entry, model_ids
from moe_long_context.config.resolve import resolve
from moe_long_context.memory.parameters import layer_parameters, linear_shapes, linear_weights, stage_parameters

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "params_core-0.19.2.json").read_text(encoding="utf-8"))
COLUMNS = GOLDEN["columns"]


def _oracle_module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "oracle" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


RANDOM = _oracle_module("_random_shapes")


@pytest.mark.parametrize("name", GOLDEN["cases"])
def test_every_stage_equals_the_real_model(name: str) -> None:
    """Dense, expert, embedding, head, router and buffer elements of each rank are Megatron-Core 0.19.2's."""
    case = GOLDEN["cases"][name]
    stages = stage_parameters(resolve(case["run"]))
    assert [[getattr(stage, column) for column in COLUMNS] for stage in stages] == case["stages"]


def test_random_shapes_equal_the_real_models() -> None:
    """Seeded combinations of options that no catalog model has, as far as Megatron-Core builds them."""
    runs = RANDOM.random_runs(RANDOM.RANDOM_RUNS)
    assert len(GOLDEN["random"]) > 300
    for name, real in GOLDEN["random"].items():
        stages = stage_parameters(resolve(runs[name]))
        assert [[getattr(stage, column) for column in COLUMNS] for stage in stages] == real, runs[name]


def test_every_catalog_model_and_sixty_layouts_are_compared() -> None:
    """The golden file covers the whole catalog and at least 60 further layouts."""
    models = {case["run"]["model"] for case in GOLDEN["cases"].values()}
    assert models >= set(model_ids())
    assert len(GOLDEN["cases"]) >= 60 + len(model_ids())


@pytest.mark.parametrize(
    ("model", "total"),
    [
        ("deepseek-v3", 671_026_404_352),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-next-80b-a3b", 79_674_391_296),
    ],
)
def test_totals_equal_transformers(model: str, total: int) -> None:
    """Without MTP the whole model has what transformers 5.12.1 builds from the public config.json."""
    run = resolve({"model": model, "gpu": "H100", "num_gpus": 1, "seq_length": 4096, "mtp_num_layers": 0})
    assert stage_parameters(run)[0].total == total


def _run(**fields: Any) -> Any:
    return resolve({"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 8, "seq_length": 4096, **fields})


def test_linear_shapes_of_a_moe_layer() -> None:
    """Qwen3-30B at TP2, EP8: QKV (32+2*4)*128/2 outputs, 16 local experts of 2*768 and 768."""
    shapes = linear_shapes(_run(tp=2, ep=8, etp=1), model_entry("qwen3-30b-a3b").architecture.layer_kinds[0])
    assert shapes[:2] == ((2560, 2048), (2048, 2048))
    assert shapes[2:] == ((1536, 2048),) * 16 + ((2048, 768),) * 16


def test_a_layer_is_its_linears_and_the_rest() -> None:
    """DeepSeek-V3's dense layer: 583,483,392 parameters, of which three norms and two latent norms are not linears."""
    arch = model_entry("deepseek-v3").architecture
    layer = layer_parameters(arch, arch.layer_kinds[0], 1, 1, 1)
    vectors = 2 * 7168 + 1536 + 512
    assert layer.dense == sum(w.elements for w in linear_weights(arch, arch.layer_kinds[0], 1, 1, 1)) + vectors
    assert layer.linear == layer.dense - vectors
    assert layer.dense == 583_483_392
