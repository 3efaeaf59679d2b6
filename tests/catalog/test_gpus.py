"""The catalog's GPUs: names, sources of values, relations that hold between data sheets."""

from __future__ import annotations

import pytest

from moe_long_context.catalog.gpu import Gpu
from moe_long_context.catalog.loader import gpu, gpu_ids
from moe_long_context.errors import UnknownNameError

VALUES = ("memory_gib", "bf16_tflops", "fp8_tflops", "nvfp4_tflops", "hbm_tb_s", "nvlink_gb_s", "nic_gb_s")
NAMES = ("H20", "H100", "H200", "H800", "A100", "A800", "B200", "B300", "GB200", "GB300", "A100-40GB")


def test_the_contract_names_are_there() -> None:
    """Every GPU that a run configuration may name has an entry."""
    assert set(NAMES) <= set(gpu_ids())


@pytest.mark.parametrize("name", NAMES)
def test_each_value_has_a_source(name: str) -> None:
    """A number without a source is a guess."""
    entry = gpu(name)
    given = [value for value in (*VALUES, "host_link_gb_s", "host_gib_per_node") if getattr(entry, value) is not None]
    assert set(given) <= set(entry.sources)


@pytest.mark.parametrize(
    ("name", "gpu_id"),
    [
        ("a100", "A100"),
        ("A100-80GB", "A100"),
        ("a100-40gb", "A100-40GB"),
        ("h100 SXM", "H100"),
        ("gb300-nvl72", "GB300"),
    ],
)
def test_names_that_people_type(name: str, gpu_id: str) -> None:
    """Bare A100 is the 80 GB card; case, blanks and underscores do not matter."""
    assert gpu(name).id == gpu_id


@pytest.mark.parametrize("name", NAMES)
def test_fp8_is_twice_bf16(name: str) -> None:
    """Dense peaks double from BF16 to FP8 on Hopper and Blackwell; Ampere has no FP8 (NVIDIA data sheets)."""
    entry = gpu(name)
    if entry.architecture == "ampere":
        assert entry.fp8_tflops is None
    else:
        assert entry.fp8_tflops == pytest.approx(2 * entry.bf16_tflops, rel=0.001)


def test_memory_is_what_the_driver_reports() -> None:
    """H100: 80999 MiB total on Bridge's verification card glm5.2, not 80 GiB."""
    assert gpu("H100").memory_gib == pytest.approx(80999 / 1024, abs=0.01)


def test_unknown_gpu_names_the_nearest() -> None:
    """A slip in a GPU name is answered with the name that was meant."""
    with pytest.raises(UnknownNameError) as caught:
        gpu("H1000")
    assert "H100" in caught.value.allowed


def test_bytes_of_memory() -> None:
    """GiB are 2**30 bytes."""
    card = Gpu(id="x", memory_gib=2, bf16_tflops=1, hbm_tb_s=1, nvlink_gb_s=1, nic_gb_s=1)
    assert card.memory_bytes == 2 * 2**30
