"""Recognises which form a text has and reads it; the short form is left to `config.reading`."""

from __future__ import annotations

import re

from moe_long_context.config.formats.blocks import find_block, read_block
from moe_long_context.config.formats.bridge_yaml import is_dump, read_dump
from moe_long_context.config.formats.megatron_lm import flags_of, read_flags
from moe_long_context.config.formats.overrides import is_override, read_overrides
from moe_long_context.config.formats.remark import apply_remark, find_remark
from moe_long_context.config.formats.shell import ShellText, read_shell
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, MoeError
from moe_long_context.yaml_safe import load_text

_PROGRAM = re.compile(r"^(from|import) [\w.]+|^def \w+\(", re.MULTILINE)
_SHORT_FORM = re.compile(r"^(?:[ \t\r]*(?:#[^!\n][^\n]*|#|---)?\n)*[ \t]*(?:[{]|[A-Za-z_][\w.-]*[ \t]*:(?:\s|$))")
_SCRIPT = re.compile(
    r"^#!|^[ \t]*--[a-zA-Z]|pretrain_\w+\.py|run_recipe\.py|torchrun|^[ \t]*(?:export[ \t]+)?[A-Z_]+="
    r"|actor_rollout_ref\.\w",
    re.MULTILINE,
)
_OVERRIDES = re.compile(r"^[ \t]*['\"]?[+~]{0,2}[a-z_]+\.[a-z_.0-9]+=", re.MULTILINE)
_DUMP = re.compile(r"^[ \t]*_target_:", re.MULTILINE)
_BLOCK = re.compile(r"^[ \t]*actor_rollout_ref:", re.MULTILINE)


def read_known_form(text: str, name: str) -> RunConfig | None:
    """The run configuration of a framework's own form; None when the text is none of them.

    Raises:
        InputError: a known form with values that cannot be a run.
    """
    rows = find_remark(text)
    config = _read(text, name)
    if config is None:
        return None
    return apply_remark(config, rows) if rows else config


def _read(text: str, name: str) -> RunConfig | None:
    if _PROGRAM.search(text):
        raise BadValueError(
            f"{name} is a Python program, which is not executed.", given=name,
            fix="pass the run_config.yaml that Bridge writes beside its checkpoints, or a launch script",
        )  # fmt: skip
    if _DUMP.search(text):
        data = load_text(text, name, dump=True)
        if is_dump(data):
            return read_dump(data)
    if _BLOCK.search(text) and (block := _block(text, name)) is not None:
        return block
    if _SHORT_FORM.match(text):
        return None
    if not (_SCRIPT.search(text) or _OVERRIDES.search(text)):
        return None
    return read_script(read_shell(text))


def read_script(shell: ShellText) -> RunConfig | None:
    """Overrides or Megatron-LM flags of a script's words."""
    if (block := find_block(shell.words)) is not None:
        return block
    if sum(is_override(word) for word in shell.words) >= 1:
        return read_overrides(shell)
    if flags_of(shell.words) or shell.variables:
        return read_flags(shell)
    return None


def _block(text: str, name: str) -> RunConfig | None:
    try:
        data = load_text(text, name, dump=True)
    except MoeError:
        return None
    return read_block(data) if isinstance(data, dict) else None
