"""Time of one kernel on one GPU: a roofline of arithmetic and memory with the platform's named efficiencies.

Owns kernels only; which kernels a layer runs is `layers`, what moves between GPUs is `collectives`.
"""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.speed.facts import Facts

BF16_BYTES = 2
NARROW_HEAD = 128
BACKWARD_OVER_FORWARD = 2.5
"""Fused attention: five matrix products backward (scores again, dv, dp, dq, dk) for two forward."""


class Gemm(NamedTuple):
    """[rows, depth] x [depth, columns], `copies` times side by side (experts of a grouped GEMM)."""

    rows: float
    depth: float
    columns: float
    copies: float = 1.0
    fp8: bool = True

    @property
    def flops(self) -> float:
        """FLOPs of the forward: 2 m k n."""
        return 2 * self.rows * self.depth * self.columns * self.copies

    @property
    def parameters(self) -> float:
        """Weights: k n."""
        return self.depth * self.columns * self.copies


class Times(NamedTuple):
    """Seconds of forward and backward."""

    forward: float
    backward: float


def gemm(facts: Facts, g: Gemm) -> Times:
    """Forward y = xW, and backward dx = dy W^T with dW = x^T dy.

    Each product takes max(2mkn / (peak * efficiency), bytes / HBM); the efficiency falls with few rows and a short
    reduction as m/(m + m_half) * k/(k + k_half). Frozen weights (adapters train) need no dW.
    """
    if g.rows <= 0 or g.copies <= 0:
        return Times(0.0, 0.0)
    forward = _product(facts, g, g.rows, g.depth, g.columns)
    data = _product(facts, g, g.rows, g.columns, g.depth)
    weight = 0.0 if facts.frozen else _product(facts, g, g.depth, g.rows, g.columns)
    return Times(forward, data + weight)


def _product(facts: Facts, g: Gemm, m: float, k: float, n: float) -> float:
    e = facts.eff
    low = facts.fp8 and g.fp8
    peak = facts.rates.fp8 * e.gemm_fp8 if low else facts.rates.bf16 * e.gemm_bf16
    narrow = min(m, n)
    shape = narrow / (narrow + e.gemm_half_rows) * k / (k + e.gemm_half_depth)
    size = 1 if low else BF16_BYTES
    moved = (size * (m * k + k * n) + BF16_BYTES * m * n) * g.copies
    return max(2 * m * k * n * g.copies / (peak * shape), moved / (facts.rates.hbm * e.gemm_memory))


def memory(facts: Facts, n_bytes: float) -> float:
    """Seconds of a kernel that only moves bytes."""
    return n_bytes / (facts.rates.hbm * facts.eff.memory)


def casts(facts: Facts, elements: float) -> float:
    """Casting a BF16 tensor to FP8: read 2 bytes, write a row- and a column-wise copy, times the recipe's passes."""
    if not facts.fp8:
        return 0.0
    return memory(facts, elements * (BF16_BYTES + 2) * facts.cast_passes)


def attention(facts: Facts, context: float, heads: float, dim_qk: float, dim_v: float) -> Times:
    """Fused causal attention of one microbatch: 2 T c h (d_qk + d_v) forward, 2.5 times that backward.

    T = tokens on this CP rank, c = mean keys per query over the whole sequence (S/2 when causal; the zigzag split
    balances the CP ranks). The rate is peak * e / (1 + S_half / S); heads narrower than 128 do as many exponentials
    for fewer products and lose (d/128)^power.
    """
    e = facts.eff
    flops = 2 * facts.tokens_cp * context * heads * (dim_qk + dim_v)
    chunk = facts.seq_length * facts.cp_inner / facts.cp if "p2p" in facts.cp_comm else facts.seq_length
    length = max(min(2 * context, chunk), 1.0)
    speed = facts.rates.bf16 * (e.attention_fp8_speedup if facts.fp8_attention else 1.0)
    speed *= min(1.0, dim_v / NARROW_HEAD) ** e.attention_narrow_power
    forward = flops / (speed * e.attention_forward) * (1 + e.attention_half_forward / length)
    backward = BACKWARD_OVER_FORWARD * flops / (speed * e.attention_backward) * (1 + e.attention_half_backward / length)
    return Times(forward, backward)


def scan(facts: Facts, flops: float) -> Times:
    """A chunked linear-attention or state-space scan: backward is twice the forward."""
    forward = flops / (facts.rates.bf16 * facts.eff.scan)
    return Times(forward, 2 * forward)
