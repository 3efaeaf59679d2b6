"""Trainable parameters of LoRA and DoRA adapters on one rank."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.memory.parameters import linear_weights
from moe_long_context.mesh.partition import Chunk

DEFAULT_RANK = 32
"""Rank when none is given. Source: megatron-bridge 0.6.2 peft/lora.py, LoRA.dim."""


def adapter_parameters(run: Run, chunks: tuple[Chunk, ...]) -> tuple[float, float] | None:
    """(dense, expert) trainable elements on the rank, or None when the whole model trains.

    Each adapted linear of shape [out, in] adds rank * (out + in); DoRA adds one magnitude per output.
    """
    peft = run.written.peft
    if peft.type == "none":
        return None
    rank = peft.rank or DEFAULT_RANK
    per_output = rank + (1 if peft.type == "dora" else 0)
    dense = expert = 0.0
    sizes = run.sizes
    for chunk in chunks:
        for kind in run.arch.layer_kinds[chunk.first : chunk.first + chunk.layers]:
            for weight in linear_weights(run.arch, kind, sizes.tp, sizes.ep, sizes.etp):
                added = (weight.out * per_output + weight.width * rank) * weight.copies
                dense, expert = (dense, expert + added) if weight.expert else (dense + added, expert)
    return dense, expert
