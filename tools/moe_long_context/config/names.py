"""Every accepted spelling of a run-configuration key, and how each becomes the one canonical form.

Owns the alias table.
"""

from __future__ import annotations

from typing import Any

from moe_long_context.errors import BadValueError, UnknownNameError, shorten

ALIASES: dict[str, str] = {
    "seq_len": "seq_length", "sequence_length": "seq_length",
    "mbs": "micro_batch_size", "gbs": "global_batch_size",
    "tp": "tensor_model_parallel_size", "cp": "context_parallel_size", "pp": "pipeline_model_parallel_size",
    "vpp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size", "sp": "sequence_parallel",
    "layout": "pipeline_model_parallel_layout", "hcp": "hierarchical_context_parallel_sizes",
    "mtp": "mtp_num_layers", "world_size": "num_gpus",
}  # fmt: skip

OLDER: dict[str, str] = {
    "cuda_graph_scope": "read cuda_graph_scope as cuda_graph_modules (renamed in Megatron-Core 0.18)",
}

SECTIONS = (
    "recompute", "optimizer", "activation_offload", "cuda_graph", "overlap", "data", "moe", "vocab", "peft", "fsdp",
    "versions",
)  # fmt: skip

FLAT: dict[str, str] = {
    "recompute_granularity": "recompute.granularity", "recompute_method": "recompute.method",
    "recompute_num_layers": "recompute.num_layers", "recompute_modules": "recompute.modules",
    "offload_modules": "activation_offload.modules",
    "cuda_graph_impl": "cuda_graph.impl", "cuda_graph_modules": "cuda_graph.modules",
    "cuda_graph_scope": "cuda_graph.modules",
    "optimizer_offload_fraction": "optimizer.cpu_offload_fraction",
    "cpu_offload_fraction": "optimizer.cpu_offload_fraction",
    "optimizer_cpu_offload": "optimizer.cpu_offload",
    "use_distributed_optimizer": "optimizer.distributed", "use_precision_aware_optimizer": "optimizer.precision_aware",
    "overlap_moe_expert_parallel_comm": "overlap.ep_a2a", "delay_wgrad_compute": "overlap.delay_wgrad",
    "overlap_grad_reduce": "overlap.grad_reduce", "overlap_param_gather": "overlap.param_gather",
    "moe_shared_expert_overlap": "overlap.shared_expert", "tp_comm_overlap": "overlap.tp_comm",
    "overlap_p2p_comm": "overlap.p2p",
    "moe_expert_capacity_factor": "moe.capacity_factor", "moe_pad_expert_input_to_capacity": "moe.pad_to_capacity",
    "token_imbalance": "moe.token_imbalance",
    "should_pad_vocab": "vocab.should_pad", "make_vocab_size_divisible_by": "vocab.divisible_by",
    "packed": "data.packed", "variable_length": "data.variable_length",
}  # fmt: skip

VALUE_ALIASES = {
    "cp_comm_type": {"allgather": "all_gather"},
    "precision": {"fp8": "fp8_tensorwise", "bf16_mixed": "bf16", "fp8_mx": "mxfp8", "fp8_cs": "fp8_tensorwise",
                  "fp8_sc": "fp8_blockwise", "blockwise": "fp8_blockwise", "tensorwise": "fp8_tensorwise"},
    "loss": {"linear": "linear_fused", "te": "fused"},
    "frontend": {"megatron-lm": "megatron_lm", "mcore": "megatron_lm", "megatron": "megatron_lm"},
}  # fmt: skip


def top_level() -> set[str]:
    """The canonical top-level keys."""
    from moe_long_context.config.run_config import RunConfig

    return set(RunConfig.model_fields)


def canonical(source: dict[str, Any], *, keep_none: bool = False) -> dict[str, Any]:
    """Rewrite aliases, dashes, flat and dotted names into the canonical nested form.

    Two spellings of one field that disagree are kept as `spelling_conflicts` (a finding); the later one counts.

    Raises:
        UnknownNameError: a key nobody knows.
    """
    out: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    conflicts: list[str] = []
    notes: list[str] = []
    for raw, value in source.items():
        for path, item in _expand(raw, value):
            if path in spelled and _get(out, path) != item:
                conflicts.append(f"{spelled[path]}={shorten(_get(out, path))} and {raw}={shorten(item)}")
            spelled[path] = str(raw)
            bare = str(raw).strip().replace("-", "_").rpartition(".")[2]
            notes += [OLDER[bare]] if bare in OLDER else []
            if item is not None or keep_none:
                _put(out, path, item)
    if notes:
        out["reader_notes"] = (*out.get("reader_notes", ()), *notes)
    if conflicts:
        out["spelling_conflicts"] = (*out.get("spelling_conflicts", ()), *conflicts)
    return out


