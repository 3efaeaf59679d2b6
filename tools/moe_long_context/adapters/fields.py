"""The run-configuration fields as the flat flags that people and agents write: one row per field, in one order.

Shared by the command line and the portable schemas, so that both doors accept the same words.
"""

from __future__ import annotations

from functools import lru_cache
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel

from moe_long_context.config.names import ALIASES, FLAT
from moe_long_context.config.run_config import RunConfig

HIDDEN = ("megatron", "spelling_conflicts", "env")
SHORT_FIRST = {
    "tensor_model_parallel_size": "tp", "context_parallel_size": "cp", "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vpp", "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "sequence_parallel": "sp", "micro_batch_size": "mbs", "global_batch_size": "gbs", "seq_length": "seq_len",
    "pipeline_model_parallel_layout": "layout",
}  # fmt: skip


class Field(NamedTuple):
    """One flag: canonical path (`section.field` for nested ones), every accepted name, what it holds."""

    path: str
    names: tuple[str, ...]
    kind: Literal["bool", "int", "float", "text", "list"]
    choices: tuple[str, ...]
    description: str

    @property
    def short(self) -> str:
        """The name to show: the short one where there is one."""
        return SHORT_FIRST.get(self.path, self.names[0])


@lru_cache(maxsize=1)
def run_fields() -> tuple[Field, ...]:
    """Every field of the run configuration except free mappings, top-level first."""
    aliases: dict[str, list[str]] = {}
    for alias, name in ALIASES.items():
        aliases.setdefault(name, []).append(alias)
    flat: dict[str, list[str]] = {}
    for name, path in FLAT.items():
        flat.setdefault(path, []).append(name)
    out: list[Field] = []
    for name, info in RunConfig.model_fields.items():
        section = _section(info.annotation)
        if name in HIDDEN:
            continue
        if section is None:
            out.append(_field(name, (name, *aliases.get(name, ())), info.annotation, info.description or ""))
            continue
        if name == "recompute":
            out.append(Field("recompute", ("recompute",), "text", (), "none, full, or modules joined by commas"))
        for inner, detail in section.model_fields.items():
            path = f"{name}.{inner}"
            names = tuple(flat.get(path, ())) or (f"{name}_{inner}",)
            out.append(_field(path, names, detail.annotation, detail.description or ""))
    return tuple(out)


def _section(annotation: Any) -> type[BaseModel] | None:
    for option in (annotation, *get_args(annotation)):
        if isinstance(option, type) and issubclass(option, BaseModel):
            return option
    return None


def _field(path: str, names: tuple[str, ...], annotation: Any, description: str) -> Field:
    kind, choices = _kind(annotation)
    text = description or path.replace("_", " ").replace(".", ": ")
    return Field(path, names, kind, choices, text)


def _kind(annotation: Any) -> tuple[Literal["bool", "int", "float", "text", "list"], tuple[str, ...]]:
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    for option in options:
        if get_origin(option) is Literal:
            return "text", tuple(str(value) for value in get_args(option))
        if get_origin(option) is tuple:
            return ("text" if str in options else "list"), ()
    for python, name in ((bool, "bool"), (int, "int"), (float, "float")):
        if python in options and str not in options:
            return name, ()  # type: ignore[return-value]
    return "text", ()


def parse_text(field: Field, text: str) -> Any:
    """A flag's text as the value the run configuration reads; what is not a number or a switch stays text."""
    value = text.strip()
    if value.lower() in ("null", "~") or (value.lower() == "none" and not field.choices and field.path != "recompute"):
        return None
    if field.kind == "bool":
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(value.lower(), value)
    if field.kind == "list":
        return [_number(part) for part in value.strip("[]()").replace(" ", "").split(",") if part]
    return _number(value) if field.kind in ("int", "float") and field.path != "seq_length" else value


def _number(text: str) -> Any:
    for python in (int, float):
        try:
            return python(text)
        except ValueError:
            continue
    return text
