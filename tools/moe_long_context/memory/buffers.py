"""Buffers that stay allocated beside states and activations, and what lives outside PyTorch's allocator.

Each is a named term with its source; sizes in bytes per rank.
"""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.memory.parameters import linear_weights
from moe_long_context.mesh.partition import Chunk
from moe_long_context.units import MIB

CUBLAS_WORKSPACE_BYTES = {"hopper": 32 * MIB, "blackwell": 32 * MIB}
"""One cuBLAS workspace of TransformerEngine: pytorch/module/base.py get_cublas_workspace_size_bytes (32 MiB from
compute capability 9, else 4 MiB)."""
CUBLAS_WORKSPACE_OLD_BYTES = 4 * MIB
PYTORCH_WORKSPACE_OLD_BYTES = (4096 * 2 + 16 * 8) * 1024
"""PyTorch's before Hopper, 32 MiB from Hopper on or with CUBLAS_WORKSPACE_CONFIG=:4096:8.
Source: PyTorch aten/src/ATen/cuda/CUDABlas.cpp getChosenWorkspaceSize."""
PYTORCH_HANDLES = 2
"""cuBLAS handles that hold a PyTorch workspace: the forward's and the autograd thread's."""
GROUPED_GEMM_STREAMS = 4
"""cuBLAS streams of TransformerEngine's grouped GEMM, a workspace each (tex.get_num_cublas_streams)."""


def workspace_bytes(run: Run) -> float:
    """The cuBLAS workspaces of PyTorch and TransformerEngine, and those of the grouped GEMM of experts.

    To within 10 MiB what stays allocated beside the states in 100 Megatron-LM CI runs: 64 + 32 MiB (H100, no grouped
    GEMM), 64 + 160 (H100, grouped), 64 + 4 and 64 + 20 (A100). Source: NVIDIA/Megatron-LM @d98e8a6
    tests/functional_tests golden values.
    """
    te = CUBLAS_WORKSPACE_BYTES.get(run.gpu.architecture, CUBLAS_WORKSPACE_OLD_BYTES)
    large = run.gpu.architecture in CUBLAS_WORKSPACE_BYTES or "CUBLAS_WORKSPACE_CONFIG" in run.written.env
    pytorch = 32 * MIB if large else PYTORCH_WORKSPACE_OLD_BYTES
    return PYTORCH_HANDLES * pytorch + te * (1 + (GROUPED_GEMM_STREAMS if _grouped_gemm(run) else 0))


def _grouped_gemm(run: Run) -> bool:
    """Whether experts run as one grouped GEMM: Bridge MoE recipes ask for it, Megatron-LM only with its flag."""
    written = run.written.megatron.get("model.moe_grouped_gemm")
    return run.arch.is_moe and bool(run.bridge if written is None else written)


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
