"""Facts about weights, gradients and optimizer states."""

import pytest

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.memory.parameters import StageParameters
from moe_long_context.memory.states import HOST_BYTES_PER_ELEMENT, StateBytes, stage_states

BASE = {
    "model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 16, "seq_length": 4096, "ep": 4, "tp": 2, "pp": 2, "sp": True,
}  # fmt: skip
STAGE = StageParameters(dense=1000, expert=4000, embedding=300, output=0, router=10, linear=4600, buffers=0)


def run(**changes: object) -> Run:
    """A Qwen3-30B run on 16 GPUs: DP = 4, EDP = 2."""
    return resolve({**BASE, **changes})


def states(**changes: object) -> StateBytes:
    """States of a made-up stage of 1,000 dense and 4,000 expert parameters."""
    return stage_states(run(**changes), STAGE)


def test_distributed_optimizer_shards_dense_over_dp_cp_and_experts_over_edp() -> None:
    """2 + 4 bytes a parameter and 12 a shard: dense/(DP*CP = 4), experts/(EDP = 2)."""
    got = states()
    shards = 1000 / 4 + 4000 / 2
    assert (got.weights, got.gradients, got.masters, got.moments) == (10000, 20000, 4 * shards, 8 * shards)


def test_plain_optimizer_keeps_18_bytes_a_parameter() -> None:
    """Without the distributed optimizer nothing is sharded: 2 + 4 + 4 + 8."""
    assert states(optimizer={"distributed": False}).total == 18 * 5000


def test_precision_aware_keeps_the_master_as_remainder() -> None:
    """bf16 moments and a 16-bit master remainder: 2 + 2 + 2 bytes a shard (store_param_remainders)."""
    got = states(optimizer={"precision_aware": True, "moment_dtype": "bf16", "grad_dtype": "bf16"})
    assert (got.gradients, got.masters, got.moments) == (10000, 2 * 2250, 4 * 2250)


def test_offload_without_precision_aware_leaves_the_masters_on_the_device() -> None:
    """Measured: Qwen3-30B TP2 PP2 EP4 on 16 H100 frees 15.2 GB from fraction 0 to 1, 8 of the 12 bytes a shard
    (Bridge CPU-offload skill, 47.2 -> 32.0 GB): the fp32 shards of the distributed optimizer stay."""
    got = states(optimizer={"cpu_offload_fraction": 1.0})
    assert (got.masters, got.moments, got.host) == (4 * 2250, 0, HOST_BYTES_PER_ELEMENT * 2250)


def test_measured_offload_slope() -> None:
    """The same run in real size: 15.2 GB measured, at most 2 % off."""
    whole = {"optimizer": {"cpu_offload_fraction": 1.0}}
    from moe_long_context.memory.parameters import stage_parameters

    saved = max(
        stage_states(run(), stage).total - stage_states(run(**whole), stage).total for stage in stage_parameters(run())
    )
    assert saved / 1e9 == pytest.approx(15.2, rel=0.02)


def test_offload_with_precision_aware_moves_everything() -> None:
    """No masters exist on the device then: 12 bytes a shard leave."""
    got = states(optimizer={"cpu_offload_fraction": 1.0, "precision_aware": True})
    assert got.masters == got.moments == 0


@pytest.mark.parametrize(
    ("gpu", "precision", "primary", "weights"),
    [
        ("H100", "bf16", None, 2 * 5000),
        ("H100", "fp8_blockwise", None, 2 * 5000 + 2 * 4600),
        ("H100", "fp8_tensorwise", None, 2 * 400 + 2 * 4600),
        ("GB200", "fp8_tensorwise", None, 2 * 400 + 1 * 4600),
        ("H100", "fp8_tensorwise", False, 2 * 5000 + 2 * 4600),
        ("GB200", "mxfp8", None, 2 * 400 + 2 * (1 + 1 / 32) * 4600),
    ],
)
def test_quantized_weight_copies(gpu: str, precision: str, primary: bool | None, weights: float) -> None:
    """Row-wise and column-wise copies beside bf16, or instead of it where Bridge's recipe gathers FP8 parameters."""
    extra = {} if primary is None else {"megatron": {"mixed_precision.fp8_param_gather": primary}}
    assert states(gpu=gpu, precision=precision, **extra).weights == pytest.approx(weights)


def test_muon_keeps_one_moment_for_matrices() -> None:
    """Momentum only (4 bytes) for matrices, Adam's two (8) for embeddings and the head: 300 of 5,000 here."""
    got = states(optimizer={"type": "dist_muon"})
    assert got.moments == pytest.approx(2250 * (4 * 0.94 + 8 * 0.06))
