"""Which catalog model a set of architecture fields is, and what differs from it."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.loader import ModelEntry, first_problem, model_entry, model_ids
from moe_long_context.errors import UnknownNameError

FINGERPRINT = ("num_layers", "hidden_size", "num_attention_heads", "num_moe_experts", "moe_ffn_hidden_size")
MAMBA_HEAD_DIM, MAMBA_EXPAND = 64, 2  # Megatron-Core 0.19.2 ssm/mamba_mixer.py
NOT_COMPARED = ("kv_channels", "num_query_groups", "activation_func", "moe_layer_freq", "vocab_size")


def identify(shape: dict[str, Any], named: Any, notes: list[str]) -> dict[str, Any]:
    """`model` (catalog id, or a mapping of the shape) and the architecture fields that differ from the catalog's."""
    given = {name: _plain(name, value) for name, value in shape.items() if value is not None}
    _split_pattern(given)
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
    """The catalog model of equal fingerprint with the fewest other differences."""
    wanted = [given.get(name) for name in FINGERPRINT]
    if given.get("num_layers") is None or given.get("hidden_size") is None:
        return None
    same = [
        entry for entry in map(model_entry, model_ids())
        if [getattr(entry.architecture, name) for name in FINGERPRINT] == wanted
    ]  # fmt: skip
    return min(same, key=lambda entry: _distance(entry.architecture, given), default=None)


def _distance(arch: Architecture, given: dict[str, Any]) -> int:
    return sum(_differs(arch, name, value) for name, value in given.items())


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
    if name in ("no_rope_freq", "linear_attention_freq") and isinstance(value, list | tuple):
        return _period(value)
    return tuple(value) if isinstance(value, list) else value


def _period(value: list[int] | tuple[int, ...]) -> int | tuple[int, ...]:
    """[0, 0, 0, 1, 0, 0, 0, 1] -> 4: Megatron-Core spells "every fourth layer" out when it finalizes."""
    first = next((index + 1 for index, item in enumerate(value) if item), 0)
    regular = first and all(bool(item) == ((index + 1) % first == 0) for index, item in enumerate(value))
    return first if regular else tuple(value)


def _split_pattern(given: dict[str, Any]) -> None:
    """Bridge appends MTP depths to a hybrid pattern behind slashes, and pipeline stages behind bars."""
    pattern = given.get("hybrid_layer_pattern")
    if isinstance(pattern, str):
        main, *depths = pattern.replace("|", "").split("/")
        given["hybrid_layer_pattern"] = main
        if depths:
            given.setdefault("mtp_hybrid_override_pattern", depths[0])


def _as_mapping(given: dict[str, Any], named: Any, notes: list[str]) -> dict[str, Any]:
    if isinstance(named, str) and not given:
        return {"model": named}
    if given.get("num_layers") is None:
        return {f"megatron.model.{name}": value for name, value in given.items()}
    hidden, heads = _whole(given.get("hidden_size")), _whole(given.get("num_attention_heads"))
    if "M" in str(given.get("hybrid_layer_pattern") or ""):
        head = _whole(given.get("mamba_head_dim"), MAMBA_HEAD_DIM)
        given.setdefault("mamba_num_heads", MAMBA_EXPAND * hidden // head)
    filled = {"ffn_hidden_size": 4 * hidden, "num_query_groups": heads, "kv_channels": hidden // heads, **given}
    try:
        Architecture.model_validate(filled)
    except ValidationError as error:
        notes.append(f"the architecture is incomplete ({first_problem(error)}); name a model")
        return {}
    return {"model": filled}


def _whole(value: Any, default: int = 1) -> int:
    return value if isinstance(value, int) and value > 0 else default
