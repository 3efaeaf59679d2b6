"""Reading a Hugging Face config.json gives the same shape as the catalog; bad files give one clear error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moe_long_context.catalog.huggingface import read_config
from moe_long_context.catalog.loader import model_entry
from moe_long_context.errors import BadValueError, MoeError, UnreadableFileError

CONFIGS = Path(__file__).parent / "hf_configs"
RECIPE_REPEATS_MTP = {"nemotron-3-super-120b-a12b": {"mtp_num_layers": 1}}
"""config.json names one MTP depth, the catalog follows the recipe, which runs the shared block twice."""


@pytest.mark.parametrize("model", sorted(file.stem for file in CONFIGS.glob("*.json")))
def test_config_json_equals_the_catalog(model: str) -> None:
    """The public config.json of each catalog model reads as exactly its catalog entry."""
    entry, _ = read_config(CONFIGS / f"{model}.json")
    expected = model_entry(model).architecture.model_copy(update=RECIPE_REPEATS_MTP.get(model, {}))
    assert entry.architecture.model_dump() == expected.model_dump()


def _written(tmp_path: Path, **changes: Any) -> Path:
    data = json.loads((CONFIGS / "qwen3-30b-a3b.json").read_text(encoding="utf-8"))
    data |= changes
    file = tmp_path / "config.json"
    file.write_text(json.dumps({k: v for k, v in data.items() if v != "drop"}), encoding="utf-8")
    return file


def test_a_folder_with_a_config_json(tmp_path: Path) -> None:
    """A downloaded checkpoint folder is as good as the file in it."""
    _written(tmp_path)
    assert read_config(tmp_path)[0].architecture.num_moe_experts == 128


def test_first_layers_dense_by_layer_types(tmp_path: Path) -> None:
    """transformers 5 writes mlp_layer_types instead of first_k_dense_replace."""
    data = json.loads((CONFIGS / "glm-4.7-flash.json").read_text(encoding="utf-8"))
    del data["first_k_dense_replace"]
    data["mlp_layer_types"] = ["dense"] * 2 + ["sparse"] * 45
    file = tmp_path / "config.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    assert read_config(file)[0].architecture.moe_layers == (False,) * 2 + (True,) * 45


def test_dense_steps_follow_transformers(tmp_path: Path) -> None:
    """Qwen3MoeDecoderLayer: MoE when (i + 1) % decoder_sparse_step == 0 and i is not in mlp_only_layers."""
    file = _written(tmp_path, num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    entry, notes = read_config(file)
    assert entry.architecture.moe_layers == (False, True, False, False, False, True)
    assert any("decoder_sparse_step" in note for note in notes)


def test_text_part_of_a_multimodal_model() -> None:
    """The vision tower is left out, and the notes say so."""
    _, notes = read_config(CONFIGS / "llama4-scout.json")
    assert any("vision" in note for note in notes)


def test_unknown_architecture_names_the_known_ones(tmp_path: Path) -> None:
    """An unknown model_type is refused with the list of known ones and a way out."""
    with pytest.raises(BadValueError) as caught:
        read_config(_written(tmp_path, model_type="falcon_mamba"))
    assert caught.value.code == "unknown_model_type"
    assert "qwen3_moe" in caught.value.allowed
    assert "model:" in caught.value.fix


def test_missing_keys_are_named(tmp_path: Path) -> None:
    """All missing keys are named at once."""
    with pytest.raises(BadValueError, match=r"hidden_size.*num_experts"):
        read_config(_written(tmp_path, hidden_size="drop", num_experts="drop"))


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": "big"},
        {"hidden_size": True},
        {"hidden_size": 0},
        {"hidden_size": -4},
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 2.5},
        {"rope_theta": []},
        {"vocab_size": 10**12},
        {"model_type": None},
        {"model_type": ["qwen3_moe"]},
        {"rope_parameters": {"rope_theta": "x"}, "rope_theta": "drop"},
    ],
)
def test_values_that_cannot_be_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Wrong types, zero, negative and absurd numbers give an expected error, never a traceback."""
    with pytest.raises(MoeError):
        read_config(_written(tmp_path, **changes))


@pytest.mark.parametrize("text", ["", "[1, 2]", "not json: [", '{"model_type": "llama", "model_type": "llama"}', "3"])
def test_files_that_are_no_config(tmp_path: Path, text: str) -> None:
    """Empty, non-object, broken and repeated-key files are refused."""
    file = tmp_path / "config.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(MoeError):
        read_config(file)


def test_missing_file() -> None:
    """A path that is not there is named."""
    with pytest.raises(UnreadableFileError):
        read_config("nowhere/config.json")
