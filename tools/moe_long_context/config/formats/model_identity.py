"""Which catalog model a set of architecture fields is, and what differs from it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.loader import ModelEntry, model_entry, model_ids
from moe_long_context.errors import UnknownNameError

FINGERPRINT = ("num_layers", "hidden_size", "num_attention_heads", "num_moe_experts", "moe_ffn_hidden_size")
NOT_COMPARED = ("kv_channels", "num_query_groups", "activation_func", "moe_layer_freq", "vocab_size")


def identify(shape: dict[str, Any], named: Any, notes: list[str]) -> dict[str, Any]:
    """`model` (catalog id, or a mapping of the shape) and the architecture fields that differ from the catalog's."""
    given = {name: _plain(name, value) for name, value in shape.items() if value is not None}
    entry = _named(named) or _same_shape(given)
    if entry is None:
        return _as_mapping(given, named, notes)
    out: dict[str, Any] = {"model": entry.id}
    for name, value in given.items():
        if _differs(entry.architecture, name, value):
            out[f"megatron.model.{name}"] = value
    return out


def _named(named: Any) -> ModelEntry | None:
    if not isinstance(named, str):
        return None
    try:
        return model_entry(named)
    except UnknownNameError:
        return None


def _same_shape(given: dict[str, Any]) -> ModelEntry | None:
    wanted = [given.get(name) for name in FINGERPRINT]
    if given.get("num_layers") is None or given.get("hidden_size") is None:
        return None
    for model_id in model_ids():
        entry = model_entry(model_id)
        if [getattr(entry.architecture, name) for name in FINGERPRINT] == wanted:
            return entry
    return None


def _differs(arch: Architecture, name: str, value: Any) -> bool:
    if name in NOT_COMPARED and arch.multi_latent_attention and name in ("kv_channels", "num_query_groups"):
        return False
    held = getattr(arch, name)
    if name == "moe_layer_freq":
        return _freq(value, arch) != arch.moe_layers
    return bool(held != value)


def _freq(value: Any, arch: Architecture) -> tuple[bool, ...]:
    try:
        return arch.model_copy(update={"moe_layer_freq": value}).moe_layers
    except (TypeError, ValueError):
        return ()


def _plain(name: str, value: Any) -> Any:
    """Bridge's form of a field as the architecture's: window (W - 1, 0) -> W, lists as tuples, callables by name."""
    if name == "window_size" and isinstance(value, list | tuple):
        return int(value[0]) + 1 if value else None
    if name == "activation_func":
        return str(value).rsplit(".", 1)[-1]
    return tuple(value) if isinstance(value, list) else value


def _as_mapping(given: dict[str, Any], named: Any, notes: list[str]) -> dict[str, Any]:
    if isinstance(named, str) and not given:
        return {"model": named}
    if given.get("num_layers") is None:
        return {f"megatron.model.{name}": value for name, value in given.items()}
    filled = {
        "ffn_hidden_size": 4 * int(given.get("hidden_size") or 1),
        "num_query_groups": given.get("num_attention_heads"),
        "kv_channels": int(given.get("hidden_size") or 1) // max(int(given.get("num_attention_heads") or 1), 1),
        **given,
    }
    try:
        Architecture.model_validate(filled)
    except ValidationError:
        notes.append("the architecture is incomplete; name a model: " + ", ".join(sorted(given)))
        return {}
    return {"model": filled}
