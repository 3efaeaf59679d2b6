"""Seconds of one decoder layer for one microbatch on one GPU, forward and backward, by part.

Owns the list of what a layer runs: GEMMs, attention, memory-bound kernels, exchanges, kernel launches and what
recompute replays. Source of the lists: megatron-core 0.19.2 megatron/core/transformer (attention.py,
multi_latent_attention.py, mlp.py, moe/), megatron/core/ssm (gated_delta_net.py, mamba_mixer.py).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from moe_long_context.catalog.architecture import LayerKind
from moe_long_context.speed import collectives
from moe_long_context.speed.efficiency import launches
from moe_long_context.speed.facts import GRAPH_EVERYTHING, Facts
from moe_long_context.speed.flops import window_context
from moe_long_context.speed.kernels import BF16_BYTES, Gemm, Times, attention, casts, gemm, memory, scan

NORM_PASSES = Times(4.0, 8.0)
PERMUTE_PASSES = 2.0
MLA_HEAD_PASSES, GQA_HEAD_PASSES, QK_NORM_PASSES = 1.25, 3.0, 2.0
"""Passes over q, k and v between projection and core: MLA splits and joins k (rope fused), GQA splits and rotates."""
GDN_PASSES, MAMBA_PASSES = 14.0, 6.0
"""Passes over the projected width: gated delta net convolves, normalises q and k, and gates in separate kernels."""
MERGE_BYTES = 12.0
"""Per element of a partial attention output in the CP ring: read FP32 and BF16, write FP32, and the final cast."""
EXPERT_BIAS_BYTES = Times(28.0, 28.0)
"""Per element of an expert's output: bias * prob, sum, concatenation and cast, in FP32 (experts.py, _apply_bias)."""
EXPERT_BIAS_LAUNCHES = 3.0


class Part(NamedTuple):
    """Seconds of one part of a layer (attention, FFN, ...): kernels, exchanges by kind, and kernel launches."""

    forward: float = 0.0
    backward: float = 0.0
    replay: float = 0.0
    tp: float = 0.0
    ep: float = 0.0
    cp: float = 0.0
    replay_ep: float = 0.0
    launches_forward: float = 0.0
    launches_backward: float = 0.0
    dense_parameters: float = 0.0
    expert_parameters: float = 0.0

    def plus(self, other: Part) -> Part:
        """Both, one after the other."""
        return Part(*(a + b for a, b in zip(self, other, strict=True)))


class LayerTime(NamedTuple):
    """Seconds of one layer and microbatch; `gpu` is kernels and exposed exchanges, `launch` what the host adds."""

    compute: float
    recompute: float
    tp: float
    ep: float
    cp: float
    launch: float
    forward_share: float
    dense_parameters: float
    expert_parameters: float

    @property
    def total(self) -> float:
        """Forward, backward and replay."""
        return self.compute + self.recompute + self.tp + self.ep + self.cp + self.launch


def gemms(facts: Facts, shapes: list[Gemm], cast_inputs: bool = True) -> tuple[Times, float]:
    """(time, parameters) of GEMMs one after the other, with the FP8 casts of x forward and dy backward."""
    forward = backward = parameters = 0.0
    for shape in shapes:
        time = gemm(facts, shape)
        parameters += shape.parameters
        forward, backward = forward + time.forward, backward + time.backward
        if shape.fp8 and cast_inputs:
            forward += casts(facts, shape.rows * shape.depth * shape.copies)
            backward += casts(facts, shape.rows * shape.columns * shape.copies)
    return Times(forward, backward), parameters


def _norms(facts: Facts) -> Times:
    """Both norms with their residual additions: passes over [tokens, hidden] in BF16, forward and backward."""
    unit = memory(facts, facts.tokens_sp * facts.arch.hidden_size * BF16_BYTES)
    return Times(2 * NORM_PASSES.forward * unit, 2 * NORM_PASSES.backward * unit)


def _tp_exchange(facts: Facts) -> float:
    """All-gather and reduce-scatter around one TP-sharded block: 2 forward, 3 backward (one more gather for dW)."""
    full = facts.tokens_cp * facts.arch.hidden_size * BF16_BYTES
    return 5 * collectives.ring(facts, full, facts.tp, facts.tp)


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
    merge = memory(facts, facts.tokens_cp * q_width * MERGE_BYTES) * hops
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
    passes = MLA_HEAD_PASSES if mla else GQA_HEAD_PASSES + QK_NORM_PASSES * facts.arch.qk_layernorm
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
        _tp_exchange(facts), 0.0, _cp_exchange(facts, kv_width, q_width, core), 0.0, count, 2 * count, parameters,
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
    extra = memory(facts, rows * width / tp * BF16_BYTES * (GDN_PASSES if kind.attention == "gdn" else MAMBA_PASSES))
    exchange = 0.0
    if facts.cp > 1:
        exchange = 6 * collectives.all_to_all(facts, rows * width / tp * BF16_BYTES, facts.cp, tp * facts.cp)
    count = launches().gdn if kind.attention == "gdn" else launches().mamba
    graphed = {"attn", "mamba"} & facts.graphs or facts.graphs == GRAPH_EVERYTHING
    count = 0 if graphed else count
    return Part(
        time.forward + core.forward + extra, time.backward + core.backward + 2 * extra, 0.0, _tp_exchange(facts),
        0.0, exchange, 0.0, count, 2 * count, parameters,
    )  # fmt: skip


