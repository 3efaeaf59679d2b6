"""Reads a CUDA memory snapshot (`torch.cuda.memory._dump_snapshot`) without running anything that is in it.

A pickle is a program. This reader keeps only the instructions that build plain data (numbers, text, lists, mappings);
any that names a class or a function is refused before it does anything.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from moe_long_context.diagnosis.places import place_of
from moe_long_context.errors import UnreadableFileError, shorten

MAX_SNAPSHOT_BYTES = 512 << 20
MAX_BLOCKS = 2_000_000
_PLAIN = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.POP, pickle.POP_MARK,
    pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2,
    pickle.LONG1, pickle.FLOAT, pickle.BINFLOAT, pickle.BINUNICODE, pickle.SHORT_BINUNICODE,
    pickle.BINUNICODE8, pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINSTRING, pickle.SHORT_BINSTRING,
    pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_TUPLE, pickle.LIST, pickle.DICT, pickle.TUPLE, pickle.TUPLE1,
    pickle.TUPLE2, pickle.TUPLE3, pickle.APPEND, pickle.APPENDS, pickle.SETITEM, pickle.SETITEMS,
    pickle.GET, pickle.BINGET, pickle.LONG_BINGET, pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE,
)  # fmt: skip


class _PlainReader(pickle._Unpickler):
    """The interpreter of the standard library with every instruction removed that is not plain data."""

    dispatch = {op[0]: pickle._Unpickler.dispatch[op[0]] for op in _PLAIN}  # noqa: RUF012


class SnapshotFacts(NamedTuple):
    """Bytes on one device at the moment of the snapshot."""

    reserved: int
    active: int
    largest_free: int
    by_place: tuple[tuple[str, int], ...]
    largest_blocks: tuple[tuple[int, str], ...]
    failed_request: int | None
    graph_pools: int

    @property
    def free_inside(self) -> int:
        """Reserved by the allocator and not in use."""
        return self.reserved - self.active


def read_snapshot(path: str | Path) -> SnapshotFacts:
    """What a snapshot holds.

    Raises:
        UnreadableFileError: no file, too large, not a snapshot, or a pickle that wants to do more than hold data.
    """
    data = _plain_data(Path(path))
    segments = data.get("segments") if isinstance(data, dict) else None
    if not isinstance(segments, list):
        raise UnreadableFileError(
            f"snapshot {shorten(Path(path).name)} has no list of segments.",
            given=shorten(Path(path).name),
            fix="pass the file that torch.cuda.memory._dump_snapshot wrote",
        )
    return _facts(segments, data.get("device_traces"))


def _plain_data(path: Path) -> Any:
    name = shorten(path.name)
    try:
        if not path.is_file():
            raise UnreadableFileError(f"snapshot {name} does not exist or is no regular file.", given=name)
        if path.stat().st_size > MAX_SNAPSHOT_BYTES:
            raise UnreadableFileError(
                f"snapshot {name} is larger than {MAX_SNAPSHOT_BYTES} bytes.",
                given=name,
                fix="record fewer events (max_entries) or without stacks",
            )
        return _PlainReader(io.BytesIO(path.read_bytes())).load()
    except UnreadableFileError:
        raise
    except KeyError as error:
        what = "an instruction that is not plain data" if isinstance(error.args[0], int) else "a broken reference"
        raise UnreadableFileError(f"snapshot {name} holds {what}; it was not run.", given=name) from None
    except Exception as error:
        raise UnreadableFileError(
            f"snapshot {name} is not a readable pickle: {shorten(type(error).__name__)}.", given=name
        ) from None


def _facts(segments: list[Any], traces: Any) -> SnapshotFacts:
    places: Counter[str] = Counter()
    largest: list[tuple[int, str]] = []
    reserved = active = largest_free = pools = 0
    for segment in (s for s in segments if isinstance(s, dict)):
        reserved += _size(segment, "total_size")
        if segment.get("segment_pool_id") not in (None, (0, 0), [0, 0]):
            pools += _size(segment, "total_size")
        for block in _blocks(segment):
            size = _size(block, "size")
            if block.get("state") != "active_allocated":
                largest_free = max(largest_free, size)
                continue
            active += size
            place = place_of(_frames(block)) or "unknown"
            places[place] += size
            largest = sorted([*largest, (size, place)], reverse=True)[:5]
    return SnapshotFacts(
        reserved, active, largest_free, tuple(places.most_common(12)), tuple(largest), _failed(traces), pools
    )


def _blocks(segment: dict[str, Any]) -> Iterator[dict[str, Any]]:
    blocks = segment.get("blocks")
    if isinstance(blocks, list):
        yield from (b for b in blocks[:MAX_BLOCKS] if isinstance(b, dict))


def _size(mapping: dict[str, Any], key: str) -> int:
    value = mapping.get(key)
    return value if isinstance(value, int) and 0 <= value < 1 << 48 else 0


def _frames(block: dict[str, Any]) -> list[str]:
    frames = block.get("frames")
    if not isinstance(frames, list):
        return []
    rows = [f for f in frames[:64] if isinstance(f, dict)]
    return [f"{'/'.join(str(f.get('filename', '')).split('/')[-2:])}:{f.get('name', '')}" for f in reversed(rows)]


def _failed(traces: Any) -> int | None:
    """The last request that failed, from the event history."""
    if not isinstance(traces, list):
        return None
    for trace in traces[:64]:
        for event in reversed(trace if isinstance(trace, list) else []):
            if isinstance(event, dict) and event.get("action") == "oom":
                return _size(event, "size")
    return None
