"""What the table of kept tensors depends on, and how a row is written. Symbols are those of the package's docstring."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.resolve import Run
from moe_long_context.memory.working import dispatched_tokens, score_elements

QUANTIZED_INPUT_BYTES = {
    "bf16": 2.0, "fp8_tensorwise": 1.0, "fp8_delayed": 1.0, "fp8_blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}  # fmt: skip
"""Bytes per element of a linear's saved input: one column-wise copy and its scales, the row-wise copy is dropped.

TransformerEngine pytorch/module/{linear,layernorm_linear,grouped_linear}.py, `update_usage(rowwise_usage=False)`;
scales: fp32 for 128 elements (blockwise), one byte for 32 (MXFP8) or 16 (NVFP4).
"""
GATHERS_BOTH_COPIES = frozenset({"nvfp4"})
"""Precisions of which a linear with a fused norm keeps the row-wise copy too when its backward gathers over TP:
TransformerEngine pytorch/module/layernorm_linear.py, `ctx.ln_out_needs_gather`."""
ALL_GATHER_KEEPS_ONE_OUTPUT = (2, 15)
"""TransformerEngine release whose all-gather context parallelism keeps the joined attention output instead of each
step's: pytorch/attention/dot_product_attention/context_parallel.py AttnFuncWithCPAndKVAllGather, 2.14 and 2.15."""
FP32 = 4
BF16 = 2
INT64 = 8
INT32 = 4


class SavedTensor(NamedTuple):
    """One tensor kept for backward. `bytes` on one rank for one microbatch; any module of `freed_by` frees it.

    `only_with`: kept only when one of these modules is recomputed (a checkpoint's own input).
    """

    name: str
    module: str
    shape: str
    bytes: float
    freed_by: frozenset[str] = frozenset()
    offloadable_by: frozenset[str] = frozenset()
    only_with: frozenset[str] = frozenset()

    def kept(self, recomputed: frozenset[str]) -> bool:
        """Whether it is kept under these recompute modules."""
        return not self.freed_by & recomputed and (not self.only_with or bool(self.only_with & recomputed))


class Facts(NamedTuple):
    """What the table depends on. Tokens: t of the CP rank, s of the TP rank under sequence parallelism.

    `scores`: elements of the attention matrices, 0 when a flash or fused kernel never builds them.
    """

    arch: Architecture
    t: float
    s: float
    tp: int
    etp: int
    two_outputs: bool
    dispatched: float
    linear_bytes: float
    norm_linear_bytes: float
    quantized: bool
    keeps_both_copies: bool
    router_bytes: int
    aux_loss: bool
    clamped: bool
    activation_fused: bool
    allgather: bool
    rotary_fused: bool
    scores: float
    attention_dropout: bool
    hidden_dropout: bool


@lru_cache(maxsize=64)
def facts_of(run: Run) -> Facts:
    """The facts of a run that decide what its layers keep.

    FP8 and FP4 attention and shared-expert projections keep their bf16 input instead of a second, quantized copy,
    except with delayed scaling: megatron-core 0.19.2 transformer/attention.py, moe/shared_experts.py
    (set_save_original_input).
    """
    t = run.tokens_per_cp_rank
    gathers = run.sequence_parallel and run.sizes.tp > 1
    linear_bytes = QUANTIZED_INPUT_BYTES[run.precision]
    coefficient = _setting(run, "moe_aux_loss_coeff")
    coefficients = coefficient if isinstance(coefficient, list | tuple) else [coefficient]
    return Facts(
        arch=run.arch,
        t=t,
        s=t / run.sizes.tp if run.sequence_parallel else t,
        tp=run.sizes.tp,
        etp=run.sizes.etp,
        two_outputs=run.sizes.cp > 1 and _two_outputs(run),
        dispatched=dispatched_tokens(run),
        linear_bytes=linear_bytes,
        norm_linear_bytes=linear_bytes * (2 if gathers and run.precision in GATHERS_BOTH_COPIES else 1),
        quantized=run.precision != "bf16",
        keeps_both_copies=run.precision == "fp8_delayed",
        router_bytes=FP32 if _setting(run, "moe_router_dtype") in ("fp32", "fp64") else BF16,
        aux_loss=any(coefficients) and _setting(run, "moe_router_load_balancing_type") not in ("none", "sinkhorn"),
        clamped=_setting(run, "activation_func_clamp_value") is not None,
        activation_fused=_activation_fused(run),
        allgather=run.dispatcher == "allgather",
        rotary_fused=_rotary_fused(run),
        scores=score_elements(run),
        attention_dropout=run.dropout("attention_dropout") > 0,
        hidden_dropout=run.dropout("hidden_dropout") > 0,
    )


def _two_outputs(run: Run) -> bool:
    """Whether context-parallel attention keeps an output of its own beside the one that it returns."""
    comm = run.cp_comm_type if isinstance(run.cp_comm_type, str) else run.cp_comm_type[0]
    if comm == "all_gather":
        return run.te_version < ALL_GATHER_KEEPS_ONE_OUTPUT
    return comm.startswith("a2a")


def _activation_fused(run: Run) -> bool:
    """Fused as the recipes written here and the released performance recipes set it, unless the run says otherwise."""
    squared = run.arch.activation_func == "squared_relu"
    name = "use_fused_weighted_squared_relu" if squared else "bias_activation_fusion"
    return bool(run.written.megatron.get(f"model.{name}", True))


def _rotary_fused(run: Run) -> bool:
    """Bridge leaves rotary fusion to the model's recipe; Megatron-LM fuses plain RoPE unless told not to."""
    if run.bridge or "model.apply_rope_fusion" in run.written.megatron:
        return bool(_setting(run, "apply_rope_fusion"))
    return run.arch.position_embedding_type == "rope"


def _setting(run: Run, name: str) -> Any:
    """A model field as written, else of the model's released recipe, else the framework's default."""
    path = f"model.{name}"
    if name in run.recipe_defaults and path not in run.written.megatron:
        return run.recipe_defaults[name]
    return run.written.field(path)
