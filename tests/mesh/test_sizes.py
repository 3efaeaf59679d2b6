"""Facts about the attention mesh and the expert mesh."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moe_long_context.mesh.sizes import Sizes, coordinates, min_gpus, num_microbatches

POWERS = st.sampled_from([1, 2, 4, 8, 16])


@pytest.mark.parametrize(
    ("tp", "cp", "pp", "ep", "etp", "expected"),
    [
        (1, 32, 8, 32, 1, 256),
        (1, 64, 8, 32, 1, 512),
        (4, 4, 4, 32, 1, 128),
        (4, 4, 4, 32, 4, 512),
        (1, 32, 6, 32, 1, 192),
        (3, 1, 1, 2, 1, 6),
    ],
)
def test_min_gpus(tp: int, cp: int, pp: int, ep: int, etp: int, expected: int) -> None:
    """PP * lcm(TP*CP, ETP*EP): the published DeepSeek-V3, Qwen3-235B and GLM-5.2 layouts; one needs the lcm."""
    assert min_gpus(tp, cp, pp, ep, etp) == expected


def test_dsv3_128k_has_one_replica_of_each_kind() -> None:
    """DeepSeek-V3 128K on 256 GPUs: DP = 256/(32*8) = 1 and EDP = 256/(32*8) = 1; CP and EP do not multiply."""
    sizes = Sizes(256, cp=32, pp=8, vpp=4, ep=32)
    assert (sizes.dp, sizes.edp, sizes.dense_shards) == (1, 1, 32)


@given(tp=POWERS, cp=POWERS, pp=POWERS, ep=POWERS, etp=POWERS, times=st.integers(1, 4))
def test_both_meshes_fill_the_gpus(tp: int, cp: int, pp: int, ep: int, etp: int, times: int) -> None:
    """TP*CP*DP*PP = ETP*EP*EDP*PP = GPUs on every multiple of the minimum."""
    sizes = Sizes(min_gpus(tp, cp, pp, ep, etp) * times, tp, cp, pp, 1, ep, etp)
    assert sizes.fits_attention and sizes.fits_expert
    assert sizes.attention_ranks * sizes.dp == sizes.expert_ranks * sizes.edp == sizes.num_gpus


@given(tp=POWERS, cp=POWERS, pp=st.sampled_from([1, 2, 4]), ep=POWERS)
def test_ranks_have_distinct_places(tp: int, cp: int, pp: int, ep: int) -> None:
    """No two ranks share a place in either mesh, and every place is taken."""
    sizes = Sizes(min_gpus(tp, cp, pp, ep, 1), tp, cp, pp, 1, ep, 1)
    places = [coordinates(rank, sizes) for rank in range(sizes.num_gpus)]
    assert len({(p["pp"], p["tp"], p["cp"], p["dp"]) for p in places}) == sizes.num_gpus
    assert len({(p["pp"], p["etp"], p["ep"], p["edp"]) for p in places}) == sizes.num_gpus
    assert max(p["cp"] for p in places) == cp - 1 and max(p["ep"] for p in places) == ep - 1


def test_microbatches() -> None:
    """GBS / (MBS*DP), 0 when the batch cannot fill one microbatch per replica."""
    assert num_microbatches(256, 1, 4) == 64
    assert num_microbatches(2, 1, 4) == 0