def _activation(facts: Facts, rows: float, width: float) -> Times:
    """Gate, nonlinearity and product on [rows, glu * width]: read glu, write 1; backward reads glu + 1, writes glu."""
    glu = facts.arch.glu_factor
    unit = memory(facts, rows * width * BF16_BYTES)
    return Times((glu + 1) * unit, (2 * glu + 1) * unit)


def dense_part(facts: Facts) -> Part:
    """A dense MLP."""
    arch, rows = facts.arch, facts.tokens_cp
    width = arch.ffn_hidden_size / facts.tp
    time, parameters = gemms(facts, _mlp_gemms(facts, rows, width))
    act = _activation(facts, rows, width)
    replay = time.forward + act.forward if "mlp" in facts.recompute else 0.0
    count = 0 if facts.graphs & {"mlp", "full_iteration"} else launches().dense
    return Part(
        time.forward + act.forward, time.backward + act.backward, replay, _tp_exchange(facts), 0.0, 0.0, 0.0,
        count, 2 * count, parameters,
    )  # fmt: skip


def _mlp_gemms(facts: Facts, rows: float, width: float) -> list[Gemm]:
    hidden = facts.arch.hidden_size
    return [Gemm(rows, hidden, facts.arch.glu_factor * width), Gemm(rows, width, hidden)]


def moe_part(facts: Facts) -> Part:
    """Router, dispatch, experts, combine and shared expert."""
    arch, names = facts.arch, facts.recompute
    width = arch.moe_latent_size or arch.hidden_size
    time, act, parameters = _experts(facts, width)
    router, permute = _router(facts), _permute(facts, width)
    shared, shared_parameters = _shared(facts)
    latent, latent_parameters = _latent(facts)
    exchange = collectives.expert_exchange(facts, facts.tokens_sp, width)
    exchange += _etp_exchange(facts, width)
    forward = time.forward + act.forward + router.forward + permute + shared.forward + latent.forward
    backward = time.backward + act.backward + router.backward + permute + shared.backward + latent.backward
    replay, replay_ep = 0.0, 0.0
    if "moe" in names:
        replay, replay_ep = forward, 2 * exchange
    elif "moe_act" in names:
        replay = act.forward
    if "shared_experts" in names and "moe" not in names:
        replay += shared.forward
    hidden_by_shared = shared.forward + shared.backward if facts.shared_overlap else 0.0
    count_forward, count_backward = _moe_launches(facts)
    return Part(
        forward, backward, replay, _tp_exchange(facts) if arch.moe_shared_expert_intermediate_size else 0.0,
        max(4 * exchange - hidden_by_shared, 0.0), 0.0, replay_ep, count_forward, count_backward,
        arch.hidden_size * (arch.num_moe_experts or 0) + shared_parameters + latent_parameters, parameters,
    )  # fmt: skip


def _experts(facts: Facts, width: float) -> tuple[Times, Times, float]:
    """Grouped GEMMs of the local experts and the activation between; a fused grouped MLP holds casts and activation."""
    arch, local = facts.arch, facts.local_experts
    rows = facts.tokens_sp * arch.moe_router_topk * facts.etp * facts.imbalance
    inner = (arch.moe_ffn_hidden_size or 0) / facts.etp
    shapes = [
        Gemm(rows / local, width, arch.glu_factor * inner, local),
        Gemm(rows / local, inner, width, local),
    ]
    fused = facts.fused_mlp and facts.fp8
    time, parameters = gemms(facts, shapes, cast_inputs=not fused)
    act = Times(0.0, 0.0) if fused else _activation(facts, rows, inner)
    if arch.add_bias_linear:
        unit = memory(facts, rows * width)
        time = Times(time.forward + unit * EXPERT_BIAS_BYTES.forward, time.backward + unit * EXPERT_BIAS_BYTES.backward)
    return time, act, parameters


def _router(facts: Facts) -> Times:
    """Router GEMM (never FP8) and passes over the [tokens, experts] scores in FP32."""
    experts = facts.arch.num_moe_experts or 0
    time = gemm(facts, Gemm(facts.tokens_sp, facts.arch.hidden_size, experts, fp8=False))
    scores = memory(facts, facts.tokens_sp * experts * 4 * 6)
    return Times(time.forward + scores, time.backward + scores)


