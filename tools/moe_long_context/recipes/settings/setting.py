"""`Setting`: one Bridge field that a recipe sets, and whether it changes how the run executes or what it trains.

Owns the effect table. Every writer turns the same settings into its own spelling.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Effect = Literal["execution-only", "convergence-changing"]
EXECUTION: Effect = "execution-only"
CONVERGENCE: Effect = "convergence-changing"

CONVERGENCE_FIELDS = frozenset({
    "model.seq_length", "dataset.seq_length", "train.global_batch_size", "train.train_iters", "mixed_precision",
    "model.mtp_num_layers", "model.mtp_loss_scaling_factor", "model.moe_expert_capacity_factor",
    "model.moe_pad_expert_input_to_capacity", "model.moe_token_drop_policy", "model.moe_aux_loss_coeff",
    "model.moe_router_load_balancing_type", "model.moe_router_dtype", "model.moe_router_force_load_balancing",
    "model.calculate_per_token_loss", "model.moe_z_loss_coeff", "model.moe_input_jitter_eps",
    "optimizer.optimizer", "optimizer.lr", "optimizer.min_lr", "optimizer.weight_decay", "optimizer.clip_grad",
    "optimizer.main_grads_dtype", "optimizer.main_params_dtype", "optimizer.exp_avg_dtype",
    "optimizer.exp_avg_sq_dtype", "optimizer.use_precision_aware_optimizer", "ddp.grad_reduce_in_fp32",
    "ddp.average_in_collective", "dataset.inter_document_masking", "dataset.enable_offline_packing",
    "model.hidden_dropout", "model.attention_dropout", "rng.seed", "peft",
})  # fmt: skip
CONVERGENCE_SECTIONS = (
    "model.yarn_", "model.rope_", "model.rotary_", "mixed_precision.", "scheduler.", "optimizer.adam_",
    "optimizer.muon_", "peft.", "dataset.blend",
)  # fmt: skip


class Setting(NamedTuple):
    """One field of Bridge's ConfigContainer, set by a recipe.

    `value` is plain data; dtypes are "bf16" or "fp32", enums and callables their name. `why` is one short clause.
    """

    path: str
    value: Any
    why: str = ""

    @property
    def effect(self) -> Effect:
        """What setting this field can change: speed and memory only, or the numbers that are trained."""
        return effect_of(self.path)


def effect_of(path: str) -> Effect:
    """The effect class of a Bridge field; architecture fields change what is trained."""
    from moe_long_context.catalog.architecture import Architecture

    section, _, name = path.partition(".")
    if path in CONVERGENCE_FIELDS or path.startswith(CONVERGENCE_SECTIONS):
        return CONVERGENCE
    if section == "model" and name in Architecture.model_fields:
        return CONVERGENCE
    return EXECUTION
