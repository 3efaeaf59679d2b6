"""The two gates of memory estimates: did predictions move, and are they right."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
ACCURACY = ROOT / "evals" / "accuracy"


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"accuracy_{name}", ACCURACY / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_predictions_are_the_recorded_ones() -> None:
    """A change that moves a prediction is listed here; accept with `python evals/accuracy/grid.py --write`."""
    grid = _script("grid")
    changes = grid.moved(grid.recorded(), grid.predictions())
    assert not changes, "\n".join([f"{len(changes)} predictions moved:", *changes[:40]])


def test_what_moved_is_told_with_its_size() -> None:
    """A peak that grew by a tenth is listed first, with its size; an unchanged one is not."""
    grid = _script("grid")
    old = {"a": [10.0, 5.0, 0, "yes"], "b": [10.0, 5.0, 0, "yes"], "c": [1.0, 1.0, 0, "yes"]}
    new = {"a": [10.1, 5.0, 0, "yes"], "b": [11.0, 5.0, 0, "tight"], "c": [1.0, 1.0, 0, "yes"]}
    first, second = grid.moved(old, new)
    assert first.startswith("b:")
    assert "+10.00 %" in first
    assert second.startswith("a:")


def test_no_group_is_worse_than_its_floor() -> None:
    """Published runs are scored no worse than recorded; record with `python evals/accuracy/score.py --write`."""
    score = _script("score")
    scores, _ = score.scores_of(score.load_file(score.ROWS)["rows"])
    problems = score.worse(score.table(scores), score.load_file(score.FLOORS))
    assert not problems, "\n".join(problems)


def test_a_worse_group_is_told() -> None:
    """One row 10 % off against a floor of 5 % is a problem for its median and for its largest error."""
    score = _script("score")
    lines = score.table([score.Score("r", "g", "peak", 100.0, 110.0, 0.10)])
    problems = score.worse(lines, {"g peak": {"median": 0.05, "largest": 0.05}})
    assert len(problems) == 2


def test_an_entry_that_cannot_be_read_is_skipped_with_the_reason() -> None:
    """A hidden or later file may lack any field: no row is dropped in silence, none stops the conversion."""
    convert = _script("convert")
    for name, reader in convert.READERS.items():
        row = convert.row_of({"id": "x", "measured": {}}, reader)
        assert row.skip, name


def test_bridge_gigabytes_are_decimal() -> None:
    """Bridge logs 36.618 'GB' as 1e9 bytes each = 34.103 GiB (megatron/bridge/training/utils/train_utils.py)."""
    convert = _script("convert")
    entry = {
        "id": "skill_rc_moonlight_none", "model": "Moonlight-16B-A3B", "hardware": "H100", "world_size": 8, "tp": 2,
        "pp": 1, "ep": 8, "seq_len": 4096, "precision": "BF16", "measured": {"peak_mem_gb": 36.618},
    }  # fmt: skip
    row = convert.row_of(entry, convert.READERS["bridge_skills"])
    assert not row.skip
    assert row.measured["peak_gib"] == 34.1032
