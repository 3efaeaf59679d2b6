"""Rows of gated delta net and Mamba-2 layers."""

from __future__ import annotations

from moe_long_context.memory.activations.attention import norm
from moe_long_context.memory.activations.facts import BF16, FP32, Facts, SavedTensor

CHUNK = 64
"""Tokens of a chunk of the delta rule's kernel (flash-linear-attention ops/gated_delta_rule/chunk.py)."""
NORM_OUT = frozenset({"gdn_norm_out"})


def gdn(x: Facts) -> list[SavedTensor]:
    """Gated delta net, by what its kernels save and what torch.compile keeps of the elementwise parts around them.

    megatron-core 0.19.2 ssm/gated_delta_net; flash-linear-attention: the delta rule keeps q, k, v, the decay summed
    inside chunks, beta and one [64, 64] matrix a chunk and head; chunk states are made again in backward.
    """
    a = x.arch
    key = a.linear_num_key_heads * a.linear_key_head_dim / x.tp
    heads = a.linear_num_value_heads / x.tp
    value, wide_key = heads * a.linear_value_head_dim, heads * a.linear_key_head_dim
    rule = "gated_delta_rule"
    return [
        *norm(x, "input_layernorm", "attn_norm", fused=True),
        SavedTensor("convolution input", "conv1d", "[t, qkv]", x.t * (2 * key + value) * BF16),
        SavedTensor("normalised q and k", "l2norm", "[t, 2 key]", x.t * 2 * key * BF16),
        SavedTensor("q and k lengths", "l2norm", "[t, 2 nk]", x.t * 2 * key / a.linear_key_head_dim * FP32),
        SavedTensor("query of each value head", rule, "[t, nv, dk]", x.t * wide_key * BF16),
        SavedTensor("key of each value head", rule, "[t, nv, dk]", x.t * wide_key * BF16),
        SavedTensor("value", rule, "[t, nv, dv]", x.t * value * BF16),
        SavedTensor("summed decay", rule, "[t, nv]", x.t * heads * FP32),
        SavedTensor("beta", rule, "[t, nv]", x.t * heads * BF16),
        SavedTensor("chunk matrix", rule, "[t, nv, 64]", x.t * heads * CHUNK * BF16),
        SavedTensor("decay input", "self_attention", "[t, nv]", x.t * heads * BF16),
        SavedTensor("gate", "out_norm", "[t, value]", x.t * value * BF16),
        SavedTensor("kernel output", "out_norm", "[t, value]", x.t * value * BF16),
        SavedTensor("out_norm statistics", "out_norm", "[t, nv]", x.t * heads * FP32, NORM_OUT),
        SavedTensor("out_norm output", "out_norm", "[t, value]", x.t * value * BF16, NORM_OUT),
        SavedTensor("projection input", "out_proj", "[t, value]", x.t * value * x.linear_bytes, NORM_OUT),
    ]


def mamba(x: Facts) -> list[SavedTensor]:
    """Mamba-2 with the memory-efficient path: the fused kernel keeps its projected input and recomputes inside."""
    a = x.arch
    inner = (a.mamba_num_heads or 0) * a.mamba_head_dim / x.tp
    groups = a.mamba_num_groups * a.mamba_state_dim / x.tp
    heads = (a.mamba_num_heads or 0) / x.tp
    return [
        *norm(x, "input_layernorm", "attn_norm", fused=True),
        SavedTensor(
            "projected input", "in_proj", "[t, 2 inner + 2 g + n]", x.t * (2 * inner + 2 * groups + heads) * BF16
        ),
        SavedTensor("scan output", "mixer", "[t, inner]", x.t * inner * BF16),
        SavedTensor("projection input", "out_proj", "[t, inner]", x.t * inner * x.linear_bytes),
    ]
