"""Reads Hydra-style overrides of Bridge: `model.tensor_model_parallel_size=4`, a file of them, or a launch line."""

from __future__ import annotations

import re
from typing import Any

from moe_long_context.config.formats.bridge_fields import run_from_fields
from moe_long_context.config.formats.launcher import launcher_size
from moe_long_context.config.formats.recipe_names import model_of
from moe_long_context.config.formats.shell import ShellText
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, shorten

_OVERRIDE = re.compile(r"^[+~]{0,2}([A-Za-z_][\w]*(?:\.[A-Za-z_][\w]*)*)=(.*)$", re.DOTALL)
_NUMBER = re.compile(r"^[+-]?(\d+|\d+\.\d*([eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+)$")
SHORT_FLAGS = {
    "-tp": "model.tensor_model_parallel_size", "-pp": "model.pipeline_model_parallel_size",
    "-cp": "model.context_parallel_size", "-vp": "model.virtual_pipeline_model_parallel_size",
    "-ep": "model.expert_model_parallel_size", "-etp": "model.expert_tensor_parallel_size",
    "-sl": "dataset.seq_length", "-mb": "train.micro_batch_size", "-gb": "train.global_batch_size",
    "-ms": "train.train_iters",
}  # fmt: skip
LONG_FLAGS = {"--seq_length": "dataset.seq_length", "--micro_batch_size": "train.micro_batch_size",
              "--global_batch_size": "train.global_batch_size", "--max_steps": "train.train_iters"}  # fmt: skip
WORDS = {"null": None, "none": None, "true": True, "false": False}
MAX_DEPTH, MAX_VALUE = 12, 1 << 15


def read_overrides(shell: ShellText) -> RunConfig:
    """A run configuration from override words and run_recipe.py flags.

    Raises:
        InputError: a value that cannot be read or cannot be a run.
    """
    fields: dict[str, Any] = {}
    model = None
    for word, following in zip(shell.words, [*shell.words[1:], ""], strict=False):
        if word in SHORT_FLAGS or word in LONG_FLAGS:
            fields[SHORT_FLAGS.get(word) or LONG_FLAGS[word]] = parse_value(following)
        elif word == "--recipe":
            model = model_of(following)
        elif match := _OVERRIDE.match(word):
            _set(fields, match.group(1), parse_value(match.group(2)))
    run = run_from_fields(fields, model)
    return run.replace(**launcher_size(shell.words, shell.variables))


def is_override(word: str) -> bool:
    """Whether a word looks like `section.field=value`."""
    match = _OVERRIDE.match(word)
    return bool(match) and "." in (match.group(1) if match else "")


def _set(fields: dict[str, Any], path: str, value: Any) -> None:
    if isinstance(value, dict) and path not in ("env_vars",):
        target = value.get("_target_")
        for name, item in value.items():
            if name != "_target_":
                fields[f"{path}.{name}"] = _enum(item)
        if path == "peft":
            fields["peft._target_"] = target
        if target and len(value) <= 3 and "." in path and "_args_" in value:
            fields[path] = value.get("_name_", value)
        return
    fields[path] = value


def _enum(item: Any) -> Any:
    if isinstance(item, dict) and "_target_" in item:
        return item.get("_name_") or item["_target_"]
    return item


def parse_value(text: str) -> Any:
    """Plain data of a Hydra value: null, true, 8, 1e-4, 'quoted', [a,b], {k: v}.

    Raises:
        BadValueError: brackets or quotes that do not close.
    """
    if len(text) > MAX_VALUE:
        raise BadValueError(f"An override value has {len(text)} characters; at most {MAX_VALUE} are read.")
    value, rest = _value(text.strip(), 0)
    if rest.strip():
        return text
    return value


def _value(text: str, depth: int) -> tuple[Any, str]:
    if depth > MAX_DEPTH:
        raise BadValueError("An override is nested too deeply.", given=shorten(text))
    if text[:1] == "[":
        return _list(text[1:], depth)
    if text[:1] == "{":
        return _mapping(text[1:], depth)
    if text[:1] in ("'", '"'):
        return _quoted(text)
    match = re.match(r"[^,\[\]{}]*", text)
    word = (match.group(0) if match else "").strip()
    return scalar(word), text[match.end() if match else 0 :]


def scalar(word: str) -> Any:
    """null, booleans and numbers as such; other words as text."""
    if word.lower() in WORDS:
        return WORDS[word.lower()]
    if _NUMBER.match(word):
        return int(word) if word.lstrip("+-").isdigit() else float(word)
    return word


def _quoted(text: str) -> tuple[str, str]:
    quote, out, index = text[0], [], 1
    while index < len(text):
        char = text[index]
        if char == "\\" and text[index + 1 : index + 2] in (quote, "\\"):
            out.append(text[index + 1])
            index += 2
            continue
        if char == quote:
            return "".join(out), text[index + 1 :]
        out.append(char)
        index += 1
    raise BadValueError("A quote in an override does not close.", given=shorten(text))


def _list(text: str, depth: int) -> tuple[list[Any], str]:
    out: list[Any] = []
    text = text.lstrip()
    while text and text[0] != "]":
        item, rest = _value(text, depth + 1)
        if rest == text and text[0] != ",":
            raise BadValueError("A list in an override is malformed.", given=shorten(text))
        out.append(item)
        text = rest.lstrip().removeprefix(",").lstrip()
    if not text:
        raise BadValueError("A list in an override does not close.", given=shorten(out))
    return out, text[1:]


def _mapping(text: str, depth: int) -> tuple[dict[str, Any], str]:
    out: dict[str, Any] = {}
    text = text.lstrip()
    while text and text[0] != "}":
        key, colon, text = text.partition(":")
        if not colon:
            raise BadValueError("A mapping in an override has no colon.", given=shorten(key))
        if any(mark in key for mark in "{}[],"):
            raise BadValueError("A mapping in an override is malformed.", given=shorten(key))
        item, text = _value(text.strip(), depth + 1)
        out[key.strip().strip("'\"")] = item
        text = text.lstrip().removeprefix(",").lstrip()
    if not text:
        raise BadValueError("A mapping in an override does not close.", given=shorten(out))
    return out, text[1:]
