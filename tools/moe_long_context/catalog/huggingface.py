"""Reads the shape of a model from a Hugging Face config.json, as Megatron Bridge would, without importing transformers.

Owns the file, its nesting and the error messages; what each `model_type` means is in `huggingface_families`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.huggingface_families import FAMILIES, Config
from moe_long_context.catalog.loader import ModelEntry, first_problem
from moe_long_context.errors import BadValueError, shorten
from moe_long_context.yaml_safe import load_file

TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")


def read_config(path: str | Path) -> tuple[ModelEntry, list[str]]:
    """The model of a config.json (or of a folder that holds one), and notes on what the file does not say.

    Raises:
        UnreadableFileError: not a readable JSON file.
        BadValueError: an architecture that is not known, or keys that are missing or not numbers.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    data = load_file(file)
    if not isinstance(data, dict):
        raise BadValueError(f"{shorten(str(file))} does not hold a JSON object.", given=shorten(str(file)))
    return entry_of(data, _name(file, data))


def entry_of(data: dict[str, Any], name: str) -> tuple[ModelEntry, list[str]]:
    """The model of an already parsed config.json; see `read_config`."""
    text, notes = _text_section(data)
    family = FAMILIES.get(str(text.get("model_type", "")))
    if family is None:
        raise BadValueError(
            f"model_type {shorten(text.get('model_type', 'absent'))!r} of {name} is not known.",
            given=shorten(text.get("model_type", "absent")),
            allowed=sorted(FAMILIES),
            fix="write the shape under `model:` in Megatron-Core's field names",
            code="unknown_model_type",
        )
    config = Config(text, notes)
    fields = family(config)
    if config.missing:
        raise BadValueError(
            f"{name} lacks {', '.join(config.missing)}.",
            given=f"model_type {text['model_type']}",
            fix="pass the complete config.json of the model",
            code="incomplete_model_config",
        )
    return _entry(name, text, fields), notes


def _entry(name: str, text: dict[str, Any], fields: dict[str, Any]) -> ModelEntry:
    try:
        shape = Architecture.model_validate(fields)
    except ValidationError as error:
        raise BadValueError(
            f"{name}: {first_problem(error)}.", given=name, fix="check the config.json", code="bad_architecture"
        ) from None
    return ModelEntry(
        id=name[:80],
        name=name[:120],
        family=str(text["model_type"])[:40],
        source="Hugging Face config.json given by path",
        architecture=shape,
    )


def _text_section(data: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The language model's part of a (possibly multimodal) config."""
    notes: list[str] = []
    text = data
    for key in TEXT_SECTIONS:
        inner = text.get(key)
        if isinstance(inner, dict):
            text = {"model_type": data.get("model_type"), **inner}
            notes.append(f"{key} is read; vision and audio towers of the model are not counted")
            break
    for key in ("tie_word_embeddings", "quantization_config"):
        if key not in text and key in data:
            text = {**text, key: data[key]}
    if text.get("quantization_config"):
        notes.append("quantization_config describes the checkpoint; training keeps its own precision")
    return text, notes


def _name(file: Path, data: dict[str, Any]) -> str:
    given = data.get("_name_or_path")
    if isinstance(given, str) and given and not given.startswith((".", "/")):
        return shorten(given.rsplit("/", 1)[-1], 80)
    return shorten(file.parent.name if file.name == "config.json" and file.parent.name else file.stem, 80)
