"""Seconds of the feed-forward half of a layer: dense MLP, or router, dispatch, experts, combine and shared expert.

Source: megatron-core 0.19.2 megatron/core/transformer/mlp.py and moe/ (router.py, token_dispatcher.py, experts.py).
"""

from __future__ import annotations

from moe_long_context.speed import collectives
from moe_long_context.speed.efficiency import launches, traffic
from moe_long_context.speed.facts import GRAPH_EVERYTHING, Facts
from moe_long_context.speed.kernels import BF16_BYTES, Gemm, Times, gemm, memory
from moe_long_context.speed.parts import Part, gemms, tp_exchange


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
        time.forward + act.forward, time.backward + act.backward, replay, tp_exchange(facts), 0.0, 0.0, 0.0,
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
    count_forward, count_backward = moe_launches(facts)
    return Part(
        forward, backward, replay, tp_exchange(facts) if arch.moe_shared_expert_intermediate_size else 0.0,
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
        time = Times(
            time.forward + unit * traffic().expert_bias_forward, time.backward + unit * traffic().expert_bias_backward
        )
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
    return memory(facts, 2 * traffic().permute * rows * width * BF16_BYTES)


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


def moe_launches(facts: Facts) -> tuple[float, float]:
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
        per_expert += launches().per_expert_bias
    count = fixed + per_expert * facts.local_experts
    return count, 2 * count
