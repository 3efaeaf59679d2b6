"""Model FLOPs against Megatron Bridge's own counter, and by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.loader import model_entry, model_ids
from moe_long_context.speed.flops import megatron_lm_flops, model_flops, padded_vocab, window_context

ORDER_REL = 1e-12
"""Floating-point sums in another order."""
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "flops_bridge-0.6.2.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", model_ids())
def test_equal_to_the_counter_of_megatron_bridge(model: str) -> None:
    """Every catalog model, 4K to 1M tokens, TP 1 and 8: the same number as num_floating_point_operations."""
    arch = model_entry(model).architecture
    for case, expected in GOLDEN["flops"][model].items():
        length, tp = case.split("/tp")
        assert model_flops(arch, int(length), GOLDEN["sequences"], int(tp)) == expected, case


@pytest.mark.parametrize("model", model_ids())
def test_equal_to_the_counter_of_megatron_lm(model: str) -> None:
    """4K to 1M tokens: Megatron-LM's number, up to the order in which it adds."""
    arch = model_entry(model).architecture
    for case, expected in GOLDEN["megatron_lm"][model].items():
        length = int(case.split("/")[0])
        assert megatron_lm_flops(arch, length, GOLDEN["sequences"]) == pytest.approx(expected, rel=ORDER_REL), case


def test_one_dense_layer_by_hand() -> None:
    """Hidden 8, 2 heads of 4, FFN 16 with gate, vocabulary 128, 4 tokens: 6*(4*64 + 8*4 + 3*8*16 + 8*128) a token."""
    arch = Architecture(
        num_layers=1, hidden_size=8, ffn_hidden_size=16, num_attention_heads=2, num_query_groups=2, kv_channels=4,
        vocab_size=100,
    )  # fmt: skip
    assert model_flops(arch, 4, 1) == 4 * 6 * (4 * 64 + 8 * 4 + 3 * 8 * 16 + 8 * 128)


def test_vocabulary_counts_as_padded() -> None:
    """calculate_padded_vocab_size pads to 128 * TP: 129280 is 1010 * 128, and becomes 1024 * 128 at TP 64."""
    assert padded_vocab(129280, 1) == 129280
    assert padded_vocab(129280, 64) == 131072


def test_window_context_by_hand() -> None:
    """A causal window of 2 over 4 tokens sees 1, 2, 2, 2 keys: 7/4 on average."""
    assert window_context(2, 4) == 7 / 4
