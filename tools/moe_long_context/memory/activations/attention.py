"""Rows of the attention half of a layer: norms, grouped-query and multi-latent attention, the attention core."""

from __future__ import annotations

from moe_long_context.memory.activations.facts import BF16, FP32, Facts, SavedTensor

NORMS = frozenset({"layernorm"})
UP = frozenset({"mla_up_proj"})
CORE = frozenset({"core_attn"})
ROTARY = "cosine or sine in bf16"


def norm(x: Facts, name: str, offload: str, fused: bool, freed: frozenset[str] = frozenset()) -> list[SavedTensor]:
    """Input, statistics and output of a norm. A norm fused into its linear is not recomputed on its own; its output
    is then kept in the linear's dtype, else in bf16."""
    h = x.arch.hidden_size
    freed = freed if fused else freed | NORMS
    out = x.norm_linear_bytes if fused else BF16
    return [
        SavedTensor(f"{name} input", name, "[s, h]", x.s * h * BF16, frozenset(), frozenset({offload})),
        SavedTensor(f"{name} statistics", name, "[s]", x.s * FP32, freed),
        SavedTensor(f"{name} output", name, "[s, h]", x.s * h * out, freed),
    ]


def _core(x: Facts, widths: tuple[float, float, float], out: float, freed: frozenset[str]) -> list[SavedTensor]:
    """What flash and fused attention keep: contiguous q, k and v, the output and its log-sum-exp; some context-parallel
    exchanges keep the output before it a second time. Widths in elements a token."""
    if x.scores:
        return _eager_core(x, widths, out, freed)
    heads = x.arch.num_attention_heads / x.tp
    names = ("query", "[t, n, d]"), ("key", "[t, g, d]"), ("value", "[t, g, dv]")
    rows = [
        SavedTensor(name, "core_attention", shape, x.t * width * BF16, freed, CORE)
        for (name, shape), width in zip(names, widths, strict=True)
    ]
    rows += [
        SavedTensor("log-sum-exp", "core_attention", "[n, t]", x.t * heads * FP32, CORE, CORE),
        SavedTensor(
            "attention output", "linear_proj", "[t, n, dv]", x.t * out * BF16, offloadable_by=frozenset({"attn_proj"})
        ),
    ]
    if x.two_outputs:
        size = x.t * out * BF16
        rows.append(SavedTensor("attention output before exchange", "core_attention", "[t, n, dv]", size, CORE, CORE))
    if x.keeps_both_copies:
        rows.append(SavedTensor("attention output, quantized", "linear_proj", "[t, n, dv]", x.t * out * x.linear_bytes))
    return rows


def _eager_core(x: Facts, widths: tuple[float, float, float], out: float, freed: frozenset[str]) -> list[SavedTensor]:
    """What attention keeps that builds its whole matrix of scores: keys and values repeated for every head, the
    probabilities, and with dropout its mask and the probabilities after it.

    TransformerEngine pytorch/attention/dot_product_attention/backends.py UnfusedDotProductAttention; megatron-core
    transformer/dot_product_attention.py.
    """
    query, _, _ = widths
    module = "core_attention"
    rows = [
        SavedTensor("query", module, "[t, n, d]", x.t * query * BF16, freed, CORE),
        SavedTensor("key of each head", module, "[t, n, d]", x.t * query * BF16, freed, CORE),
        SavedTensor("value of each head", module, "[t, n, dv]", x.t * out * BF16, freed, CORE),
        SavedTensor("attention probabilities", module, "[b, n, S, S]", x.scores * BF16, CORE, CORE),
        SavedTensor(
            "attention output", "linear_proj", "[t, n, dv]", x.t * out * BF16, offloadable_by=frozenset({"attn_proj"})
        ),
    ]
    if x.attention_dropout:
        rows += [
            SavedTensor("attention dropout mask", module, "[b, n, S, S]", x.scores, CORE, CORE),
            SavedTensor("attention probabilities after dropout", module, "[b, n, S, S]", x.scores * BF16, CORE, CORE),
        ]
    return rows


def gqa_widths(x: Facts) -> tuple[float, float]:
    """Elements a token of q and of k on one rank."""
    a = x.arch
    return a.num_attention_heads / x.tp * a.kv_channels, max(a.num_query_groups / x.tp, 1) * a.kv_channels


