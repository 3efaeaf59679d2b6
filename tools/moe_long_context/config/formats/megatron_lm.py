"""Reads Megatron-LM launch scripts and argument lists, and the same flags with underscores (ms-swift, slime)."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from moe_long_context.catalog.architecture import layer_freq_from_text
from moe_long_context.config.formats.bridge_fields import run_from_fields
from moe_long_context.config.formats.launcher import is_launcher_flag, launcher_size
from moe_long_context.config.formats.overrides import parse_value, scalar
from moe_long_context.config.formats.shell import ShellText
from moe_long_context.config.framework_fields import by_name
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError

PATHS = {
    "num_virtual_stages_per_pipeline_rank": "model.virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers": "model.num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "model.num_layers_in_last_pipeline_stage",
    "num_experts": "model.num_moe_experts",
    "norm_epsilon": "model.layernorm_epsilon",
    "use_rope_scaling": "model.rope_scaling",
    "use_te_rng_tracker": "model.use_te_rng_tracker",
    "te_rng_tracker": "model.use_te_rng_tracker",
    "ddp_average_in_collective": "ddp.average_in_collective",
    "ddp_bucket_size": "ddp.bucket_size",
    "use_nccl_ub": "ddp.nccl_ub",
    "dataloader_inter_document_masking": "dataset.inter_document_masking",
    "ckpt_fully_parallel_save": "checkpoint.fully_parallel_save",
    "accumulate_allreduce_grads_in_fp32": "ddp.grad_reduce_in_fp32",
    "check_for_nan_in_loss_and_grad": "rerun_state_machine.check_for_nan_in_loss",
    "seq_length": "model.seq_length", "max_length": "model.seq_length",
    "micro_batch_size": "train.micro_batch_size",
    "global_batch_size": "train.global_batch_size",
    "cuda_graph_scope_deprecated": "model.cuda_graph_scope",
    "fp8": "model.fp8", "fp8_recipe": "model.fp8_recipe", "fp4": "model.fp4", "bf16": "model.bf16",
    "hf_checkpoint": "model.hf_model_id", "load": "checkpoint.load", "save": "checkpoint.save",
    "moe_ffn_hidden_size": "model.moe_ffn_hidden_size",
    "exp_avg_dtype": "optimizer.exp_avg_dtype", "main_grads_dtype": "optimizer.main_grads_dtype",
    "main_params_dtype": "optimizer.main_params_dtype", "exp_avg_sq_dtype": "optimizer.exp_avg_sq_dtype",
    "use_distributed_optimizer": "optimizer.use_distributed_optimizer",
    "overlap_grad_reduce": "ddp.overlap_grad_reduce", "overlap_param_gather": "ddp.overlap_param_gather",
    "fp8_param_gather": "mixed_precision.fp8_param_gather",
}  # fmt: skip
SILENT = frozenset({"use_mcore_models", "deprecated_use_mcore_models", "group_query_attention", "mock_data", "bf16",
                    "use_flash_attn", "use_rotary_position_embeddings", "transformer_impl"})  # fmt: skip
DEFAULTS = {
    "model.share_embeddings_and_output_weights": True, "model.add_bias_linear": True, "model.activation_func": "gelu",
    "model.gated_linear_unit": False, "model.normalization": "LayerNorm", "model.layernorm_epsilon": 1e-5,
}  # fmt: skip
ACTIVATIONS = {"swiglu": ("silu", True), "squared_relu": ("squared_relu", False), "quick_geglu": ("quick_gelu", True)}
FLAG = re.compile(r"^--([A-Za-z][\w-]*)(?:=(.*))?$", re.DOTALL)


@lru_cache(maxsize=1)
def flag_table() -> dict[str, tuple[str, str]]:
    """Every flag of Megatron-LM 0.19.2: flag -> (destination, kind)."""
    raw = json.loads((Path(__file__).parent / "megatron_lm_flags.json").read_text(encoding="utf-8"))
    return {flag: (dest, kind) for flag, (dest, kind) in raw.items()}


def flags_of(words: list[str]) -> dict[str, list[str]]:
    """Flag name (as written, no dashes) -> the words that follow it."""
    out: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in words:
        match = FLAG.match(word)
        if match:
            current = out[match.group(1)] = [] if match.group(2) is None else [match.group(2)]
        elif word in (";", "&&", "|", "||", "&", ">", ">>", "2>&1", "(", ")") or word.startswith((">", "|", ";", "&")):
            current = None
        elif current is not None:
            current.append(word)
    return out


def read_flags(shell: ShellText) -> RunConfig:
    """A run configuration from Megatron-LM flags of a script or an argument list.

    Raises:
        InputError: values that cannot be a run.
    """
    written = flags_of(shell.words) or flags_of([w for value in shell.variables.values() for w in value])
    fields, notes = fields_of(written, shell.unresolved)
    run = run_from_fields(fields)
    data = {**run.written(), "frontend": "megatron_lm", **launcher_size(shell.words, shell.variables)}
    notes = [*run.reader_notes, *notes]
    return RunConfig.read({**data, **({"reader_notes": tuple(notes[:256])} if notes else {})})


def fields_of(written: dict[str, list[str]], unresolved: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Bridge fields of Megatron-LM flags, and notes on flags that have no place in a run configuration."""
    fields: dict[str, Any] = dict(DEFAULTS) if "num-layers" in written or "num_layers" in written else {}
    notes: list[str] = []
    unknown: list[str] = []
    for flag, words in written.items():
        if is_launcher_flag(flag):
            continue
        if any("$" in word or "`" in word for word in words):
            notes.append(f"--{flag} holds a variable that the script does not set: {' '.join(words)[:80]}")
            continue
        if not _place(fields, flag, words):
            unknown.append(f"--{flag}")
    if unknown:
        notes.append("flags that do not change the estimate or are unknown: " + ", ".join(sorted(unknown)))
    if unresolved:
        notes.append("not resolved, nothing was executed: " + ", ".join(unresolved[:20]))
    return _completed(fields), notes


