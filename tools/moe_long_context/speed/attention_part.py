"""Seconds of the attention half of a layer: projections, core, CP exchange, linear attention.

Source: megatron-core 0.19.2 megatron/core/transformer/attention.py and multi_latent_attention.py, megatron/core/ssm
(gated_delta_net.py, mamba_mixer.py).
"""

from __future__ import annotations

from moe_long_context.catalog.architecture import LayerKind
from moe_long_context.speed import collectives
from moe_long_context.speed.efficiency import launches, traffic
from moe_long_context.speed.facts import GRAPH_EVERYTHING, Facts
from moe_long_context.speed.flops import window_context
from moe_long_context.speed.kernels import BF16_BYTES, Gemm, Times, attention, memory, scan
from moe_long_context.speed.parts import Part, gemms, tp_exchange


def _cp_exchange(facts: Facts, kv_width: float, q_width: float, core: Times) -> float:
    """Exposed CP exchange: the p2p ring hides behind the chunks' attention; all_gather and a2a do not hide.

    p2p: n - 1 hops of the local k and v forward, of k, v and their gradients backward; each merges partial outputs.
    a2a+p2p: an all-to-all of q, k, v and the output over the inner ranks, then the ring over the n = CP / inner others.
    """
    if facts.cp == 1:
        return 0.0
    span, inner = facts.tp * facts.cp, facts.cp_inner
    kv_bytes = facts.tokens_cp * kv_width * BF16_BYTES
    if facts.cp_comm == "all_gather":
        return 3 * collectives.ring(facts, kv_bytes * facts.cp, facts.cp, span)
    local = facts.tokens_cp * (2 * q_width + kv_width) * BF16_BYTES
    exchange = 3 * collectives.all_to_all(facts, local, inner, facts.tp * inner)
    hops = facts.cp // inner - 1
    hop = collectives.neighbour(facts, kv_bytes, span)
    merge = memory(facts, facts.tokens_cp * q_width * traffic().ring_merge) * hops
    share = hops / (hops + 1)
    return (
        exchange
        + merge
        + max(0.0, hop * hops - core.forward * share)
        + max(0.0, 2 * hop * hops - core.backward * share)
    )


def attention_part(facts: Facts, kind: LayerKind) -> Part:
    """The attention half of a layer."""
    if kind.attention == "none":
        return Part()
    if kind.attention in ("gdn", "mamba"):
        return _linear_attention(facts, kind)
    mla = kind.attention == "mla"
    shapes, replayed = _mla_gemms(facts) if mla else (_gqa_gemms(facts), [])
    time, parameters = gemms(facts, shapes)
    core, kv_width, q_width = _core(facts, kind, mla)
    t = traffic()
    passes = t.mla_heads if mla else t.gqa_heads + t.qk_norm * facts.arch.qk_layernorm
    extra = memory(facts, facts.tokens_cp * (q_width + kv_width) * BF16_BYTES * passes)
    names, replay = facts.recompute, 0.0
    if "core_attn" in names:
        replay += core.forward
    if "mla_up_proj" in names and mla:
        replay += gemms(facts, replayed)[0].forward + extra
    count = launches().mla if mla else launches().gqa
    count = 0 if "attn" in facts.graphs or facts.graphs == GRAPH_EVERYTHING else count
    return Part(
        time.forward + core.forward + extra, time.backward + core.backward + 2 * extra, replay,
        tp_exchange(facts), 0.0, _cp_exchange(facts, kv_width, q_width, core), 0.0, count, 2 * count, parameters,
    )  # fmt: skip


def _core(facts: Facts, kind: LayerKind, mla: bool) -> tuple[Times, float, float]:
    """(attention core, width of k and v, width of q) on one TP rank."""
    arch, s = facts.arch, facts.seq_length
    context = window_context(arch.window_size, s) if kind.windowed and arch.window_size else s / 2
    heads = arch.num_attention_heads / facts.tp
    if mla:
        qk = (arch.qk_head_dim or 0) + (arch.qk_pos_emb_head_dim or 0)
        value = arch.v_head_dim or 0
        core = attention(facts, _sparse(facts, context), heads, qk, value)
        return core, heads * (qk + value), heads * qk
    groups = max(arch.num_query_groups / facts.tp, 1.0)
    core = attention(facts, context, heads, arch.kv_channels, arch.kv_channels)
    return core, 2 * groups * arch.kv_channels, heads * arch.kv_channels