def _permute(facts: Facts, width: float) -> float:
    """Sorting tokens by expert and back: read and write each copy once per direction."""
    rows = facts.tokens_sp * facts.arch.moe_router_topk * facts.etp
    return memory(facts, 2 * PERMUTE_PASSES * rows * width * BF16_BYTES)


def _shared(facts: Facts) -> tuple[Times, float]:
    size = facts.arch.moe_shared_expert_intermediate_size
    if not size:
        return Times(0.0, 0.0), 0.0
    time, parameters = gemms(facts, _mlp_gemms(facts, facts.tokens_cp, size / facts.tp))
    act = _activation(facts, facts.tokens_cp, size / facts.tp)
    return Times(time.forward + act.forward, time.backward + act.backward), parameters


def _latent(facts: Facts) -> tuple[Times, float]:
    """Down and up projection around latent experts."""
    latent, hidden = facts.arch.moe_latent_size, facts.arch.hidden_size
    if not latent:
        return Times(0.0, 0.0), 0.0
    return gemms(facts, [Gemm(facts.tokens_sp, hidden, latent), Gemm(facts.tokens_sp, latent, hidden)])


def _etp_exchange(facts: Facts, width: float) -> float:
    """Gather of dispatched tokens over ETP before the experts, reduce-scatter after."""
    full = facts.tokens_sp * facts.arch.moe_router_topk * facts.etp * width * BF16_BYTES
    return collectives.ring(facts, full, facts.etp, facts.etp)


def _moe_launches(facts: Facts) -> tuple[float, float]:
    """Kernel launches that no CUDA graph holds, forward and backward."""
    table, graphs = launches(), facts.graphs
    if graphs == GRAPH_EVERYTHING or "moe" in graphs:
        return 0.0, 0.0
    fixed = table.moe_experts + (table.moe_dispatch_flex if facts.flex else table.moe_dispatch_alltoall)
    fixed += 0 if "moe_router" in graphs else table.moe_router
    fixed += 0 if "moe_preprocess" in graphs else table.moe_preprocess
    if facts.arch.moe_shared_expert_intermediate_size:
        fixed += 0 if "moe_router" in graphs else table.moe_shared
    per_expert: float = table.per_expert_fp8 if facts.fp8 else table.per_expert_bf16
    if facts.fused_mlp and facts.fp8:
        per_expert = 0
    if facts.arch.add_bias_linear:
        per_expert += EXPERT_BIAS_LAUNCHES
    count = fixed + per_expert * facts.local_experts
    return count, 2 * count


def _replayed_launches(facts: Facts, kind: LayerKind, part: Part) -> float:
    """Kernel launches that recompute adds to a layer; a graph of the whole iteration holds them too."""
    if facts.graphs == GRAPH_EVERYTHING:
        return 0.0
    if facts.full_recompute:
        return part.launches_forward * facts.full_recompute
    table, names = launches(), facts.recompute
    count = table.replay_core_attn * ("core_attn" in names) + table.replay_layernorm * ("layernorm" in names)
    count += table.replay_mla_up_proj * ("mla_up_proj" in names and kind.attention == "mla")
    if kind.ffn == "dense":
        return count + table.replay_mlp * ("mlp" in names)
    if kind.ffn == "moe" and "moe" in names:
        return count + _moe_launches(facts)[0]
    count += table.replay_shared_experts * ("shared_experts" in names)
    return count + table.replay_moe_act * ("moe_act" in names)


@lru_cache(maxsize=65536)
def layer_time(facts: Facts, kind: LayerKind) -> LayerTime:
    """One layer and microbatch: kernels and exposed exchanges, joined with the host's launch time in quadrature."""
    part = attention_part(facts, kind)
    if kind.ffn == "moe":
        part = part.plus(moe_part(facts))
    elif kind.ffn == "dense":
        part = part.plus(dense_part(facts))
    norms, e = _norms(facts), facts.eff
    forward, backward = part.forward + norms.forward, part.backward + norms.backward
    replay, replay_ep = part.replay, part.replay_ep
    if "layernorm" in facts.recompute:
        replay += norms.forward
    if facts.full_recompute:
        replay = forward * facts.full_recompute + part.cp / 3
        replay_ep = part.ep / 2 * facts.full_recompute
    compute = forward + backward
    exchange = part.ep
    if facts.ep_overlap:
        exchange -= e.ep_hidden * min(exchange, compute)
    gpu = compute + replay + replay_ep + exchange + part.tp + part.cp
    host = (part.launches_forward + part.launches_backward + _replayed_launches(facts, kind, part)) * e.launch_us * 1e-6
    if facts.ep_overlap:
        host *= e.ep_overlap_launches
    launch = (gpu * gpu + host * host) ** 0.5 - gpu
    return LayerTime(
        compute, replay + replay_ep, part.tp, exchange, part.cp, launch, forward / max(compute, 1e-12),
        part.dense_parameters, part.expert_parameters,
    )  # fmt: skip
