"""Predictions do not move unnoticed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest


def _grid() -> ModuleType:
    spec = importlib.util.spec_from_file_location("speed_grid", Path(__file__).with_name("grid.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_grid_of_predictions_is_the_recorded_one() -> None:
    """A change that moves a prediction shows it here; record with `python tests/speed/grid.py --write`."""
    grid = _grid()
    golden = json.loads(grid.GOLDEN.read_text(encoding="utf-8"))
    found = grid.predictions()
    assert set(found) == set(golden)
    for name, numbers in found.items():
        assert numbers == pytest.approx(golden[name], rel=2e-3), name
