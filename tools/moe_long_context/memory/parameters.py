"""Exact parameters of every pipeline rank, counted as Megatron-Core builds them.

Owns the element counts; bytes, sharding of states and gradients are `states`. What a layer is made of stands in
`layer_weights` as a table of linears and vectors. Equal to real models on the meta device: tests/oracle/part_params.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from moe_long_context.catalog.architecture import Architecture, LayerKind
from moe_long_context.config.resolve import Run
from moe_long_context.memory.layer_weights import LayerWeights, Linear, layer_weights, norm_elements
from moe_long_context.mesh.partition import Chunk, Partition


class LayerParameters(NamedTuple):
    """Elements of one layer on one rank. `dense` holds the router; `linear` counts weights that TE may quantize."""

    dense: int
    expert: int
    router: int
    linear: int
    buffers: int


class StageParameters(NamedTuple):
    """Elements of one pipeline rank. `dense` holds embedding, output head, router, shared experts and norms."""

    dense: int
    expert: int
    embedding: int
    output: int
    router: int
    linear: int
    buffers: int

    @property
    def total(self) -> int:
        """All parameters of the rank; buffers are not parameters."""
        return self.dense + self.expert


@lru_cache(maxsize=65536)
def layer_parameters(arch: Architecture, kind: LayerKind, tp: int, ep: int, etp: int) -> LayerParameters:
    """Elements of one layer of this kind on one rank."""
    return _sum(layer_weights(arch, kind, tp, ep, etp))


def _sum(weights: LayerWeights) -> LayerParameters:
    linear = sum(w.elements for w in weights.linears)
    expert = sum(w.elements + w.bias * w.copies for w in weights.linears if w.expert)
    dense = sum(w.elements + w.bias * w.copies for w in weights.linears if not w.expert) + weights.vectors
    return LayerParameters(dense + weights.router, expert, weights.router, linear, weights.buffers)


@lru_cache(maxsize=65536)
def mtp_parameters(arch: Architecture, tp: int, ep: int, etp: int) -> LayerParameters:
    """Elements of one MTP depth: its layer, the [h/TP, 2h] projection and three norms; embedding and head not included.

    Source: megatron-core 0.19.2 megatron/core/transformer/multi_token_prediction.py, MultiTokenPredictionLayer.
    """
    inner = layer_parameters(arch, arch.mtp_layer_kind, tp, ep, etp)
    projection = arch.hidden_size // tp * 2 * arch.hidden_size
    return inner._replace(
        dense=inner.dense + projection + 3 * norm_elements(arch, arch.hidden_size), linear=inner.linear + projection
    )


@lru_cache(maxsize=65536)
def linear_weights(arch: Architecture, kind: LayerKind, tp: int, ep: int, etp: int) -> tuple[Linear, ...]:
    """The linears of one layer on one rank: name, (out, in) and how many copies; router and vectors are not linears."""
    return layer_weights(arch, kind, tp, ep, etp).linears


def linear_shapes(run: Run, kind: LayerKind) -> tuple[tuple[int, int], ...]:
    """(out, in) of every linear weight of one layer on one rank, each local expert's on its own."""
    sizes = run.sizes
    linears = linear_weights(run.arch, kind, sizes.tp, sizes.ep, sizes.etp)
    return tuple((w.out, w.width) for w in linears for _ in range(w.copies))


def stage_parameters(run: Run) -> tuple[StageParameters, ...]:
    """Elements of each pipeline rank, first stage first.

    Raises:
        InvalidLayoutError: the run has no partition.
    """
    sizes = run.sizes
    positions = run.seq_length if run.arch.position_embedding_type == "learned_absolute" else 0
    return _stages(run.arch, run.partition, sizes.tp, sizes.ep, sizes.etp, run.padded_vocab_size, run.mtp, positions)


@lru_cache(maxsize=65536)
def _stages(
    arch: Architecture, split: Partition, tp: int, ep: int, etp: int, vocab: int, mtp: int, positions: int
) -> tuple[StageParameters, ...]:
    table = vocab // tp * arch.hidden_size
    stages = []
    for rank in range(split.pp):
        layers, embedding, output = [0, 0, 0, 0, 0], 0, 0
        for chunk in split.of_rank(rank):
            for count, part in _parts(arch, chunk, tp, ep, etp):
                layers = [total + count * x for total, x in zip(layers, part, strict=True)]
            embedding += (table + positions * arch.hidden_size) * bool(chunk.embedding or chunk.mtp)
            output += table * (chunk.loss and not (chunk.embedding and arch.share_embeddings_and_output_weights))
            layers[0] += norm_elements(arch, arch.hidden_size) * _has_final_norm(arch, chunk, mtp)
        dense, expert, router, linear, buffers = layers
        stages.append(StageParameters(dense + embedding + output, expert, embedding, output, router, linear, buffers))
    return tuple(stages)


def _parts(arch: Architecture, chunk: Chunk, tp: int, ep: int, etp: int) -> list[tuple[int, LayerParameters]]:
    """(how many, elements) of each kind of layer in the chunk, MTP included."""
    kinds = arch.layer_kinds[chunk.first : chunk.first + chunk.layers]
    parts = [(kinds.count(kind), layer_parameters(arch, kind, tp, ep, etp)) for kind in set(kinds)]
    if chunk.mtp:
        depths = 1 if arch.mtp_use_repeated_layer else chunk.mtp
        parts.append((depths, mtp_parameters(arch, tp, ep, etp)))
    return parts


def _has_final_norm(arch: Architecture, chunk: Chunk, mtp: int) -> bool:
    """The final norm sits with the loss; with MTP (GPT models) with the last decoder layer.

    Source: megatron-core 0.19.2 megatron/core/transformer/transformer_block.py, has_final_layernorm_in_this_stage.
    """
    if mtp and not arch.hybrid_layer_pattern:
        return chunk.layers > 0 and chunk.first + chunk.layers == arch.num_layers
    return chunk.loss
