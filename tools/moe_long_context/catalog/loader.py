"""Finds models and GPUs by id or alias. One data file each; a file is registered by being there.

A person's own entries in `$MOE_LONG_CONTEXT_HOME/models.d` and `gpus.d` (by default under ~/.config) come first.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.gpu import Gpu
from moe_long_context.errors import BadValueError, UnknownNameError, shorten
from moe_long_context.yaml_safe import load_file

_HERE = Path(__file__).parent


class ModelEntry(BaseModel):
    """One catalog model: its shape, names, source, and what could be checked about it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(max_length=80)
    name: str = Field(default="", max_length=120)
    hf_name: str | None = None
    aliases: tuple[str, ...] = ()
    family: str = ""
    source: dict[str, Any] | str = ""
    architecture: Architecture
    bridge_defaults: dict[str, Any] = Field(
        default_factory=dict,
        description="what the model's released Bridge recipe sets away from the framework's default",
    )
    published: dict[str, float] = Field(default_factory=dict, description="total_b, active_b as the vendor prints them")
    checked: str = Field(default="", description="how the parameter count was checked, or why it could not be")
    notes: str = ""


def user_dir() -> Path:
    """Folder of a person's own entries."""
    return Path(os.environ.get("MOE_LONG_CONTEXT_HOME") or Path.home() / ".config" / "moe-long-context")


def _home() -> str:
    """What decides `user_dir`, cheap enough to be a cache key."""
    return os.environ.get("MOE_LONG_CONTEXT_HOME") or os.environ.get("HOME", "")


def _files(kind: str) -> dict[str, Path]:
    """id -> file, the person's own first."""
    files = {f.stem: f for f in sorted((_HERE / kind).glob("*.yaml"))}
    own = user_dir() / f"{kind}.d"
    if own.is_dir():
        files.update({f.stem: f for f in sorted(own.glob("*.yaml"))})
    return files


def _fold(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-").replace("/", "-")


def _read(kind: str, path: Path, model: type[BaseModel]) -> Any:
    data = load_file(path)
    if not isinstance(data, dict):
        raise BadValueError(f"{shorten(str(path))} does not hold a mapping.", given=shorten(str(path)))
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise BadValueError(
            f"{kind} entry {path.name} is not valid: {first_problem(error)}.",
            given=path.name,
            fix="see CONTRIBUTING.md",
        ) from None


def first_problem(error: ValidationError) -> str:
    """The first pydantic complaint as one line: where, what is allowed, what was given."""
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(x) for x in problem["loc"] if not isinstance(x, str) or x not in _UNION_TAGS) or "value"
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    given = problem.get("input")
    shown = "" if isinstance(given, dict) else f", got {shorten(given, 60)}"
    return (
        f"{where} {shorten(message)}{shown}" if message.startswith("should") else f"{where}: {shorten(message)}{shown}"
    )


_UNION_TAGS = ("str", "int", "tuple[str, ...]", "dict[str,any]", "tuple[tuple[str, ...], ...]", "tuple[int, ...]")


def _lookup(kind: str, name: str, model: type[BaseModel]) -> Any:
    files = _files(kind)
    by_id = {_fold(stem): stem for stem in files}
    table = alias_table(kind)
    for folded in (_fold(name), _fold(name.rsplit("/", 1)[-1])):
        stem = by_id.get(folded) or table.get(folded)
        if stem:
            return _read(kind, files[stem], model)
    singular = {"models": "model", "gpus": "gpu"}[kind]
    fix = "list them with `moe-long-context " + kind + "`"
    if kind == "models":
        fix += ", or pass the path of a Hugging Face config.json"
    raise UnknownNameError(singular, shorten(name, 80), [*files, *(a for a in table if len(a) < 30)], fix=fix)


def alias_table(kind: str) -> dict[str, str]:
    """Every folded alias and Hugging Face name -> file stem."""
    return _alias_table(kind, _home())


@lru_cache(maxsize=8)
def _alias_table(kind: str, _key: str) -> dict[str, str]:
    table: dict[str, str] = {}
    for stem, path in _files(kind).items():
        data = load_file(path)
        names = [*(data.get("aliases") or ()), data.get("hf_name") or "", data.get("name") or ""]
        for name in names:
            if name:
                table.setdefault(_fold(name), stem)
                table.setdefault(_fold(name.rsplit("/", 1)[-1]), stem)
    return table


@lru_cache(maxsize=256)
def _model(name: str, _key: str) -> ModelEntry:
    return _lookup("models", name, ModelEntry)  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def _gpu(name: str, _key: str) -> Gpu:
    return _lookup("gpus", name, Gpu)  # type: ignore[no-any-return]


def model_entry(name: str) -> ModelEntry:
    """The catalog entry of a model id, alias or Hugging Face name.

    Raises:
        UnknownNameError: no such model; carries the nearest names.
    """
    return _model(name, _home())


def gpu(name: str) -> Gpu:
    """The GPU of an id or alias, case-insensitive.

    Raises:
        UnknownNameError: no such GPU; carries the nearest names.
    """
    return _gpu(name, _home())


def model_ids() -> list[str]:
    """All model ids, sorted."""
    return sorted(_files("models"))


def gpu_ids() -> list[str]:
    """All GPU ids, sorted."""
    return sorted(_files("gpus"))
