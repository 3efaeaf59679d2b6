"""Compares config/framework_fields.json with the real config classes, or rewrites it: `dump_fields.py [--write]`.

One section for each member of Bridge's ConfigContainer, one entry `[type, default]` for each public field. The section
`model` is the union of the GPT, MLA and hybrid providers: the first one that has a field gives its default.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import json
import sys
from typing import Any

import _env

PATH = _env.ROOT / "tools" / "moe_long_context" / "config" / "framework_fields.json"
REQUIRED = "<required>"
FACTORY = "<factory>"


def main() -> int:
    """1 when the file differs from the installed release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="rewrite the file")
    text = json.dumps(sections(), indent=0)
    if parser.parse_args().write:
        PATH.write_text(text, encoding="utf-8")
        return 0
    if same := json.loads(text) == json.loads(PATH.read_text(encoding="utf-8")):
        print("framework fields: equal to the installed release")
    else:
        print("framework fields: differ from the installed release; run tests/oracle/dump_fields.py --write")
    return int(not same)


def sections() -> dict[str, dict[str, list[Any]]]:
    """Section -> field -> [type, default], from the installed Megatron Bridge."""
    _env.pretend_te()
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider
    from megatron.bridge.training.config import ConfigContainer

    found: dict[str, dict[str, list[Any]]] = {"model": {}}
    for provider in (GPTModelProvider, MLAModelProvider, HybridModelProvider):
        _merge(found["model"], provider)
    for member in dataclasses.fields(ConfigContainer):
        for kind in (member.type, *getattr(member.type, "__args__", ())):
            if dataclasses.is_dataclass(kind):
                _merge(found.setdefault(member.name, {}), kind)
    return found


def _merge(section: dict[str, list[Any]], kind: Any) -> None:
    for field in dataclasses.fields(kind):
        if not field.name.startswith("_"):
            section.setdefault(field.name, [_type_name(field.type), _default(field)])


def _type_name(kind: Any) -> str | None:
    if isinstance(kind, str):
        return kind
    return str(kind).replace("typing.", "") if hasattr(kind, "__args__") else getattr(kind, "__name__", None)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return _plain(field.default)
    if field.default_factory is dataclasses.MISSING:
        return REQUIRED
    try:
        return _plain(field.default_factory())
    except Exception:
        return FACTORY


def _plain(value: Any) -> Any:
    """What JSON can hold of a default: an enum by its name, an object by its class."""
    if isinstance(value, enum.Enum):
        return value.name
    if value is None or isinstance(value, (int, float, str, bool)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return getattr(value, "__name__", str(value)) if callable(value) else type(value).__name__


if __name__ == "__main__":
    sys.exit(main())