def _expand(raw: Any, value: Any) -> list[tuple[str, Any]]:
    """One written key -> (canonical path, value) pairs; paths have at most two parts, `megatron` keeps its own dots."""
    if not isinstance(raw, str):
        raise BadValueError(f"Keys are names, got {shorten(raw)}.", given=shorten(raw))
    key = resolve_key(raw)
    if key in ("env",) and isinstance(value, dict):
        return [(f"env\0{name}", item) for name, item in value.items()]
    if key == "megatron" and isinstance(value, dict):
        return [(_megatron_path(name), _plain(item)) for name, item in value.items()]
    if key in SECTIONS and isinstance(value, dict):
        return [(f"{key}.{_section_field(key, name)}", _plain(item)) for name, item in value.items()]
    return [(key, _alias_value(key, _plain(value)))]


def resolve_key(raw: str) -> str:
    """The canonical path of one written key: top-level name, `section.field`, or `megatron\\0dotted.path`.

    Raises:
        UnknownNameError: no such key; carries the nearest names.
    """
    key = raw.strip().replace("-", "_")
    key = ALIASES.get(key.lower(), key)
    if key in FLAT:
        return FLAT[key]
    if key in top_level():
        return key
    if "." in key:
        section, name = key.split(".", 1)
        if section in SECTIONS and name in _section_names(section):
            return key
        if section == "env":
            return f"env\0{name}"
        if section == "megatron":
            return _megatron_path(name)
        return _megatron_path(key)
    return _megatron_path(key)


def _megatron_path(name: Any) -> str:
    """A framework field, by dotted path or bare name, as the canonical path it belongs to."""
    from moe_long_context.config.framework_fields import by_name, by_path

    text = str(name).strip()
    dotted = text if "." in text else by_name().get(text, text)
    section, _, bare = dotted.partition(".")
    if section in ("model", "optimizer", "ddp", "comm_overlap", "train", "") and bare:
        if bare in FLAT and bare not in ("packed",):
            return FLAT[bare]
        if bare in top_level() and bare not in ("optimizer", "env"):
            return bare
    if text in PHANTOMS:
        return f"megatron\0{PHANTOMS[text]}"
    if dotted in by_path() or (bare and section in _FREE_SECTIONS):
        return f"megatron\0{dotted}"
    known = {*top_level(), *ALIASES, *FLAT, *by_name(), *(f"{s}.{n}" for s in SECTIONS for n in _section_names(s))}
    if "." in text:
        known = {*by_path(), *known}
    raise UnknownNameError("key", shorten(text, 100), known, code="unknown_key")


PHANTOMS = {
    "optimizer.offload_optimizer_states": "optimizer.offload_optimizer_states",
    "offload_optimizer_states": "optimizer.offload_optimizer_states",
    "model.dynamic_context_parallel": "model.dynamic_context_parallel",
    "dynamic_context_parallel": "model.dynamic_context_parallel",
}
"""Fields that public guidance names but no release has: read, so that a rule can say so."""

_FREE_SECTIONS = ("env_vars", "cluster", "moe_long_context")


def _section_names(section: str) -> set[str]:
    from moe_long_context.config.run_config import RunConfig

    kind = RunConfig.model_fields[section].annotation
    for option in (kind, *getattr(kind, "__args__", ())):
        if hasattr(option, "model_fields"):
            return set(option.model_fields)
    return set()


def _section_field(section: str, name: Any) -> str:
    text = str(name).strip().replace("-", "_")
    known = _section_names(section)
    if text in known:
        return text
    flat = FLAT.get(text, "")
    if flat.startswith(section + "."):
        return flat.split(".", 1)[1]
    raise UnknownNameError(
        "key", f"{section}.{shorten(text, 80)}", [f"{section}.{n}" for n in known], code="unknown_key"
    )


def _plain(value: Any) -> Any:
    return tuple(_plain(v) for v in value) if isinstance(value, list) else value


def _alias_value(key: str, value: Any) -> Any:
    table = VALUE_ALIASES.get(key)
    if not table:
        return value
    if isinstance(value, tuple):
        return tuple(table.get(v, v) if isinstance(v, str) else v for v in value)
    return table.get(value.lower(), value.lower()) if isinstance(value, str) else value


def _get(out: dict[str, Any], path: str) -> Any:
    head, _, tail = path.partition("\0") if "\0" in path else path.partition(".")
    return out.get(head, {}).get(tail) if tail else out.get(head)


def _put(out: dict[str, Any], path: str, value: Any) -> None:
    head, _, tail = path.partition("\0") if "\0" in path else path.partition(".")
    if not tail:
        out[head] = value
        return
    held = out.get(head)
    if not isinstance(held, dict):
        held = {"granularity": held} if isinstance(held, str) else {}
        out[head] = held
    held[tail] = value


def as_flag_text(value: Any) -> Any:
    """Environment values are text: true -> "1", 1 -> "1"."""
    if isinstance(value, bool):
        return "1" if value else "0"
    return str(value) if isinstance(value, int | float) else value
