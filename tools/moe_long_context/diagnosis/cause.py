"""`Cause`: one explanation of a failure, and how several hints for the same cause add up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

CERTAIN = 0.97
"""No text and no arithmetic makes a cause more certain than this."""
PER_EXTRA_HINT = 0.03


class Cause(NamedTuple):
    """A cause, how sure, why, and the tags of its fixes (empty = those of the cause's table)."""

    cause: str
    confidence: float
    because: str
    fixes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def ranked(hints: Iterable[Cause]) -> list[Cause]:
    """One entry per cause, likeliest first: its strongest hint counts, each further one adds a little."""
    groups: dict[str, list[Cause]] = {}
    for hint in hints:
        groups.setdefault(hint.cause, []).append(hint)
    merged = [_merge(sorted(group, key=lambda c: -c.confidence)) for group in groups.values()]
    return sorted(merged, key=lambda c: -c.confidence)


def _merge(group: list[Cause]) -> Cause:
    best = group[0]
    reasons = list(dict.fromkeys(c.because for c in group))[:3]
    fixes = tuple(dict.fromkeys(tag for c in group for tag in c.fixes))
    missing = tuple(dict.fromkeys(name for c in group for name in c.missing))
    confidence = min(best.confidence + PER_EXTRA_HINT * (len(group) - 1), max(CERTAIN, best.confidence))
    return Cause(best.cause, confidence, "; ".join(reasons), fixes, missing)
