"""Weights, gradients and optimizer states of one rank, in bytes, and what CPU offload moves to the host.

Bytes per element follow megatron-core 0.19.2 optimizer/distrib_optimizer.py (`_build_model_and_main_param_groups`),
optimizer/optimizer_config.py, optimizer/cpu_offloading/hybrid_optimizer.py and distributed/param_and_grad_buffer.py.
"""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.config.resolve import FP8_PRECISIONS, Run
from moe_long_context.memory.parameters import StageParameters
from moe_long_context.units import BYTES_PER_DTYPE


class StateBytes(NamedTuple):
    """Bytes on one rank. `moments` exist only after the first optimizer step."""

    weights: float
    gradients: float
    masters: float
    moments: float
    host: float

    @property
    def optimizer(self) -> float:
        """Master weights and moments on the device."""
        return self.masters + self.moments

    @property
    def total(self) -> float:
        """All that stays allocated between steps."""
        return self.weights + self.gradients + self.masters + self.moments


class Split(NamedTuple):
    """Trainable and frozen elements of one rank, dense and expert, and how many of each TE keeps quantized."""

    dense: float
    expert: float
    quantized: float
    frozen: float
    scalar: float


def split_parameters(run: Run, stage: StageParameters, adapters: tuple[float, float] | None = None) -> Split:
    """Which elements train. With LoRA/DoRA only the adapters (dense, expert) do; the base stays as frozen bf16."""
    quantized = stage.linear if run.precision != "bf16" else 0
    if adapters is None:
        return Split(stage.dense, stage.expert, quantized, 0, stage.embedding + stage.output)
    return Split(adapters[0], adapters[1], quantized, stage.dense + stage.expert, 0)


# Bytes per element of the quantized copies that TE linears keep beside (or instead of) the bf16 weight: a row-wise copy
# for the forward and a column-wise one for dgrad. Tensor-wise FP8 GEMMs on Blackwell need no transposed copy.
# Source: TransformerEngine pytorch/tensor/*_tensor.py (Float8Tensor._transpose, Float8BlockwiseQTensor, MXFP8Tensor,
# NVFP4Tensor).
ROWWISE_BYTES = {
    "fp8_tensorwise": 1.0,
    "fp8_delayed": 1.0,
    "fp8_blockwise": 1.0,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}


def quantized_weight_bytes(run: Run) -> float:
    """Bytes per element of the quantized weight copies, 0 for bf16."""
    row = ROWWISE_BYTES.get(run.precision, 0.0)
    transpose_free = run.precision in ("fp8_tensorwise", "fp8_delayed") and run.gpu.compute_capability >= 10
    return row if transpose_free else 2 * row


def stage_states(run: Run, stage: StageParameters, adapters: tuple[float, float] | None = None) -> StateBytes:
    """Bytes of one pipeline rank's states after the first step.

    Dense states shard over DP*CP, expert states over EDP when the distributed optimizer is on.
    """
    parts = split_parameters(run, stage, adapters)
    train = parts.dense + parts.expert
    shards = _sharded(run, parts)
    master, moment = bytes_per_shard_element(run)
    offload = run.cpu_offload_fraction
    kept_master = 0.0 if run.precision_aware else master
    device_masters = shards * (master * (1 - offload) + kept_master * offload)
    device_moments = _moments(run, parts, shards, moment) * (1 - offload)
    host = shards * offload * HOST_BYTES_PER_ELEMENT
    scale = _fsdp_scale(run)
    return StateBytes(
        weights=_weights(run, parts, train) * scale.weights,
        gradients=train * gradient_bytes(run) * scale.gradients,
        masters=device_masters,
        moments=device_moments,
        host=host,
    )


# fp32 master 4 + pinned fp32 gradient 4 + two fp32 moments 8, per offloaded element.
# Source: megatron-core 0.19.2 optimizer/cpu_offloading/hybrid_optimizer.py (param_update_in_fp32, cpu_copy_map_grad).
HOST_BYTES_PER_ELEMENT = 16


def gradient_bytes(run: Run) -> float:
    """Bytes per trainable element of the main-gradient buffer."""
    return BYTES_PER_DTYPE[run.grad_dtype]


def bytes_per_shard_element(run: Run) -> tuple[float, float]:
    """(master, both moments) in bytes per sharded element on the device without offload.

    The precision-aware optimizer stores an fp32 master of a bf16 weight as its 16 missing bits
    (store_param_remainders). With CPU offload the hybrid optimizer keeps plain fp32.
    """
    if not run.precision_aware:
        return 4.0, 8.0
    if run.cpu_offload:
        return 4.0, 8.0
    moment = 2 * BYTES_PER_DTYPE[run.moment_dtype]
    master = float(BYTES_PER_DTYPE[run.master_dtype])
    remainders = run.written.field("optimizer.store_param_remainders") is not False
    core_managed = run.fp8_primary_weights and run.precision != "fp8_delayed"
    if run.master_dtype == "fp32" and remainders and not core_managed:
        master = 2.0
    return master, moment


def _sharded(run: Run, parts: Split) -> float:
    """Trainable elements whose states this rank holds: a shard, of DP / instances where the optimizer has several.

    Source: megatron-core 0.19.2 parallel_state.py, intra_partial_data_parallel_size.
    """
    if not run.distributed_optimizer and not run.written.fsdp.enabled:
        return parts.dense + parts.expert
    instances = int(run.written.field("ddp.num_distributed_optimizer_instances") or 1)
    return parts.dense / max(run.sizes.dense_shards / instances, 1) + parts.expert / max(run.sizes.edp / instances, 1)


def _moments(run: Run, parts: Split, shards: float, moment: float) -> float:
    if run.optimizer in ("muon", "dist_muon"):
        total = max(parts.dense + parts.expert, 1)
        scalar_share = min(parts.scalar / total, 1.0)
        return shards * (4 * (1 - scalar_share) + 8 * scalar_share)
    if run.optimizer == "sgd":
        return shards * 4
    return shards * (moment / 2 if run.optimizer == "lion" else moment)


def _weights(run: Run, parts: Split, train: float) -> float:
    total = train + parts.frozen
    copies = quantized_weight_bytes(run)
    primary = run.fp8_primary_weights and run.precision in FP8_PRECISIONS
    plain = total - parts.quantized if primary else total
    return plain * 2 + parts.quantized * copies


class _Scale(NamedTuple):
    weights: float
    gradients: float


def _fsdp_scale(run: Run) -> _Scale:
    """Share of weights and gradients that Megatron-FSDP leaves on a rank between uses."""
    if not run.written.fsdp.enabled:
        return _Scale(1.0, 1.0)
    sharding = run.written.fsdp.sharding or ("no_shard" if run.bridge else "optim_grads_params")
    share = 1 / max(run.sizes.dense_shards, 1)
    return _Scale(share if sharding == "optim_grads_params" else 1.0, share if "grads" in sharding else 1.0)
