"""Buffers that stay allocated beside states and activations, and what lives outside PyTorch's allocator.

Each is a named term with its source; sizes in bytes per rank.
"""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.memory.parameters import linear_weights
from moe_long_context.mesh.partition import Chunk
from moe_long_context.units import MIB

CUBLAS_WORKSPACE_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB}
"""One cuBLAS workspace. PyTorch and TransformerEngine hold one each. Source: TransformerEngine pytorch/module/base.py
get_cublas_workspace_size_bytes (32 MiB from compute capability 9, else 4 MiB); PyTorch CUDABlas default for Hopper."""
CUBLAS_WORKSPACE_OLD_BYTES = 4 * MIB


GROUPED_GEMM_STREAMS = 4
"""cuBLAS streams of TransformerEngine's grouped GEMM, a workspace each (tex.get_num_cublas_streams)."""


def workspace_bytes(run: Run) -> float:
    """The cuBLAS workspaces of PyTorch and TransformerEngine, and those of the grouped GEMM for MoE."""
    count = 2 + (GROUPED_GEMM_STREAMS if run.arch.is_moe else 0)
    return count * CUBLAS_WORKSPACE_BYTES.get(run.gpu.architecture, CUBLAS_WORKSPACE_OLD_BYTES)


def gather_buffer_bytes(run: Run) -> float:
    """The reused buffer that sequence parallelism gathers a linear's input into ([s/cp, b, h] in bf16).

    Source: megatron-core 0.19.2 core/utils.py GlobalMemoryBuffer, used by tensor_parallel/layers.py.
    """
    return run.tokens_per_cp_rank * run.arch.hidden_size * 2 if run.sequence_parallel else 0


def dummy_wgrad_bytes(run: Run, chunks: tuple[Chunk, ...]) -> float:
    """One cached placeholder per distinct TE weight shape of the rank, kept from the first backward on.

    With fused gradient accumulation TE returns a cached tensor of the weight's shape as its gradient.
    Source: TransformerEngine pytorch/module/base.py get_dummy_wgrad (keyed by shape and dtype).
    """
    if not run.gradient_accumulation_fusion or run.written.peft.type != "none":
        return 0
    kinds = {kind for chunk in chunks for kind in run.arch.layer_kinds[chunk.first : chunk.first + chunk.layers]}
    if any(chunk.mtp for chunk in chunks):
        kinds.add(run.arch.mtp_layer_kind)
    sizes = run.sizes
    shapes = {
        (weight.out, weight.width)
        for kind in kinds
        for weight in linear_weights(run.arch, kind, sizes.tp, sizes.ep, sizes.etp)
    }
    return sum(rows * columns for rows, columns in shapes) * 2


def pipeline_buffer_bytes(run: Run) -> float:
    """Receive buffers of one activation and one gradient between pipeline stages ([s/cp/tp, b, h] in bf16 each)."""
    if run.sizes.pp == 1:
        return 0
    share = run.sizes.tp if run.sequence_parallel else 1
    return 2 * run.tokens_per_cp_rank / share * run.arch.hidden_size * 2
