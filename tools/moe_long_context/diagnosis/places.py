"""Names the place of a training step from the frames of a traceback."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moe_long_context.yaml_safe import load_file

_FRAME = re.compile(r'File "([^"]{1,500})", line \d{1,7}, in (\S{1,120})')
VAGUE = frozenset({"layer", "backward", "recompute"})
"""Places that say when rather than what; any other place on the stack wins."""


class Place(NamedTuple):
    """A place, how to say it, and the pattern of its frames."""

    place: str
    words: str
    pattern: re.Pattern[str]


@lru_cache(maxsize=1)
def places() -> tuple[Place, ...]:
    """All places in the order in which they are tried."""
    rows = load_file(Path(__file__).parent / "places.yaml")
    return tuple(Place(row["place"], row["words"], re.compile(row["pattern"], re.I)) for row in rows)


def words_for(place: str | None) -> str:
    """How to say a place; empty when it is not known."""
    return next((p.words for p in places() if p.place == place), "")


def frame_of(line: str) -> str | None:
    """`folder/file.py:function` of a traceback line, None for other lines."""
    match = _FRAME.search(line)
    if not match:
        return None
    parts = match.group(1).replace("\\", "/").split("/")
    return f"{'/'.join(parts[-2:])}:{match.group(2)}"


def place_of(frames: Sequence[str]) -> str | None:
    """The place of the innermost telling frame; a vague one only when no frame tells more."""
    vague: str | None = None
    for frame in reversed(frames):
        for place in places():
            if not place.pattern.search(frame):
                continue
            if place.place not in VAGUE:
                return place.place
            vague = vague or place.place
            break
    return vague
