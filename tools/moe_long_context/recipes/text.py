"""Quoting: nothing that stands in a configuration can break out into Python, a shell or a comment."""

from __future__ import annotations

import re
import shlex
from typing import Any

from moe_long_context.errors import BadValueError, shorten

_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")


def python_literal(value: Any) -> str:
    """A Python literal of plain data.

    Raises:
        BadValueError: anything that is not plain data.
    """
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if value == value and abs(value) != float("inf") else f'float("{value}")'
    if isinstance(value, list):
        return "[" + ", ".join(python_literal(v) for v in value) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(python_literal(v) + ", " for v in value).rstrip() + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{python_literal(k)}: {python_literal(v)}" for k, v in value.items()) + "}"
    raise BadValueError(f"{type(value).__name__} cannot be written into a recipe.", given=shorten(value))


def comment(text: str) -> str:
    """One line that stays a comment whatever it holds."""
    return "".join(c if c.isprintable() else " " for c in text)


def identifier(name: str, what: str = "field") -> str:
    """The name itself when it is a plain identifier.

    Raises:
        BadValueError: anything else, so that no name can carry code.
    """
    if not _IDENTIFIER.match(name):
        raise BadValueError(
            f"{what} {shorten(name)!r} is not a plain name.", given=shorten(name), fix="letters, digits and _ only"
        )
    return name


def shell(value: Any) -> str:
    """One shell word."""
    return shlex.quote(str(value))
