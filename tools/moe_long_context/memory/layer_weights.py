"""What one layer is made of on one rank: a table of linear weights and the elements of its norms and other vectors.

h hidden_size, hd kv_channels, nh heads, ng query groups, E experts; shapes are (out, in) on a rank of TP, EP, ETP.
Sources: megatron-core 0.19.2 megatron/core/models/gpt/gpt_layer_specs.py (which norm is fused into which linear),
transformer/attention.py, multi_latent_attention.py, mlp.py, moe/{router,experts,shared_experts,moe_layer}.py,
ssm/gated_delta_net/common.py, ssm/mamba_mixer.py, experimental_attention_variant/dsa.py.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from moe_long_context.catalog.architecture import Architecture, LayerKind

MAMBA_CONV_KERNEL = 4
"""Taps of Mamba's convolution. Source: megatron-core ssm/mamba_mixer.py, MambaMixer(d_conv=4)."""


class Linear(NamedTuple):
    """One linear weight [out, width] on a rank, `copies` times (once per local expert), each with `bias` elements."""

    name: str
    out: int
    width: int
    bias: int = 0
    copies: int = 1
    expert: bool = False

    @property
    def elements(self) -> int:
        """Elements of all copies, biases not included."""
        return self.out * self.width * self.copies


class LayerWeights(NamedTuple):
    """All parameters of a layer: linears, elements of dense vectors (norms, convolutions, sinks), router, buffers."""

    linears: tuple[Linear, ...] = ()
    vectors: int = 0
    router: int = 0
    buffers: int = 0


def norm_elements(arch: Architecture, width: int) -> int:
    """Weight, and for LayerNorm bias, of one norm over `width`."""
    return width if arch.normalization == "RMSNorm" else 2 * width


@lru_cache(maxsize=65536)
def layer_weights(arch: Architecture, kind: LayerKind, tp: int, ep: int, etp: int) -> LayerWeights:
    """The weights of one layer of this kind on one rank."""
    attention = _ATTENTION[kind.attention](arch, kind, tp)
    ffn = LayerWeights()
    if kind.ffn != "none":
        ffn = _moe(arch, tp, ep, etp) if kind.ffn == "moe" else _mlp(arch, tp)
    return LayerWeights(
        attention.linears + ffn.linears,
        attention.vectors + ffn.vectors,
        ffn.router,
        ffn.buffers,
    )


def _none(arch: Architecture, kind: LayerKind, tp: int) -> LayerWeights:
    return LayerWeights()


