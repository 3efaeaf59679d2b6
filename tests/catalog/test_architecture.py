"""Which kind each layer is, and what a shape must have."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from moe_long_context.catalog.architecture import Architecture, LayerKind, layer_freq_from_text
from moe_long_context.catalog.loader import model_entry

SMALL: dict[str, Any] = {
    "num_layers": 4,
    "hidden_size": 8,
    "ffn_hidden_size": 16,
    "num_attention_heads": 2,
    "num_query_groups": 1,
    "kv_channels": 4,
    "vocab_size": 32,
}


def test_gated_delta_net_every_fourth_layer_is_attention() -> None:
    """Qwen3-Next: layers 4, 8, ... are softmax attention (full_attention_interval 4)."""
    kinds = [kind.attention for kind in model_entry("qwen3-next-80b-a3b").architecture.layer_kinds[:8]]
    assert kinds == ["gdn", "gdn", "gdn", "gqa"] * 2


def test_linear_attention_as_a_list() -> None:
    """Megatron-Core also takes one entry per layer, 1 = linear."""
    arch = Architecture(**SMALL, experimental_attention_variant="gated_delta_net", linear_attention_freq=(1, 0, 0, 1))
    assert [kind.attention for kind in arch.layer_kinds] == ["gdn", "gqa", "gqa", "gdn"]


def test_every_second_layer_is_windowed() -> None:
    """gpt-oss: sliding, full, sliding, ...; megatron-core is_layer_window_attention with window_attn_skip_freq 2."""
    kinds = model_entry("gpt-oss-20b").architecture.layer_kinds
    assert [kind.windowed for kind in kinds[:4]] == [True, False, True, False]


def test_window_as_megatron_writes_it() -> None:
    """Megatron's (127, 0) is 127 tokens back and the own one."""
    assert Architecture.model_validate({**SMALL, "window_size": (127, 0)}).window_size == 128


def test_indexer_layers_of_glm_5_2() -> None:
    """Layers 1, 2, 3, 7, 11, ..., 75 compute their top-k (dsa.py is_dsa_skip_topk_layer, frequency 4, offset 3)."""
    kinds = model_entry("glm-5.2").architecture.layer_kinds
    assert [i + 1 for i, kind in enumerate(kinds) if kind.indexer] == [1, 2, 3, *range(7, 76, 4)]


def test_mtp_layer_is_numbered_from_one() -> None:
    """The MTP layer copies the last decoder layer's spec but is layer 1, which has an indexer."""
    arch = model_entry("glm-5.2").architecture
    assert not arch.layer_kinds[-1].indexer
    assert arch.mtp_layer_kind == LayerKind("mla", "moe", False, True)


def test_hybrid_pattern() -> None:
    """Nemotron-3-Nano: 23 Mamba, 23 MoE and 6 attention layers."""
    kinds = model_entry("nemotron-3-nano-30b-a3b").architecture.layer_kinds
    assert [kinds.count(LayerKind(*k)) for k in (("mamba", "none"), ("none", "moe"), ("gqa", "none"))] == [23, 23, 6]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("([0]*3+[1]*2)", (0, 0, 0, 1, 1)), ("[0]*1+[1]*2", (0, 1, 1)), ("([0,1]*2)", (0, 1, 0, 1))],
)
def test_moe_layer_freq_notation(text: str, value: Any) -> None:
    """Megatron-LM's notation is read without evaluating it."""
    assert layer_freq_from_text(text) == value


@pytest.mark.parametrize("text", ["__import__('os')", "[2]*3", "[1]*99999", "[1]*9999999999", "", "([0]*3"])
def test_moe_layer_freq_refuses_the_rest(text: str) -> None:
    """Anything but 0/1 lists times small counts is refused."""
    with pytest.raises(ValueError, match="moe_layer_freq"):
        layer_freq_from_text(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"multi_latent_attention": True},
        {"num_moe_experts": 8},
        {"moe_layer_freq": (0, 2)},
        {"hybrid_layer_pattern": "MX"},
        {"hybrid_layer_pattern": "M*"},
        {"experimental_attention_variant": "dsa"},
    ],
)
def test_incomplete_shapes_are_refused(fields: dict[str, Any]) -> None:
    """What a layer cannot be built without has to be given."""
    with pytest.raises(ValidationError):
        Architecture(**SMALL, **fields)


def test_equal_shapes_hash_equally() -> None:
    """The remembered hash depends on the values only."""
    assert hash(Architecture(**SMALL)) == hash(Architecture(**SMALL))
