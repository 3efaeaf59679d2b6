"""Facts about which layers each pipeline rank holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_long_context.errors import InvalidLayoutError
from moe_long_context.mesh.partition import PartitionRequest, partition


def counts(request: PartitionRequest) -> list[list[int]]:
    """Layers per rank and virtual stage."""
    split = partition(request)
    return [[chunk.layers for chunk in split.of_rank(rank)] for rank in range(request.pp)]


def test_even_split_and_interleaving() -> None:
    """8 layers on PP2 VPP2: rank 0 holds layers 0,1,4,5 (comment in get_num_layers_to_build)."""
    split = partition(PartitionRequest(8, pp=2, vpp=2))
    assert [chunk.first for chunk in split.of_rank(0)] == [0, 4]
    assert [chunk.first for chunk in split.of_rank(1)] == [2, 6]


def test_uneven_first_and_last() -> None:
    """61 layers with 7 first and 6 last leave 48 for six middle stages."""
    assert counts(PartitionRequest(61, pp=8, first=7, last=6)) == [[7], *[[8]] * 6, [6]]


def test_accounted_embedding_and_loss_take_a_layer_each() -> None:
    """Qwen3-235B's 94 layers on PP4 VPP12: (94+2)/4/12 = 2 per chunk, one fewer in the very first and very last."""
    split = counts(PartitionRequest(94, pp=4, vpp=12, account_embedding=True, account_loss=True))
    assert split[0] == [1, *[2] * 11]
    assert split[3] == [*[2] * 11, 1]
    assert sum(map(sum, split)) == 94


def test_layout_places_mtp_and_loss() -> None:
    """`Et|(tt|)*30mL` on PP8: the last rank holds three chunks of two layers, then MTP and loss."""
    last = partition(PartitionRequest(61, pp=8, mtp=1, layout="Et|(tt|)*30mL")).of_rank(7)
    assert [chunk.letters for chunk in last] == ["tt", "tt", "tt", "mL"]


@pytest.mark.parametrize(
    "request_",
    [
        PartitionRequest(61, pp=8),
        PartitionRequest(94, pp=4, vpp=12),
        PartitionRequest(48, pp=4, vpp=5),
        PartitionRequest(10, pp=4, first=9, last=5),
        PartitionRequest(61, pp=8, first=6, last=6),
        PartitionRequest(3, pp=2, layout="Et|tL"),
    ],
)
def test_what_does_not_divide_is_refused(request_: PartitionRequest) -> None:
    """The splits that Megatron-Core asserts on."""
    with pytest.raises(InvalidLayoutError):
        partition(request_)


@given(pp=st.integers(1, 8), vpp=st.integers(1, 4), each=st.integers(1, 4))
def test_every_layer_is_placed_once(pp: int, vpp: int, each: int) -> None:
    """Chunks in execution order cover the layers without gap or overlap."""
    split = partition(PartitionRequest(pp * vpp * each, pp=pp, vpp=vpp))
    layers = [i for chunk in split.chunks for i in range(chunk.first, chunk.first + chunk.layers)]
    assert layers == list(range(pp * vpp * each))
