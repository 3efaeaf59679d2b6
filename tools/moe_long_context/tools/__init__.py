"""The ten public tools. Each module of this folder whose name has no underscore is one tool, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

NAMES = tuple(sorted(f.stem for f in Path(__file__).parent.glob("[a-z]*.py")))


def __getattr__(name: str) -> Any:
    if name in NAMES:
        value = getattr(import_module(f"moe_long_context.tools.{name}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no tool {name!r}")


def __dir__() -> list[str]:
    return list(NAMES)
