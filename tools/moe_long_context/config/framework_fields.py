"""Names, sections, types and defaults of every field of the released frameworks, read from `framework_fields.json`.

The file is generated from the real config classes by `tests/oracle/dump_fields.py`; do not edit it by hand.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple


class FrameworkField(NamedTuple):
    """One field of Bridge's ConfigContainer."""

    path: str
    type: str
    default: Any


@lru_cache(maxsize=1)
def by_path() -> dict[str, FrameworkField]:
    """Dotted Bridge path -> field."""
    raw = json.loads((Path(__file__).parent / "framework_fields.json").read_text(encoding="utf-8"))
    return {
        f"{section}.{name}": FrameworkField(f"{section}.{name}", kind or "", default)
        for section, fields in raw.items()
        for name, (kind, default) in fields.items()
    }


@lru_cache(maxsize=1)
def by_name() -> dict[str, str]:
    """Bare field name -> dotted path; the sections people write most win where a name occurs twice."""
    order = ("model", "train", "optimizer", "ddp", "comm_overlap", "mixed_precision", "dataset", "scheduler")
    out: dict[str, str] = {}
    for path in by_path():
        section, name = path.split(".", 1)
        held = out.get(name)
        rank = order.index(section) if section in order else len(order)
        held_section = held.split(".", 1)[0] if held else ""
        held_rank = order.index(held_section) if held_section in order else len(order)
        if held is None or rank < held_rank:
            out[name] = path
    return out


def default_of(path: str) -> Any:
    """The released default of a dotted path, None when unknown."""
    field = by_path().get(path)
    return field.default if field else None
