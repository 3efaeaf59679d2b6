"""Opens a log in any state and yields cleaned blocks of whole lines in constant memory.

Handles gzip, UTF-16 with a mark, ANSI colours, carriage returns, NUL bytes, lines without end. Knows nothing about
what a line means.
"""

from __future__ import annotations

import gzip
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from moe_long_context.errors import BadValueError, UnreadableFileError, shorten

BLOCK_BYTES = 1 << 20
TAIL_BYTES = 1 << 16
MAX_TEXT_LINE = 4096
MAX_PLAIN_BYTES = 64 << 30
MAX_UNPACKED_BYTES = 8 << 30
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,512}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LOOKS_LIKE_PATH = re.compile(r"^[^\s]{1,400}\.(?:log|txt|out|err|gz|stdout|stderr|json|jsonl)$|^[~./\\][^\s]{1,400}$")


class _Readable(Protocol):
    """An open binary file or a decompressor."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes; empty at the end."""
        ...


class Block(NamedTuple):
    """Cleaned whole lines, and the end of what came before for context."""

    before: bytes
    lines: bytes


def open_chunks(log: str | Path) -> Iterator[bytes]:
    """Raw chunks of a log that is given as a path, as "-" (standard input), or as the text itself.

    Raises:
        UnreadableFileError: a path that is no readable regular file.
        BadValueError: empty.
    """
    if isinstance(log, str) and not log.strip():
        raise BadValueError("The log is empty.", given="", fix="pass the path of the log, or its text")
    if isinstance(log, str) and (not _is_path(log)):
        return _text_chunks(log)
    if str(log) == "-":
        return _file_chunks(sys.stdin.buffer, "standard input", MAX_PLAIN_BYTES)
    return _path_chunks(Path(log))


def _is_path(text: str) -> bool:
    if text == "-":
        return True
    if "\n" in text or len(text) > 4096:
        return False
    try:
        exists = Path(text).exists()
    except (OSError, ValueError):
        return False
    return exists or bool(_LOOKS_LIKE_PATH.match(text))


def _text_chunks(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), BLOCK_BYTES):
        yield text[start : start + BLOCK_BYTES].encode("utf-8", "replace")


def _path_chunks(path: Path) -> Iterator[bytes]:
    name = shorten(path.name)
    if not path.is_file():
        kind = "is a folder" if path.is_dir() else "does not exist or is not a regular file"
        raise UnreadableFileError(f"log {name} {kind}.", given=name, fix="check the path")
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            if packed:
                yield from _file_chunks(gzip.GzipFile(fileobj=raw), name, MAX_UNPACKED_BYTES)
            else:
                yield from _file_chunks(raw, name, MAX_PLAIN_BYTES)
    except OSError as error:
        raise UnreadableFileError(f"log {name} cannot be read: {shorten(str(error))}.", given=name) from None


def _file_chunks(file: _Readable, name: str, limit: int) -> Iterator[bytes]:
    """Chunks up to `limit` bytes; a damaged gzip ends where it is damaged."""
    total = 0
    while total < limit:
        try:
            chunk = file.read(BLOCK_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            return
        if not chunk:
            return
        total += len(chunk)
        yield chunk


def blocks(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Cleaned blocks of whole lines; a line longer than a block is cut."""
    carry, before = b"", b""
    encoding = None
    for index, chunk in enumerate(chunks):
        if index == 0:
            encoding = _encoding(chunk)
        carry += chunk
        cut = carry.rfind(b"\n") + 1
        if not cut and len(carry) < 2 * BLOCK_BYTES:
            continue
        ready, carry = (carry[:cut], carry[cut:]) if cut else (carry, b"")
        cleaned = clean(ready, encoding)
        yield Block(before, cleaned)
        before = (before + cleaned)[-TAIL_BYTES:]
    if carry:
        yield Block(before, clean(carry, encoding))


def _encoding(head: bytes) -> str | None:
    return {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(head[:2])


def clean(block: bytes, encoding: str | None = None) -> bytes:
    """Without colours, NUL bytes and carriage returns, as UTF-8."""
    if encoding:
        block = block.replace(b"\0", b"")
    elif b"\0" in block:
        block = block.replace(b"\0", b" ")
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return block


def line_at(block: bytes, position: int) -> tuple[int, int]:
    """Start and end of the line around a position; of a very long line, a window around it."""
    start = max(block.rfind(b"\n", 0, position) + 1, position - MAX_TEXT_LINE // 2)
    end = block.find(b"\n", position)
    end = len(block) if end < 0 else end
    return start, min(end, start + MAX_TEXT_LINE)


def as_text(raw: bytes) -> str:
    """Bytes of a line as text; what is not UTF-8 becomes a mark."""
    return raw.decode("utf-8", "replace")
