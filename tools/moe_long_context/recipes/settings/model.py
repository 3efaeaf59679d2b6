"""Settings of the model itself: architecture, sequence length and what extends the trained context."""

from __future__ import annotations

from typing import Any

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.loader import model_entry
from moe_long_context.config.framework_fields import by_path
from moe_long_context.config.resolve import Run
from moe_long_context.errors import UnknownNameError
from moe_long_context.recipes.settings.setting import Setting

NOT_BRIDGE_FIELDS = ("window_size", "max_position_embeddings", "mtp_num_layers")
MLA_ONLY = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type",
            "rotary_scaling_factor", "original_max_position_embeddings")  # fmt: skip
TRAINING_DROPOUT = 0.0
FUSED_ACTIVATIONS = ("silu", "gelu", "quick_gelu")


def architecture(run: Run, whole: bool) -> list[Setting]:
    """The shape of the model: all of it, or only what differs from the catalog entry that the recipe builds."""
    base = None if whole else catalog_shape(run.model_id)
    changed = [name for name in Architecture.model_fields if _differs(run.arch, base, name)]
    out = [Setting(f"model.{name}", plain_value(run.arch, name)) for name in changed if _settable(run.arch, name)]
    if "window_size" in changed:
        out.append(Setting("model.window_size", window(run.arch)))
    if whole:
        out += _defaults_of_the_family(run.arch)
    out.append(Setting("model.mtp_num_layers", run.mtp or None))
    return out


def catalog_shape(model_id: str) -> Architecture | None:
    """The catalog's architecture of a model id; None for a model that is not in the catalog."""
    try:
        return model_entry(model_id).architecture
    except UnknownNameError:
        return None


def plain_value(arch: Architecture, name: str) -> Any:
    """An architecture field as plain data in the form Bridge takes."""
    value = getattr(arch, name)
    if name == "moe_layer_freq" and isinstance(value, tuple):
        return list(value)
    return value


def window(arch: Architecture) -> tuple[int, int] | None:
    """(look-back, look-ahead) of windowed layers; a window of W tokens looks W - 1 back (flash attention's form)."""
    return None if arch.window_size is None else (arch.window_size - 1, 0)


def _differs(arch: Architecture, base: Architecture | None, name: str) -> bool:
    return base is None or getattr(arch, name) != getattr(base, name)


def _settable(arch: Architecture, name: str) -> bool:
    if name in NOT_BRIDGE_FIELDS or f"model.{name}" not in by_path():
        return False
    if not arch.multi_latent_attention and name in MLA_ONLY:
        return False
    if not arch.hybrid_layer_pattern and name.startswith(("mamba_", "hybrid_")):
        return False
    return not (arch.experimental_attention_variant is None and name.startswith(("linear_", "dsa_")))


def _defaults_of_the_family(arch: Architecture) -> list[Setting]:
    """What every released MoE recipe sets and the bare provider does not."""
    out = [
        Setting("model.hidden_dropout", TRAINING_DROPOUT),
        Setting("model.attention_dropout", TRAINING_DROPOUT),
        Setting("model.bias_dropout_fusion", True),
        Setting("model.bias_activation_fusion", arch.activation_func in FUSED_ACTIVATIONS),
    ]
    if arch.position_embedding_type == "yarn" and not arch.multi_latent_attention:
        out += _yarn(arch.rotary_scaling_factor, arch.original_max_position_embeddings or 4096, "as released")
    if arch.is_moe:
        out += [Setting("model.moe_grouped_gemm", True), Setting("model.moe_router_dtype", "fp32")]
    return out


def sequence(run: Run) -> list[Setting]:
    """Sequence length, which model and dataset must agree on, and packing of documents into it."""
    out = [
        Setting("model.seq_length", run.seq_length, "must equal dataset.seq_length"),
        Setting("dataset.seq_length", run.seq_length, "must equal model.seq_length"),
    ]
    if run.written.data.packed:
        out.append(Setting("dataset.inter_document_masking", True, "documents do not attend to each other"))
    return out + _longer_context(run)


def _longer_context(run: Run) -> list[Setting]:
    """YaRN and position limits of the positions beyond what the model was trained for."""
    arch, trained = run.arch, run.arch.max_position_embeddings
    if trained is None or run.seq_length <= trained or arch.position_embedding_type == "none":
        return []
    return _mla_yarn(run) if arch.multi_latent_attention else _gqa_yarn(run, trained)


def _mla_yarn(run: Run) -> list[Setting]:
    if "model.rotary_scaling_factor" in run.written.megatron or run.arch.rope_type != "yarn":
        return []
    original = run.arch.original_max_position_embeddings or 4096
    factor = float(-(-run.seq_length // original))
    return [Setting("model.rotary_scaling_factor", factor, f"YaRN from {original} to {run.seq_length} tokens")]


def _gqa_yarn(run: Run, trained: int) -> list[Setting]:
    """Plain RoPE models become YaRN, factor = wanted / trained length (Qwen's model cards); MTP refuses YaRN."""
    if run.arch.position_embedding_type not in ("rope", "yarn") or run.arch.hybrid_layer_pattern:
        return []
    if {"model.position_embedding_type", "model.yarn_rotary_scaling_factor"} & set(run.written.megatron):
        return []
    if run.mtp:
        return []
    original = run.arch.original_max_position_embeddings or trained
    return _yarn(run.seq_length / original, original, f"YaRN from {original} to {run.seq_length} tokens")


def _yarn(factor: float, original: int, why: str) -> list[Setting]:
    return [
        Setting("model.position_embedding_type", "yarn", why),
        Setting("model.yarn_rotary_scaling_factor", factor, why),
        Setting("model.yarn_original_max_position_embeddings", original, why),
        Setting("model.yarn_beta_fast", 32.0),
        Setting("model.yarn_beta_slow", 1.0),
        Setting("model.yarn_mscale", 1.0),
        Setting("model.yarn_mscale_all_dim", 0.0),
        Setting("model.yarn_correction_range_round_to_int", True),
    ]
