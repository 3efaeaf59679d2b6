"""Facts about reading run_config.yaml as Bridge dumps it; the fixture is a real dump (dump_run_config.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from moe_long_context.config.reading import read_document, read_file
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import UnreadableFileError

ROOT = Path(__file__).parents[3]
DUMP = ROOT / "tests" / "golden" / "run_config_bridge-0.6.2.yaml"
SHIPPED = ROOT / "skill" / "configs" / "dsv3-128k-h100.yaml"
NOT_IN_A_DUMP = ("gpu", "num_gpus", "gpus_per_node", "versions", "env", "megatron", "overlap", "reader_notes", "vocab")


def dump() -> RunConfig:
    return read_file(DUMP)


def test_a_real_dump_gives_the_configuration_it_was_made_from() -> None:
    """All that a dump can hold comes back: sizes, layout, recompute, precision, dispatcher, offload."""
    shipped = read_file(SHIPPED)
    for name in shipped.written():
        if name in ("recompute", "optimizer", *NOT_IN_A_DUMP):
            continue
        if name != "sequence_parallel":
            assert getattr(dump(), name) == getattr(shipped, name), name
    assert dump().recompute and shipped.recompute
    assert set(dump().recompute.modules or ()) == set(shipped.recompute.modules or ())  # type: ignore[union-attr]
    assert dump().optimizer.cpu_offload_fraction == 1.0 and dump().optimizer.precision_aware


def test_a_dump_is_not_modelled_field_by_default_value() -> None:
    """Of 900 dumped values only those that differ from the released default are kept."""
    assert len(dump().megatron) < 100


def test_callables_of_a_dump_are_named_not_lost() -> None:
    """`init_method` and the layer spec are classes, which no tool can use; the note says so."""
    assert any("model.transformer_layer_spec" in note for note in dump().reader_notes)


def test_enums_and_types_are_read_by_name() -> None:
    """Bridge dumps enums as `_target_` with `_name_`, dtypes as `_call_: false`."""
    text = """
_target_: megatron.bridge.training.config.ConfigContainer
model:
  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider
  attention_backend: {_args_: [1], _call_: true, _name_: flash, _target_: megatron.core.transformer.enums.AttnBackend}
optimizer:
  _target_: megatron.bridge.training.config.OptimizerConfig
  exp_avg_dtype: {_call_: false, _target_: torch.bfloat16}
"""
    read = read_document(text, "dump")
    assert (read.attention_backend, read.optimizer.moment_dtype) == ("flash", "bf16")


def test_repeated_lists_of_a_dump_are_accepted() -> None:
    """PyYAML writes an alias when one list object stands in two fields."""
    text = """
_target_: megatron.bridge.training.config.ConfigContainer
model: {_target_: a.B, recompute_granularity: selective, recompute_modules: &id001 [moe], offload_modules: *id001}
"""
    recompute = read_document(text, "dump").recompute
    assert recompute and recompute.modules == ("moe",)


def test_aliases_that_multiply_are_refused() -> None:
    """A list of aliases to lists is how an alias bomb grows."""
    text = "_target_: x.ConfigContainer\na: &a [1, 1]\nb: &b [*a, *a]\nmodel: {_target_: y, c: *b}\n"
    with pytest.raises(UnreadableFileError):
        read_document(text, "dump")


def test_a_model_is_recognised_by_its_shape() -> None:
    """The dump names no hub id; layers, width, heads and experts are DeepSeek-V3's."""
    assert dump().model == "deepseek-v3"
    assert not any(path.startswith("model.q_lora") for path in dump().megatron)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"recompute_granularity": None, "recompute_modules": ["core_attn"]}, None),
        ({"recompute_granularity": "selective", "recompute_modules": ["moe"]}, ("moe",)),
    ],
)
def test_filled_in_recompute_modules_do_not_switch_recompute_on(fields: dict[str, Any], expected: Any) -> None:
    """Megatron-Core fills [core_attn] on finalize although recompute is off (transformer_config.py 0.19.2)."""
    dumped = {"_target_": "x.ConfigContainer", "model": {"_target_": "y", **fields}}
    recompute = read_document(yaml.safe_dump(dumped), "dump").recompute
    assert (recompute.modules if recompute else None) == expected


def test_periods_that_were_spelled_out_are_folded_again() -> None:
    """Llama 4's "no RoPE on every fourth layer" is dumped as a list of 48."""
    shape = {
        "num_layers": 8,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 10,
        "no_rope_freq": [0, 0, 0, 1] * 2,
    }
    model = read_document(
        yaml.safe_dump({"_target_": "x.ConfigContainer", "model": {"_target_": "y", **shape}}), "d"
    ).model
    assert isinstance(model, dict) and model["no_rope_freq"] == 4


def test_mtp_depths_leave_the_hybrid_pattern() -> None:
    """Bridge appends them behind slashes."""
    shape = {
        "num_layers": 4,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "vocab_size": 10,
        "hybrid_layer_pattern": "M*-*/*-",
    }
    model = read_document(
        yaml.safe_dump({"_target_": "x.ConfigContainer", "model": {"_target_": "y", **shape}}), "d"
    ).model
    assert isinstance(model, dict) and model["hybrid_layer_pattern"] == "M*-*"
