"""Writes config/formats/megatron_lm_flags.json from the real argument parser: flag -> [destination, kind].

Kinds: `true` and `false` set a switch, `value` takes one word, `list` takes several.
"""

from __future__ import annotations

import argparse
import json

import _env

KINDS = {"_StoreTrueAction": "true", "_StoreFalseAction": "false"}


def main() -> None:
    """Dump every long option of Megatron-LM's training parser."""
    _env.pretend_te()
    from megatron.training.arguments import add_megatron_arguments

    parser = add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    flags = {}
    for action in parser._actions:
        for option in action.option_strings:
            if option.startswith("--") and option != "--help":
                flags[option[2:]] = [action.dest, _kind(action, option)]
    path = _env.ROOT / "tools" / "moe_long_context" / "config" / "formats" / "megatron_lm_flags.json"
    rows = ",\n".join(f"{json.dumps(flag)}: {json.dumps(entry)}" for flag, entry in sorted(flags.items()))
    path.write_text("{\n" + rows + "\n}\n", encoding="utf-8")


def _kind(action: argparse.Action, option: str) -> str:
    name = type(action).__name__
    if name == "BooleanOptionalAction":
        return "false" if option.startswith("--no-") else "true"
    return KINDS.get(name, "list" if action.nargs in ("*", "+") else "value")


if __name__ == "__main__":
    main()