def _sparse(facts: Facts, context: float) -> float:
    """DSA attends to at most dsa_indexer_topk keys per query."""
    topk = facts.arch.dsa_indexer_topk
    return min(context, topk) if topk and facts.arch.experimental_attention_variant == "dsa" else context


def _gqa_gemms(facts: Facts) -> list[Gemm]:
    arch, rows, tp = facts.arch, facts.tokens_cp, facts.tp
    query = arch.num_attention_heads * arch.kv_channels
    key = max(arch.num_query_groups, tp) * arch.kv_channels
    gate = query if arch.attention_output_gate else 0
    return [
        Gemm(rows, arch.hidden_size, (query + gate + 2 * key) / tp),
        Gemm(rows, query / tp, arch.hidden_size),
    ]


def _mla_gemms(facts: Facts) -> tuple[list[Gemm], list[Gemm]]:
    """(all GEMMs, those that mla_up_proj replays). Down projections are not TP-sharded; they run on the SP shard."""
    arch, rows, tp, hidden = facts.arch, facts.tokens_cp, facts.tp, facts.arch.hidden_size
    nope, rope, value = arch.qk_head_dim or 0, arch.qk_pos_emb_head_dim or 0, arch.v_head_dim or 0
    heads, latent = arch.num_attention_heads, arch.kv_lora_rank or 0
    q_rank = arch.q_lora_rank
    up = [Gemm(rows, latent, heads * (nope + value) / tp)]
    down = [Gemm(facts.tokens_sp, hidden, latent + rope)]
    if q_rank:
        down.append(Gemm(facts.tokens_sp, hidden, q_rank))
        up.append(Gemm(rows, q_rank, heads * (nope + rope) / tp))
    else:
        down.append(Gemm(rows, hidden, heads * (nope + rope) / tp))
    return [*down, *up, Gemm(rows, heads * value / tp, hidden)], up


def _linear_attention(facts: Facts, kind: LayerKind) -> Part:
    """Gated delta net or Mamba: in and out projection, short convolution, chunk scan."""
    arch, rows, tp, hidden = facts.arch, facts.tokens_cp, facts.tp, facts.arch.hidden_size
    if kind.attention == "gdn":
        key = arch.linear_key_head_dim * arch.linear_num_key_heads
        value = arch.linear_value_head_dim * arch.linear_num_value_heads
        width, out = 2 * key + 2 * value + 2 * arch.linear_num_value_heads, value
        state = arch.linear_num_value_heads * arch.linear_value_head_dim**2 * 8
    else:
        out = (arch.mamba_num_heads or 128) * arch.mamba_head_dim
        width = 2 * out + 2 * arch.mamba_num_groups * arch.mamba_state_dim + (arch.mamba_num_heads or 128)
        state = 7 * out * arch.mamba_state_dim
    time, parameters = gemms(facts, [Gemm(rows, hidden, width / tp), Gemm(rows, out / tp, hidden)])
    core = scan(facts, rows * state / tp)
    passes = traffic().gdn if kind.attention == "gdn" else traffic().mamba
    extra = memory(facts, rows * width / tp * BF16_BYTES * passes)
    exchange = 0.0
    if facts.cp > 1:
        exchange = 6 * collectives.all_to_all(facts, rows * width / tp * BF16_BYTES, facts.cp, tp * facts.cp)
    count = launches().gdn if kind.attention == "gdn" else launches().mamba
    graphed = {"attn", "mamba"} & facts.graphs or facts.graphs == GRAPH_EVERYTHING
    count = 0 if graphed else count
    return Part(
        time.forward + core.forward + extra, time.backward + core.backward + 2 * extra, 0.0, tp_exchange(facts),
        0.0, exchange, 0.0, count, 2 * count, parameters,
    )  # fmt: skip
