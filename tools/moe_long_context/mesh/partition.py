"""Which layers each pipeline rank holds: balanced, uneven, account_for_* and explicit layouts, with VPP and MTP.

A partition is a list of chunks in execution order (chunk = one virtual stage); chunk i lives on rank i % PP.
Source: megatron-core 0.19.2 megatron/core/transformer/transformer_block.py, get_num_layers_to_build, and
transformer_layer.py, get_transformer_layer_offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from moe_long_context.errors import InvalidLayoutError
from moe_long_context.mesh.layout_string import layout_problems, stages_of


class Chunk(NamedTuple):
    """One virtual pipeline stage: decoder layers [first, first + layers), and what else it holds."""

    first: int
    layers: int
    embedding: bool = False
    mtp: int = 0
    loss: bool = False

    @property
    def letters(self) -> str:
        """The chunk in layout letters."""
        return "E" * self.embedding + "t" * self.layers + "m" * self.mtp + "L" * self.loss


class Partition(NamedTuple):
    """All chunks in execution order; `chunks[v * pp + p]` is virtual stage v of rank p."""

    pp: int
    vpp: int
    chunks: tuple[Chunk, ...]

    def of_rank(self, rank: int) -> tuple[Chunk, ...]:
        """The chunks of pipeline rank `rank`, first virtual stage first."""
        return self.chunks[rank :: self.pp]

    @property
    def stages(self) -> tuple[str, ...]:
        """The partition in layout letters."""
        return tuple(chunk.letters for chunk in self.chunks)


class PartitionRequest(NamedTuple):
    """Everything that decides a partition. `layout` wins over the other ways of splitting."""

    num_layers: int
    pp: int
    vpp: int | None = None
    mtp: int = 0
    layout: str | tuple[tuple[str, ...], ...] | None = None
    first: int | None = None
    last: int | None = None
    account_embedding: bool = False
    account_loss: bool = False


@lru_cache(maxsize=4096)
def partition(request: PartitionRequest) -> Partition:
    """The chunks that Megatron-Core would build.

    Raises:
        InvalidLayoutError: counts that do not divide, or a layout that the framework refuses.
    """
    if request.layout is not None:
        return _from_layout(request)
    counts = _counts_per_rank(request)
    vpp = request.vpp or 1
    per_chunk = [_split_rank(count, vpp, request, rank) for rank, count in enumerate(counts)]
    flat = [per_chunk[rank][v] for v in range(vpp) for rank in range(request.pp)]
    return _assemble(request, vpp, flat)


def _from_layout(request: PartitionRequest) -> Partition:
    assert request.layout is not None
    stages = stages_of(request.layout)
    problems = layout_problems(stages, request.num_layers, request.mtp, request.pp)
    if problems:
        raise InvalidLayoutError(
            f"pipeline_model_parallel_layout: {problems[0]}.",
            given=str(request.layout)[:200],
            fix="write one letter per layer, for example Et*3|(tt|)*29m|L",
        )
    chunks, first = [], 0
    for stage in stages:
        count = stage.count("t")
        chunks.append(Chunk(first, count, "E" in stage, stage.count("m"), "L" in stage))
        first += count
    return Partition(request.pp, len(stages) // request.pp, tuple(chunks))


def _counts_per_rank(request: PartitionRequest) -> list[int]:
    """Layers per rank, embedding and loss counted as layers under account_for_*."""
    layers, pp = request.num_layers, request.pp
    if request.first is not None or request.last is not None:
        return _uneven_counts(request)
    total = layers + request.account_embedding + request.account_loss
    if total % pp:
        raise InvalidLayoutError(
            f"{total} layers (embedding and loss included where accounted for) do not divide over PP={pp}.",
            given=f"num_layers={layers}, PP={pp}",
            fix="use a layout string, num_layers_in_first/last_pipeline_stage, or account_for_*",
        )
    return [total // pp] * pp


def _uneven_counts(request: PartitionRequest) -> list[int]:
    rest, ranks = request.num_layers, request.pp
    for given in (request.first, request.last):
        if given is not None:
            rest, ranks = rest - given, ranks - 1
    if rest < 0 or ranks < 0 or (ranks == 0 and rest) or (ranks > 0 and rest % ranks):
        raise InvalidLayoutError(
            f"{rest} layers are left for {ranks} middle stages and do not divide.",
            given=f"num_layers={request.num_layers}, first={request.first}, last={request.last}, PP={request.pp}",
            fix="choose first and last so that the rest divides, or use a layout string",
        )
    middle = [rest // ranks] * ranks if ranks else []
    head = [] if request.first is None else [request.first]
    tail = [] if request.last is None else [request.last]
    return head + middle + tail


def _split_rank(count: int, vpp: int, request: PartitionRequest, rank: int) -> list[int]:
    if count % vpp:
        raise InvalidLayoutError(
            f"{count} layers of pipeline rank {rank} do not divide over VPP={vpp}.",
            given=f"PP={request.pp}, VPP={vpp}",
            fix="use a VPP that divides the layers of a rank, or a layout string",
        )
    return [count // vpp] * vpp


def _assemble(request: PartitionRequest, vpp: int, counts: Sequence[int]) -> Partition:
    """Chunks from per-chunk counts; the accounted embedding and loss each take one layer's place."""
    chunks, first, last = [], 0, len(counts) - 1
    for index, count in enumerate(counts):
        layers = count - (request.account_embedding and index == 0) - (request.account_loss and index == last)
        if layers < 0:
            raise InvalidLayoutError(
                "A stage that only holds the accounted embedding and loss has no room.", given=str(request.pp)
            )
        chunks.append(Chunk(first, layers, index == 0, request.mtp if index == last else 0, index == last))
        first += layers
    return Partition(request.pp, vpp, tuple(chunks))