def _place(fields: dict[str, Any], flag: str, words: list[str]) -> bool:
    """Put one flag into `fields`; False when it has no place there."""
    other = (flag.replace("-", "_"), "list" if len(words) > 1 else "value")
    dest, kind = flag_table().get(flag.replace("_", "-"), other)
    if _architecture(fields, dest, words):
        return True
    if dest in SILENT and dest not in PATHS:
        return True
    path = PATHS.get(dest) or by_name().get(dest)
    if path is None:
        return False
    fields[path] = _value(dest, kind, words)
    return True


def _value(dest: str, kind: str, words: list[str]) -> Any:
    if dest in ("moe_layer_freq", "linear_attention_freq", "no_rope_freq") and words:
        return _layer_freq(dest, words[0])
    if kind in ("true", "false") and (not words or words[0].lower() not in ("true", "false")):
        return kind == "true"
    if not words:
        return True
    if len(words) == 1 and kind != "list":
        return parse_value(words[0]) if words[0][:1] in "[{'\"" else scalar(words[0])
    return [scalar(word) for word in words]


def _layer_freq(dest: str, text: str) -> int | tuple[int, ...]:
    try:
        return layer_freq_from_text(text)
    except ValueError as error:
        raise BadValueError(f"--{dest.replace('_', '-')}: {error}.", given=text[:200]) from None


def _architecture(fields: dict[str, Any], dest: str, words: list[str]) -> bool:
    """Flags that stand for an architecture choice."""
    if dest in ACTIVATIONS:
        fields["model.activation_func"], fields["model.gated_linear_unit"] = ACTIVATIONS[dest]
    elif dest == "untie_embeddings_and_output_weights":
        fields["model.share_embeddings_and_output_weights"] = False
    elif dest == "window_size" and words:
        fields["model.window_size"] = [int(word) for word in re.findall(r"-?\d+", " ".join(words))]
    elif dest in ("padded_vocab_size", "vocab_size") and words:
        fields["model.vocab_size"] = scalar(words[0])
    elif dest == "num_layers_per_virtual_pipeline_stage" and words:
        fields["_layers_per_virtual_stage"] = scalar(words[0])
    elif dest == "recompute_activations":
        fields["model.recompute_granularity"] = "selective"
    elif dest == "create_attention_mask_in_dataloader":
        fields["dataset.create_attention_mask"] = False
    elif dest == "transformer_impl" and words == ["local"]:
        fields["model.transformer_impl"] = "local"
    else:
        return False
    return True


def _completed(fields: dict[str, Any]) -> dict[str, Any]:
    """Values that several flags make together."""
    if comm := fields.get("model.cp_comm_type"):
        fields["model.cp_comm_type"] = comm[0] if isinstance(comm, list) and len(comm) == 1 else comm
    per_stage = fields.pop("_layers_per_virtual_stage", None)
    layers, stages = fields.get("model.num_layers"), fields.get("model.pipeline_model_parallel_size", 1)
    if per_stage and layers:
        fields["model.virtual_pipeline_model_parallel_size"] = int(layers) // int(stages) // int(per_stage)
    if fields.get("model.position_embedding_type") == "yarn" and not fields.get("model.multi_latent_attention"):
        for name in ("rotary_scaling_factor", "mscale", "mscale_all_dim"):
            if f"model.{name}" in fields:
                fields[f"model.yarn_{name}"] = fields.pop(f"model.{name}")
    if fields.get("model.multi_latent_attention") and "model.rope_type" not in fields:
        fields["model.rope_type"] = "yarn"
    if "model.fp8" in fields and "model.fp8_recipe" not in fields:
        fields["model.fp8_recipe"] = "delayed"
    return fields
