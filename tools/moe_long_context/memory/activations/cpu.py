"""The same table for a layer that runs without Transformer Engine's kernels: each difference is one named entry.

The framework's own check runs on a CPU, where fused permutation, fused rotary embedding, contiguous q, k, v and
torch.compile are not there. Everything else of the table is compared as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moe_long_context.catalog.architecture import LayerKind
from moe_long_context.memory.activations.attention import ROTARY, UP, gqa_widths, unfused_rotary
from moe_long_context.memory.activations.facts import BF16, FP32, INT64, Facts, SavedTensor
from moe_long_context.memory.activations.feed_forward import MOE
from moe_long_context.memory.activations.linear_attention import NORM_OUT


class Difference(NamedTuple):
    """`rows` stand in place of the rows named `replaces` in layers of this attention or feed-forward kind."""

    name: str
    layer: str
    replaces: frozenset[str]
    rows: Callable[[Facts], list[SavedTensor]]


def _mixed_qkv(x: Facts) -> list[SavedTensor]:
    """k before its norm and v are views that keep the whole QKV output; q is a copy unless a rank has one group."""
    q, k = gqa_widths(x)
    width = q + 2 * k + (q if x.arch.attention_output_gate else 0)
    rows = [SavedTensor("query, key, value projection", "linear_qkv", "[t, g, q + 2]", x.t * width * BF16)]
    if x.arch.qk_layernorm and k > x.arch.kv_channels:
        rows.append(SavedTensor("q_layernorm input", "q_layernorm", "[t, n, d]", x.t * q * BF16))
    return rows


def _key(x: Facts) -> list[SavedTensor]:
    """Neither rotated nor normalised, the key stays a view of the QKV output."""
    _, k = gqa_widths(x)
    if x.arch.position_embedding_type == "none" and not x.arch.qk_layernorm:
        return []
    return [SavedTensor("key", "core_attention", "[t, g, d]", x.t * k * BF16)]


def _eager_gate(x: Facts) -> list[SavedTensor]:
    """Eagerly the sigmoid keeps its fp32 result; torch.compile keeps the bf16 gate."""
    if not x.arch.attention_output_gate:
        return []
    q, _ = gqa_widths(x)
    return [SavedTensor("sigmoid of the gate", "self_attention", "[t, n, d]", x.t * q * FP32)]


def _eager_delta_gate(x: Facts) -> list[SavedTensor]:
    """Eagerly SiLU keeps the gate and its result in fp32; a recomputed out_norm keeps the bf16 gate."""
    value = x.arch.linear_num_value_heads * x.arch.linear_value_head_dim / x.tp
    return [
        SavedTensor("gate in fp32", "out_norm", "[t, value]", x.t * value * FP32, NORM_OUT),
        SavedTensor("SiLU of the gate", "out_norm", "[t, value]", x.t * value * FP32, NORM_OUT),
        SavedTensor("gate", "out_norm", "[t, value]", x.t * value * BF16, only_with=NORM_OUT),
    ]


def _eager_decay(x: Facts) -> list[SavedTensor]:
    """Eagerly the decay keeps softplus's input and result in fp32."""
    size = x.t * x.arch.linear_num_value_heads / x.tp * FP32
    return [SavedTensor("decay, softplus input or result", "self_attention", "[t, nv]", size)] * 2


def _rotary_table(x: Facts) -> list[SavedTensor]:
    """The up projections' checkpoint keeps the rotary table, which all layers share."""
    size = x.t * (x.arch.qk_pos_emb_head_dim or 0) * FP32
    return [SavedTensor("rotary table", "self_attention", "[t, r]", size, only_with=UP)]


def _unfused_permutation(x: Facts) -> list[SavedTensor]:
    """int64 orders in place of the int32 row map; the all-gather dispatcher keeps probabilities and map transposed."""
    experts, module = x.arch.num_moe_experts or 0, "token_dispatcher"
    order = SavedTensor("sorted token indices", module, "[D]", x.dispatched * INT64, MOE)
    if x.allgather:
        gathered = x.s * x.etp * experts
        return [
            order,
            SavedTensor("probabilities by expert", module, "[E, s]", gathered * x.router_bytes, MOE),
            SavedTensor("routing map by expert", module, "[E, s]", gathered, MOE),
        ]
    return [
        order._replace(shape="[s k]", bytes=x.s * x.arch.moe_router_topk * INT64),
        SavedTensor("order of all token-expert pairs", module, "[s E]", x.s * experts * INT64, MOE),
    ]


DIFFERENCES = (
    Difference("QKV kept whole", "gqa", frozenset({"q_layernorm input", "k_layernorm input", "value"}), _mixed_qkv),
    Difference("key not copied", "gqa", frozenset({"key"}), _key),
    Difference("rotary embedding not fused", "gqa", frozenset({ROTARY}), unfused_rotary),
    Difference("output gate not compiled", "gqa", frozenset({"output gate"}), _eager_gate),
    Difference("delta-net gate not compiled", "gdn", frozenset({"gate"}), _eager_delta_gate),
    Difference("decay not compiled", "gdn", frozenset({"decay input"}), _eager_decay),
    Difference("shared rotary table", "mla", frozenset(), _rotary_table),
    Difference("permutation not fused", "moe", frozenset({"permutation map"}), _unfused_permutation),
)


def on_cpu(x: Facts, kind: LayerKind, rows: list[SavedTensor]) -> list[SavedTensor]:
    """The rows of a layer with every difference applied."""
    for difference in DIFFERENCES:
        if difference.layer in (kind.attention, kind.ffn):
            rows = [row for row in rows if row.name not in difference.replaces] + difference.rows(x)
    return rows
