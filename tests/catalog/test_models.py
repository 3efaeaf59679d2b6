"""The catalog's models against Megatron Bridge 0.6.2 and transformers 5.12.1, recorded in tests/golden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moe_long_context.catalog.loader import alias_table, model_entry, model_ids
from moe_long_context.config.resolve import resolve
from moe_long_context.errors import UnknownNameError
from moe_long_context.memory.parameters import stage_parameters

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "catalog_bridge-0.6.2.json").read_text(encoding="utf-8"))
MTP_DIFFERS = {"glm-5", "glm-5.2", "qwen3-next-80b-a3b", "nemotron-3-super-120b-a12b"}
"""Bridge's conversion leaves out MTP layers that the checkpoints have, or repeats one block once; notes say so."""
EXTRA_NORMS = {"deepseek-v2-lite": 27 * 2048, "moonlight-16b-a3b": 27 * 2048}
"""Elements that Megatron-Core adds where MLA has no query latent: a norm in front of each linear_q_proj."""


def _as_catalog(name: str, value: Any, fields: dict[str, Any]) -> Any:
    """Bridge's value in the catalog's terms: windows as a count, defaults that Megatron fills in later."""
    if name == "window_size" and value:
        return value[0] + 1
    if name == "ffn_hidden_size" and value is None:
        return 4 * fields["hidden_size"]
    if name == "moe_ffn_hidden_size" and value is None and fields["num_moe_experts"]:
        return fields["ffn_hidden_size"]
    if name == "rotary_scaling_factor" and value is None:
        return 1.0
    return value


def _differing(model: str, fields: dict[str, Any]) -> set[str]:
    arch = model_entry(model).architecture
    ours = arch.model_dump()
    out = set()
    for name, value in fields.items():
        mine = ours[name]
        if name == "linear_attention_freq" and isinstance(value, list):
            mine, value = [int(kind.attention == "gdn") for kind in arch.layer_kinds], value
        if name == "moe_layer_freq" and isinstance(value, list):
            mine = [int(moe) for moe in arch.moe_layers]
        if name == "original_max_position_embeddings" and mine is None:
            continue
        mine = list(mine) if isinstance(mine, tuple) else mine
        if (mine or None) != (_as_catalog(name, value, fields) or None) and name != "rope_type":
            out.add(name)
    return out


@pytest.mark.parametrize("model", GOLDEN["fields"])
def test_fields_equal_bridges_conversion(model: str) -> None:
    """Each architecture field has the value that Bridge's provider_bridge gives for the public config.json."""
    expected = {"mtp_num_layers"} if model in MTP_DIFFERS else set()
    assert _differing(model, GOLDEN["fields"][model]) == expected


@pytest.mark.parametrize("model", GOLDEN["totals"])
def test_total_equals_transformers(model: str) -> None:
    """The whole model without MTP has the parameters of the transformers model of its public config.json."""
    run = resolve({"model": model, "gpu": "H100", "num_gpus": 1, "seq_length": 4096, "mtp_num_layers": 0})
    assert stage_parameters(run)[0].total == GOLDEN["totals"][model] + EXTRA_NORMS.get(model, 0)


@pytest.mark.parametrize("model", GOLDEN["totals"])
def test_total_is_near_what_the_vendor_prints(model: str) -> None:
    """Vendors round and differ in counting MTP; more than 6 % off would be another model."""
    printed = model_entry(model).published.get("total_b")
    if printed is not None:
        assert GOLDEN["totals"][model] / 1e9 == pytest.approx(printed, rel=0.06)


@pytest.mark.parametrize("model", GOLDEN["recipe"])
def test_bridge_defaults_are_those_of_the_recipe(model: str) -> None:
    """Every recorded setting beside the shape is what Bridge's own recipe of the model has."""
    recipe = GOLDEN["recipe"][model]
    assert {name: recipe[name] for name in model_entry(model).bridge_defaults} == model_entry(model).bridge_defaults


@pytest.mark.parametrize("model", model_ids())
def test_every_entry_is_complete(model: str) -> None:
    """An entry names its family, its source and how its parameter count was checked."""
    entry = model_entry(model)
    assert entry.id == model
    assert entry.family and entry.source and entry.checked
    assert model in GOLDEN["totals"] or "no public config.json" in entry.checked


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("dsv3", "deepseek-v3"),
        ("DeepSeek-V3", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("qwen3-235b", "qwen3-235b-a22b"),
        ("qwen3_235b_a22b", "qwen3-235b-a22b"),
        ("kimi-k2-instruct", "kimi-k2"),
        ("GLM-4.5-Air", "glm-4.5-air"),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"),
        ("somebody/gpt-oss-20b", "gpt-oss-20b"),
        ("llama3_70b", "llama3-70b"),
    ],
)
def test_names_that_people_type(name: str, model: str) -> None:
    """Case, underscores, the hub's owner and common short names do not matter."""
    assert model_entry(name).id == model


def test_unknown_model_names_the_nearest() -> None:
    """A slip in a model name is answered with the name that was meant."""
    with pytest.raises(UnknownNameError) as caught:
        model_entry("deepseek-v33")
    assert "deepseek-v3" in caught.value.allowed


def test_no_alias_is_claimed_twice() -> None:
    """An alias leads to one model; a model's id is no other model's alias."""
    table = alias_table("models")
    assert all(table.get(model, model) == model for model in model_ids())
