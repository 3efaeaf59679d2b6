"""`Part`: seconds of one part of a layer, and what attention and feed-forward parts share.

Owns the sum of GEMMs with their casts and the exchange around a TP-sharded block.
"""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.speed import collectives
from moe_long_context.speed.facts import Facts
from moe_long_context.speed.kernels import BF16_BYTES, Gemm, Times, casts, gemm


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


def tp_exchange(facts: Facts) -> float:
    """All-gather and reduce-scatter around one TP-sharded block: 2 forward, 3 backward (one more gather for dW)."""
    full = facts.tokens_cp * facts.arch.hidden_size * BF16_BYTES
    return 5 * collectives.ring(facts, full, facts.tp, facts.tp)
