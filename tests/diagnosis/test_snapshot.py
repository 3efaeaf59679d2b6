"""CUDA memory snapshots are read as data and never run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from moe_long_context.diagnosis.snapshot import read_snapshot
from moe_long_context.errors import UnreadableFileError
from moe_long_context.tools import diagnose_failure
from moe_long_context.units import GIB


def segment(*blocks: tuple[int, str, str]) -> dict[str, Any]:
    """One segment of blocks (bytes, state, file of the innermost frame), as torch writes it."""
    rows = [
        {"size": size, "state": state, "frames": [{"filename": f"/x/{file}", "line": 1, "name": "forward"}]}
        for size, state, file in blocks
    ]
    return {"device": 0, "total_size": sum(b[0] for b in blocks), "segment_pool_id": (0, 0), "blocks": rows}


def dump(path: Path, data: Any, protocol: int = 4) -> str:
    """Write a pickle as `torch.cuda.memory._dump_snapshot` does."""
    path.write_bytes(pickle.dumps(data, protocol=protocol))
    return str(path)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_sizes_are_summed_by_place(tmp_path: Path, protocol: int) -> None:
    """Active blocks by the place of their innermost frame; the rest is free inside the allocator."""
    blocks = [
        (6 * GIB, "active_allocated", "tensor_parallel/cross_entropy.py"),
        (2 * GIB, "active_allocated", "moe/experts.py"), (GIB, "inactive", "moe/experts.py"),
    ]  # fmt: skip
    facts = read_snapshot(dump(tmp_path / "s.pickle", {"segments": [segment(*blocks)]}, protocol))
    assert facts.by_place == (("loss", 6 * GIB), ("experts", 2 * GIB))
    assert (facts.reserved, facts.active, facts.free_inside, facts.largest_free) == (9 * GIB, 8 * GIB, GIB, GIB)


def test_free_memory_in_small_pieces_is_fragmentation(tmp_path: Path) -> None:
    """8 GiB free in pieces of 1 GiB while 2 GiB could not be had."""
    pieces = [(GIB, "inactive", "moe/experts.py"), (4 * GIB, "active_allocated", "moe/experts.py")] * 8
    data = {"segments": [segment(*pieces)], "device_traces": [[{"action": "oom", "size": 2 * GIB, "device_free": 0}]]}
    answer = diagnose_failure({"model": "qwen3-30b-a3b"}, snapshot=dump(tmp_path / "s.pickle", data))
    assert answer.result.causes[0].cause == "fragmentation"


class _Evil:
    """Would run a command when unpickled."""

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {self.marker}",))


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path) -> None:
    """The classic attack on `pickle.load`."""
    marker = tmp_path / "was_run"
    path = dump(tmp_path / "evil.pickle", {"segments": [_Evil(str(marker))]})
    with pytest.raises(UnreadableFileError, match="not run"):
        read_snapshot(path)
    assert not marker.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"not a pickle", b"\x80\x04.", b"\x80\x04}q\x00X\xff\xff\xff\x7f", b"\x80\x04r\xff\xff\xff\x7f.",
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fx.", b"cos\nsystem\n(S'true'\ntR.", b"\x80\x02\x8c\x03abc\x81.",
    ],
)  # fmt: skip
def test_broken_and_hostile_pickles_are_refused(tmp_path: Path, data: bytes) -> None:
    """Truncated, huge lengths, huge references, globals: one clear error each."""
    path = tmp_path / "x.pickle"
    path.write_bytes(data)
    with pytest.raises(UnreadableFileError):
        read_snapshot(path)


def test_shape_of_the_data_is_not_trusted(tmp_path: Path) -> None:
    """Lists where mappings should be, text where numbers should be."""
    odd = {"segments": [1, {"total_size": "x", "blocks": [None, {"size": -5, "frames": 3}]}], "device_traces": {"a": 1}}
    assert read_snapshot(dump(tmp_path / "odd.pickle", odd)).reserved == 0