def _gqa(arch: Architecture, kind: LayerKind, tp: int) -> LayerWeights:
    """linear_qkv [(nh + 2 ng [+ nh gate]) hd / TP, h] with the input norm fused, linear_proj [h, nh hd / TP].

    With fewer groups than TP ranks linear_qkv is sharded all the same and gathered in the forward (attention.py).
    """
    query, groups = arch.num_attention_heads * arch.kv_channels, arch.num_query_groups * arch.kv_channels
    out = (query * (2 if arch.attention_output_gate else 1) + 2 * groups) // tp
    bias = arch.add_bias_linear or arch.add_qkv_bias
    linears = (
        Linear("linear_qkv", out, arch.hidden_size, out if bias else 0),
        Linear("linear_proj", arch.hidden_size, query // tp, arch.hidden_size if arch.add_bias_linear else 0),
    )
    sinks = arch.num_attention_heads // tp if arch.softmax_type == "learnable" else 0
    return LayerWeights(linears, norm_elements(arch, arch.hidden_size) + _qk_norms(arch, tp) + sinks)


def _qk_norms(arch: Architecture, tp: int) -> int:
    if not arch.qk_layernorm:
        return 0
    heads, groups, head = arch.num_attention_heads, arch.num_query_groups, arch.kv_channels
    width = {
        "head": 2 * head,
        "rank": (heads // tp + groups // min(tp, groups)) * head,
        "all": 2 * heads * head,
    }[arch.qk_layernorm_span]
    return norm_elements(arch, width)


def _mla(arch: Architecture, kind: LayerKind, tp: int) -> LayerWeights:
    """Down projections are whole on every rank, up projections split by heads; each norm over its latent.

    Without a query latent the norm in front of linear_q_proj is over h, in addition to the input norm.
    """
    h, rank = arch.hidden_size, arch.kv_lora_rank or 0
    nope, rope, value = arch.qk_head_dim or 0, arch.qk_pos_emb_head_dim or 0, arch.v_head_dim or 0
    heads, query_width = arch.num_attention_heads, arch.q_lora_rank or h
    query = heads * (nope + rope) // tp
    down = (Linear("linear_q_down_proj", query_width, h),) if arch.q_lora_rank else ()
    up = Linear("linear_q_up_proj" if arch.q_lora_rank else "linear_q_proj", query, query_width)
    linears = (
        *down,
        up,
        Linear("linear_kv_down_proj", rank + rope, h),
        Linear("linear_kv_up_proj", heads * (nope + value) // tp, rank),
        Linear("linear_proj", h, heads * value // tp, h if arch.add_bias_linear else 0),
    )
    norms = norm_elements(arch, h) + (norm_elements(arch, query_width + rank) if arch.qk_layernorm else 0)
    return _with_indexer(arch, LayerWeights(linears, norms)) if kind.indexer else LayerWeights(linears, norms)


def _with_indexer(arch: Architecture, attention: LayerWeights) -> LayerWeights:
    """The sparse-attention indexer, whole on every rank; its key norm is a LayerNorm with bias."""
    heads, head = arch.dsa_indexer_n_heads or 0, arch.dsa_indexer_head_dim or 0
    linears = (
        Linear("indexer.linear_wq_b", heads * head, arch.q_lora_rank or arch.hidden_size),
        Linear("indexer.linear_wk", head, arch.hidden_size),
        Linear("indexer.linear_weights_proj", heads, arch.hidden_size),
    )
    return LayerWeights(attention.linears + linears, attention.vectors + 2 * head)


def _gdn(arch: Architecture, kind: LayerKind, tp: int) -> LayerWeights:
    """in_proj [(2 qk + 2 v + 2 nv) / TP, h], convolution over q, k, v, two scalars and a norm a value head."""
    key = arch.linear_key_head_dim * arch.linear_num_key_heads
    value, heads = arch.linear_value_head_dim * arch.linear_num_value_heads, arch.linear_num_value_heads
    linears = (
        Linear("in_proj", (2 * key + 2 * value + 2 * heads) // tp, arch.hidden_size),
        Linear("out_proj", arch.hidden_size, value // tp),
    )
    convolution = (2 * key + value) // tp * arch.linear_conv_kernel_dim
    norms = norm_elements(arch, arch.hidden_size + arch.linear_value_head_dim)
    return LayerWeights(linears, norms + convolution + 2 * (heads // tp))


def _mamba(arch: Architecture, kind: LayerKind, tp: int) -> LayerWeights:
    """in_proj [(2 d + 2 g n + nh) / TP, h] (z, x, B, C, dt), convolution, dt_bias, A_log, D, norm over d / TP."""
    heads = arch.mamba_num_heads or 0
    inner, state = heads * arch.mamba_head_dim, arch.mamba_num_groups * arch.mamba_state_dim
    linears = (
        Linear("in_proj", (2 * inner + 2 * state + heads) // tp, arch.hidden_size),
        Linear("out_proj", arch.hidden_size, inner // tp),
    )
    convolution = (inner + 2 * state) // tp * (MAMBA_CONV_KERNEL + 1)
    return LayerWeights(linears, norm_elements(arch, arch.hidden_size) + convolution + 3 * (heads // tp) + inner // tp)


def _mlp(arch: Architecture, tp: int) -> LayerWeights:
    """linear_fc1 with the norm fused, linear_fc2."""
    linears = _ffn("linear", arch, arch.ffn_hidden_size // tp, arch.hidden_size, arch.add_bias_linear)
    return LayerWeights(linears, norm_elements(arch, arch.hidden_size))


def _ffn(name: str, arch: Architecture, inner: int, width: int, bias: bool, experts: int = 0) -> tuple[Linear, Linear]:
    fc1 = arch.glu_factor * inner
    copies, expert = (experts, True) if experts else (1, False)
    return (
        Linear(f"{name}_fc1", fc1, width, fc1 if bias else 0, copies, expert),
        Linear(f"{name}_fc2", width, inner, width if bias else 0, copies, expert),
    )


def _moe(arch: Architecture, tp: int, ep: int, etp: int) -> LayerWeights:
    """Norm, router [E, h], E / EP experts, shared experts over TP with their gate [1, h], latent projections."""
    experts, h = arch.num_moe_experts or 0, arch.hidden_size
    width, bias = arch.moe_latent_size or h, arch.add_bias_linear
    linears = _ffn("experts", arch, (arch.moe_ffn_hidden_size or 0) // etp, width, bias, experts // ep)
    extra: tuple[Linear, ...] = ()
    if arch.moe_latent_size:
        extra += (
            Linear("fc1_latent_proj", width, h, width if bias else 0),
            Linear("fc2_latent_proj", h, width, h if bias else 0),
        )
    gate = 0
    if arch.moe_shared_expert_intermediate_size:
        extra += _ffn("shared_experts", arch, arch.moe_shared_expert_intermediate_size // tp, h, bias)
        gate = h if arch.moe_shared_expert_gate else 0
    buffers = 2 * experts if arch.moe_router_enable_expert_bias else 0
    router = experts * h + (experts if bias else 0)
    return LayerWeights(linears + extra, norm_elements(arch, h) + gate, router, buffers)


_ATTENTION: dict[str, Callable[[Architecture, LayerKind, int], LayerWeights]] = {
    "gqa": _gqa,
    "mla": _mla,
    "gdn": _gdn,
    "mamba": _mamba,
    "none": _none,
}
