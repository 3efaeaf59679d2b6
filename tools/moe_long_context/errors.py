"""The one error family. Every expected failure of the package is one of these, and each says what to try next.

    MoeError                      base; carries code, given, allowed, fix
    |- InputError                 what was written cannot be a run (exit 2)
    |  |- UnknownNameError        a model, GPU, key, rule or tool that does not exist; carries the nearest names
    |  |- BadValueError           not a number, zero, negative, absurd, wrong type
    |  `- UnreadableFileError     missing, too large, not text, not YAML
    |- InvalidLayoutError         a run whose sizes leave no meaning to compute (exit 2); more GPUs may help
    `- MissingExtraError          an optional dependency is not installed; carries the install command

Anything else that escapes is a defect of the program (exit 3); `internal_error` turns it into the same kind of data.
"""

from __future__ import annotations

import difflib
import os
import sys
import traceback
from collections.abc import Iterable
from typing import Any


class MoeError(Exception):
    """Base of all expected failures."""

    code = "error"
    exit_status = 2

    def __init__(
        self,
        message: str,
        *,
        given: Any = None,
        allowed: Iterable[str] = (),
        fix: str = "",
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.given = given
        self.allowed = list(allowed)
        self.fix = fix
        if code:
            self.code = code

    def as_dict(self) -> dict[str, Any]:
        """The `error` object of the JSON answer."""
        return {
            "code": self.code,
            "message": self.message,
            "given": self.given if self.given is None else shorten(self.given),
            "allowed": self.allowed,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        tail = f" Try: {self.fix}" if self.fix else ""
        return f"{self.message}{tail}"


class InputError(MoeError):
    """What was written cannot be a run at all."""

    code = "bad_input"


class UnknownNameError(InputError):
    """A name that is not in its list; the message names the nearest ones."""

    code = "unknown_name"

    def __init__(self, kind: str, given: str, known: Iterable[str], *, code: str | None = None, fix: str = "") -> None:
        names = sorted(set(known))
        near = nearest(given, names)
        hint = f" Did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
        super().__init__(
            f"Unknown {kind} {shorten(given)!r}.{hint}",
            given=given,
            allowed=near or names[:40],
            fix=fix or (f"use {near[0]!r}" if near else ""),
            code=code or f"unknown_{kind.replace(' ', '_')}",
        )


class BadValueError(InputError):
    """A value of the wrong type or outside what any run could have."""

    code = "bad_value"


class UnreadableFileError(InputError):
    """A file that is missing, too large, not text or not the expected format."""

    code = "unreadable_file"


class InvalidLayoutError(MoeError):
    """Sizes that leave nothing to compute, for example a world size that no mesh fits."""

    code = "invalid_layout"


class MissingExtraError(MoeError):
    """An optional dependency is not installed."""

    code = "missing_extra"

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the optional dependencies [{extra}].",
            given=extra,
            fix=f"pip install 'moe-long-context[{extra}]'",
        )


INTERNAL = "internal_error"
DEBUG_VARIABLE = "MOE_LONG_CONTEXT_DEBUG"


def internal_error(fault: Exception) -> dict[str, Any]:
    """The `error` object of a defect; its traceback goes to standard error when the debug variable is set."""
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exception(fault, file=sys.stderr)
    return {
        "code": INTERNAL,
        "message": f"A fault of this program: {type(fault).__name__}: {shorten(str(fault))}",
        "given": None,
        "allowed": [],
        "fix": f"set {DEBUG_VARIABLE}=1 for the traceback, and report it",
    }


def nearest(given: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The known names most like `given`, best first; empty when none is close."""
    pool = list(known)
    folded = {name.lower().replace("_", "-"): name for name in pool}
    key = str(given)[:100].lower().replace("_", "-")
    close = difflib.get_close_matches(key, folded, n=count, cutoff=0.6)
    prefixed = [name for name in folded if len(key) >= 3 and (name.startswith(key) or key in name)]
    return [folded[name] for name in dict.fromkeys([*close, *sorted(prefixed, key=len)])][:count]


def shorten(value: Any, limit: int = 200) -> str:
    """A one-line, bounded text of any value, safe to print."""
    text = value if isinstance(value, str) else repr(value)
    text = "".join(c if c.isprintable() else " " for c in text[: limit * 4])
    return text if len(text) <= limit else text[: limit - 3] + "..."
