"""Streams a log once and collects `LogFacts` in constant memory.

Each block is searched for a few literal texts; only lines that hold one are decoded and parsed. A text that repeats
thousands of times in a block is sampled at its head and its tail.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moe_long_context.diagnosis import megatron_lines
from moe_long_context.diagnosis.events import MAX_EVENTS, Failure, LogFacts, OutOfMemory, SignatureHit
from moe_long_context.diagnosis.places import frame_of, place_of
from moe_long_context.diagnosis.reader import TAIL_BYTES, Block, as_text, blocks, line_at, open_chunks
from moe_long_context.diagnosis.redact import redact
from moe_long_context.diagnosis.signature import signatures
from moe_long_context.diagnosis.torch_oom import IS_OOM, oom_figures

HITS_PER_BLOCK = 64
ARGUMENTS_WITHIN = 16 << 20
"""Megatron prints its arguments at the start; they are looked for in this many bytes."""
CONTEXT_LINES = 1500
SHORT_BYTES = 16_384
"""A log up to this size may also be a symptom told in words."""
GENERAL = (b"Error:", b"Exception:", b"sertion", b"out of memory", b"OutOfMemory", b" iteration ", b" memory (",
           b"heoretical memory", b"Step Time : ", b"using world size")  # fmt: skip
"""Texts that are always looked for. Each is rare enough that a flood of other lines cannot crowd it out."""
_LAUNCHER = r"(?:[\w.-]{1,60}/\d{1,5}\s+|[\w.-]{1,60}\s\|\s)?"
_PREFIX = re.compile(
    rf"^\s*{_LAUNCHER}(?:\(\w{{1,40}} pid=(?P<ray>\d{{1,9}})[^)]{{0,80}}\)\s*|"
    r"\[(?:default|rank|Rank ?)(?P<a>\d{1,7})\]:?\s?|"
    r"(?P<b>\d{1,7}):\s|\[(?P<c>\d{1,5})\]:?\s(?=\s*(?:File|Traceback|\w+Error)))"
)
_EXCEPTION = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit)): ?(.*)$")


class Line(NamedTuple):
    """One line: its rank label when the launcher wrote one, the rest, and its place in the file."""

    rank: str | None
    text: str
    offset: int
    raw: str


def scan(log: str | Path) -> LogFacts:
    """Everything a log says that this package understands.

    Raises:
        UnreadableFileError: no readable regular file.
        BadValueError: empty.
    """
    facts = LogFacts()
    sample = b""
    for block in blocks(open_chunks(log)):
        if len(sample) < SHORT_BYTES:
            sample += block.lines[: SHORT_BYTES + 1 - len(sample)]
        if facts.n_bytes < ARGUMENTS_WITHIN:
            facts.config_facts.update(megatron_lines.arguments_in(as_text(block.lines)))
        for position in _positions(block.lines):
            _read_line(facts, block, position)
        facts.n_bytes += len(block.lines)
    facts.printable_share = _printable(sample)
    if facts.n_bytes <= SHORT_BYTES:
        facts.short_text = as_text(sample)
    return facts


@lru_cache(maxsize=1)
def _literals() -> tuple[bytes, ...]:
    """The general texts, and every signature text that holds none of them and may stand on a line without an error."""
    special = {text.encode() for s in signatures() if not s.only_errors for text in s.texts}
    return (*GENERAL, *sorted(t for t in special if not any(g in t for g in GENERAL)))


def _positions(lines: bytes) -> list[int]:
    """Starts of the interesting lines, in file order."""
    starts: set[int] = set()
    for literal in _literals():
        position, count = lines.find(literal), 0
        while position >= 0 and count < HITS_PER_BLOCK:
            start, end = line_at(lines, position)
            starts.add(start)
            count += 1
            position = lines.find(literal, end)
        if position >= 0:
            starts.update(_last_positions(lines, literal))
    return sorted(starts)


def _last_positions(lines: bytes, literal: bytes) -> Iterator[int]:
    position = lines.rfind(literal)
    for _ in range(HITS_PER_BLOCK // 4):
        if position < 0:
            return
        start, _ = line_at(lines, position)
        yield start
        position = lines.rfind(literal, 0, start)


def _read_line(facts: LogFacts, block: Block, start: int) -> None:
    end = line_at(block.lines, start)[1]
    line = _split(as_text(block.lines[start:end]), facts.n_bytes + start)
    _read_numbers(facts, line)
    follower = False
    for signature in signatures():
        if signature.is_on(line.text):
            follower = follower or signature.follows_others
            hit = facts.hits.setdefault(signature.id, SignatureHit(0, redact(line.text), line.offset, line.rank))
            hit.count += 1
    if IS_OOM.search(line.text) and "ray.exceptions" not in line.text:
        facts.see_oom(_oom(facts, block, line, start, end))
    elif match := _EXCEPTION.match(line.text.strip()):
        frames = _frames(block, line, start) if len(facts.failures) < MAX_EVENTS else ()
        failure = Failure(match.group(1), redact(match.group(2)), frames, line.rank, place_of(frames), follower)
        facts.see_failure(failure, line.offset)


def _split(text: str, offset: int) -> Line:
    match = _PREFIX.match(text)
    if not match:
        return Line(None, text, offset, text)
    process = match.group("ray")
    rank = f"pid {process}" if process else next((g for g in match.groups() if g is not None), None)
    return Line(rank, text[match.end() :], offset, text)


def _read_numbers(facts: LogFacts, line: Line) -> None:
    step = megatron_lines.iteration_of(line.text)
    if step:
        facts.see_iteration(step)
    tflops = megatron_lines.bridge_tflops_of(line.text)
    if tflops is not None:
        facts.best_tflops = max(facts.best_tflops or 0.0, tflops)
    report = megatron_lines.report_of(line.raw)
    if report:
        facts.see_report(report)
    if "heoretical memory" in line.text:
        facts.theoretical_bytes.update(megatron_lines.theory_of(line.text))
    facts.config_facts.update(megatron_lines.sizes_of(line.text))


def _oom(facts: LogFacts, block: Block, line: Line, start: int, end: int) -> OutOfMemory:
    text = line.text + " " + _continuation(block.lines, line.rank, end)
    figures = oom_figures(text)
    frames = _frames(block, line, start) if len(facts.ooms) < MAX_EVENTS else ()
    last = facts.last_iteration
    return OutOfMemory(
        rank=line.rank or _gpu_of(text),
        requested=figures.get("requested"),
        capacity=figures.get("capacity"),
        free=figures.get("free"),
        process=figures.get("process"),
        other_processes=figures.get("other_processes"),
        allocated=figures.get("allocated"),
        reserved_unallocated=figures.get("reserved_unallocated"),
        private_pools=figures.get("private_pools"),
        place=place_of(frames),
        frames=frames,
        iteration=last.number if last else None,
        text=redact(line.text),
    )


def _gpu_of(text: str) -> str | None:
    match = re.search(r"\bGPU (\d{1,4})\b", text)
    return f"GPU {match.group(1)}" if match else None


def _continuation(lines: bytes, rank: str | None, end: int) -> str:
    """The next three lines of the same rank: some loggers wrap the message."""
    following = (_split(as_text(raw), 0) for raw in lines[end : end + 3000].split(b"\n")[:12])
    return " ".join(line.text for line in following if line.rank == rank and "Traceback" not in line.text)[:1500]


def _frames(block: Block, line: Line, start: int) -> tuple[str, ...]:
    """Frames of the traceback that ends at this line, outermost first; other ranks' lines are skipped."""
    text = (block.before + block.lines[max(start - TAIL_BYTES, 0) : start])[-TAIL_BYTES:]
    found: list[str] = []
    for raw in reversed(text.split(b"\n")[-CONTEXT_LINES:]):
        earlier = _split(as_text(raw), 0)
        if earlier.rank != line.rank:
            continue
        if "Traceback (most recent call last)" in earlier.text:
            break
        frame = frame_of(earlier.text)
        if frame:
            found.append(frame)
        elif not found and _EXCEPTION.match(earlier.text.strip()):
            break
    return tuple(reversed(found))


def _printable(sample: bytes) -> float:
    """Share of the first bytes that is text; binary files are far below one."""
    if not sample:
        return 1.0
    text = as_text(sample[:4096])
    good = sum(c.isprintable() or c in "\n\t" for c in text) - text.count("�")
    return max(good, 0) / len(text)
