"""Activation bytes of one pipeline chunk for one microbatch: what stays until its backward, and the steps of that
backward."""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.catalog.architecture import LayerKind
from moe_long_context.config.resolve import Run
from moe_long_context.memory.activations import (
    layer_saved_bytes,
    mtp_replayed_bytes,
    mtp_saved_bytes,
    postprocess_saved_bytes,
)
from moe_long_context.memory.working import layer_working
from moe_long_context.mesh.partition import Chunk


class Step(NamedTuple):
    """One moment of a chunk: `offset` (<= 0) is what its newest microbatch does not hold at that time."""

    name: str
    offset: float
    working: float


class ChunkBytes(NamedTuple):
    """One microbatch of one chunk, in bytes."""

    kept: float
    steps: tuple[Step, ...]


class _LayerCost(NamedTuple):
    kept: float
    after_attention: float
    forward: float
    backward: float


def chunk_bytes(run: Run, chunk: Chunk) -> ChunkBytes:
    """Kept bytes, and the steps that can be the chunk's peak: for the last of each run of equal layers, its attention's
    forward (later layers not yet run) and its backward (later layers already freed)."""
    costs = _layer_costs(run, chunk)
    extra = postprocess_saved_bytes(run) if chunk.loss else 0.0
    steps: list[Step] = []
    later = extra
    previous: _LayerCost | None = None
    for cost in reversed(costs):
        if cost != previous:
            steps.append(Step("forward", -later - cost.after_attention, cost.forward))
            steps.append(Step("backward", -later, cost.backward))
        later += cost.kept
        previous = cost
    return ChunkBytes(later, tuple(steps) or (Step("backward", 0.0, 0.0),))


def _layer_costs(run: Run, chunk: Chunk) -> list[_LayerCost]:
    """Cost of each layer of the chunk in forward order, MTP depths last."""
    kinds = run.arch.layer_kinds[chunk.first : chunk.first + chunk.layers]
    known: dict[tuple[LayerKind, _Checkpoint | None], _LayerCost] = {}
    costs = []
    for index, kind in enumerate(kinds):
        key = (kind, _checkpoint(run, index))
        if key not in known:
            known[key] = _cost(run, *key)
        costs.append(known[key])
    if chunk.mtp:
        inner = _cost(run, run.arch.mtp_layer_kind, _checkpoint(run, 0, mtp=True))
        backward = inner.backward + mtp_replayed_bytes(run)
        costs += [inner._replace(kept=inner.kept + mtp_saved_bytes(run), backward=backward)] * chunk.mtp
    return costs


class _Checkpoint(NamedTuple):
    """How full recompute treats a layer: whether its input is kept, and how many layers are replayed together."""

    keeps_input: bool
    replayed: int


def _checkpoint(run: Run, index: int, mtp: bool = False) -> _Checkpoint | None:
    """None = not checkpointed whole. `uniform n` keeps every n-th input, `block n` the first n layers' inputs.

    Source: megatron-core 0.19.2 transformer/transformer_block.py _checkpointed_forward; MTP: multi_token_prediction.py
    (uniform with n = 1 only; block is skipped).
    """
    if run.recompute_granularity != "full":
        return None
    count = run.recompute_num_layers or 1
    if run.recompute_method == "block":
        return _Checkpoint(True, 1) if index < count and not mtp else None
    return _Checkpoint(index % count == 0, count)


def _cost(run: Run, kind: LayerKind, checkpoint: _Checkpoint | None) -> _LayerCost:
    saved = layer_saved_bytes(run, kind)
    working = layer_working(run, kind)
    if checkpoint is None:
        replayed_core = working.forward if "core_attn" in run.recompute_modules else 0.0
        backward = saved.rematerialised + max(working.backward, replayed_core)
        return _LayerCost(saved.kept, saved.kept_after_attention, working.forward, backward)
    kept = saved.layer_input if checkpoint.keeps_input else 0.0
    replay = saved.everything * checkpoint.replayed
    forward_again = replay - saved.after_attention + working.forward
    return _LayerCost(kept, 0.0, working.forward, max(replay + working.backward, forward_again))