def gqa(x: Facts) -> list[SavedTensor]:
    """Grouped-query attention; QK norms keep contiguous copies of q and k from before the norm."""
    a = x.arch
    q, k = gqa_widths(x)
    rows = norm(x, "input_layernorm", "attn_norm", fused=True)
    if a.qk_layernorm:
        heads, groups = q / a.kv_channels, k / a.kv_channels
        rows += [
            SavedTensor("q_layernorm input", "q_layernorm", "[t, n, d]", x.t * q * BF16),
            SavedTensor("k_layernorm input", "k_layernorm", "[t, g, d]", x.t * k * BF16),
            SavedTensor("q_layernorm statistics", "q_layernorm", "[t, n]", x.t * heads * FP32),
            SavedTensor("k_layernorm statistics", "k_layernorm", "[t, g]", x.t * groups * FP32),
        ]
    if a.attention_output_gate:
        rows += [
            SavedTensor("output gate", "self_attention", "[t, n, d]", x.t * q * BF16),
            SavedTensor("ungated output", "self_attention", "[t, n, d]", x.t * q * BF16),
        ]
    if not x.rotary_fused:
        rows += unfused_rotary(x)
    return rows + _core(x, (q, k, k), q, frozenset())


def unfused_rotary(x: Facts) -> list[SavedTensor]:
    """Unfused rotary embedding keeps a cosine and a sine in bf16 for query and key each."""
    if x.arch.position_embedding_type in ("none", "learned_absolute"):
        return []
    size = x.t * x.arch.kv_channels * x.arch.rotary_percent * BF16
    return [SavedTensor(ROTARY, "self_attention", "[t, r]", size)] * 4


def mla(x: Facts) -> list[SavedTensor]:
    """Multi-latent attention: the latents' norms are fused into the up projections, which mla_up_proj recomputes."""
    a = x.arch
    assert a.qk_head_dim and a.qk_pos_emb_head_dim and a.v_head_dim and a.kv_lora_rank
    heads, rope = a.num_attention_heads / x.tp, a.qk_pos_emb_head_dim
    qk, v = heads * (a.qk_head_dim + rope), heads * a.v_head_dim
    latent = x.s * (a.kv_lora_rank + rope) * BF16
    rows = [
        *_mla_input(x),
        SavedTensor("kv latent and rotary key", "kv_layernorm", "[s, kv_lora + r]", latent),
        *_latent(x, "kv", a.kv_lora_rank),
        *(SavedTensor(f"{part} in bf16, {of}", "self_attention", "[t, r]", x.t * rope * BF16, UP)
          for part in ("cosine", "sine") for of in ("query", "key")),
    ]  # fmt: skip
    if x.s < x.t:
        size = x.t * rope * BF16
        rows.append(SavedTensor("gathered rotary key", "self_attention", "[t, r]", size, only_with=UP))
    return rows + _core(x, (qk, qk, v), v, UP)


def _mla_input(x: Facts) -> list[SavedTensor]:
    """The input norm and what reads it: two down projections, or a query projection with a norm of its own."""
    a = x.arch
    rows = norm(x, "input_layernorm", "attn_norm", fused=False)
    copies = 2 if a.q_lora_rank else 1
    if x.quantized:
        size = x.s * a.hidden_size * x.linear_bytes
        rows += [SavedTensor("down projection input, quantized", "linear_kv_down_proj", "[s, h]", size, NORMS)] * copies
        rows = [row for row in rows if row.name != "input_layernorm output" or not a.q_lora_rank]
    if not a.q_lora_rank:
        return rows + (_latent(x, "query input", a.hidden_size) if a.qk_layernorm else [])
    return [
        *rows,
        SavedTensor("q latent", "q_layernorm", "[s, q_lora]", x.s * a.q_lora_rank * BF16),
        *_latent(x, "q", a.q_lora_rank),
    ]


def _latent(x: Facts, name: str, width: int) -> list[SavedTensor]:
    """Output and statistics of a norm that is fused into an up projection."""
    return [
        SavedTensor(f"{name} normed", "linear_up_proj", "[s, latent]", x.s * width * x.norm_linear_bytes, UP),
        SavedTensor(f"{name} norm statistics", "linear_up_proj", "[s]", x.s * FP32, UP),
    ]
