"""Reads a run configuration from a file or text: the short form (YAML, JSON) and, in `formats`, the frameworks' own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from moe_long_context.config.formats.detect import read_known_form
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, UnreadableFileError, shorten
from moe_long_context.yaml_safe import MAX_CONFIG_BYTES, load_text, read_text


def read_file(path: str | Path) -> RunConfig:
    """Read a run configuration from a path, or from standard input for "-".

    Raises:
        InputError: unreadable, not YAML or JSON, unknown keys, values that cannot be a run.
    """
    if str(path) == "-":
        text = sys.stdin.read(MAX_CONFIG_BYTES + 1)
        return read_document(text, "standard input")
    return read_document(read_text(path), shorten(str(path)))


def read_document(text: str, name: str) -> RunConfig:
    """Read a run configuration from text in any known form.

    Raises:
        InputError: see `read_file`.
    """
    framework_form = read_known_form(text, name)
    if framework_form is not None:
        return framework_form
    data: Any = load_text(text, name)
    if data is None:
        raise UnreadableFileError(
            f"{name} is empty.", given=name, fix="start with `model:`, `gpu:`, `num_gpus:`, `seq_length:`"
        )
    if not isinstance(data, dict):
        raise BadValueError(
            f"{name} holds {type(data).__name__}, not a mapping of field: value.",
            given=name,
            fix="the form is `key: value`",
        )
    return RunConfig.read(data)
