"""The published runs against the model as it stands: `evals/accuracy/throughput_rows.yaml`."""

from __future__ import annotations

import importlib.util
import re
import statistics
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from moe_long_context.tools import estimate_throughput
from moe_long_context.yaml_safe import load_file

ROOT = Path(__file__).resolve().parents[2]
PAGE_ABS = 1.01
"""TFLOP/s: the page prints whole numbers."""
MEDIAN, COVERAGE = 0.10, 0.90
"""What the project promises of published runs."""
SHORT_FIELDS = (
    "model", "gpu", "num_gpus", "seq_length", "micro_batch_size", "global_batch_size", "precision",
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size",
)  # fmt: skip


@lru_cache(maxsize=1)
def _fit() -> ModuleType:
    path = ROOT / "evals" / "calibration" / "fit_speed.py"
    spec = importlib.util.spec_from_file_location("fit_speed", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_speed"] = module
    spec.loader.exec_module(module)
    return module


@lru_cache(maxsize=1)
def _rows() -> dict[str, Any]:
    return {row.id: row for row in _fit().read_rows()}


def test_published_runs_are_met() -> None:
    """Median error at most 10 %, and 90 % of the scored rows inside the interval of a fully written configuration."""
    fit = _fit()
    scored = [row for row in _rows().values() if row.scored]
    errors = fit.errors_of(scored, fit.current())
    low, high = fit.document()["interval"]["low"], fit.document()["interval"]["high"]
    assert statistics.median(map(abs, errors)) <= MEDIAN
    assert sum(low <= 1 / (1 + e) <= high for e in errors) / len(errors) >= COVERAGE


def test_short_questions_are_met() -> None:
    """The same rows asked by sizes and precision alone, as the published tables print them."""
    errors, inside = [], 0
    for entry in load_file(ROOT / "evals" / "accuracy" / "throughput_rows.yaml")["rows"]:
        if "not_scored" in entry or "model.num_moe_experts" in entry["config"].get("megatron", {}):
            continue
        short = {key: value for key, value in entry["config"].items() if key in SHORT_FIELDS}
        result = estimate_throughput(short).raise_for_error().result
        assert result is not None
        measured = _rows()[entry["id"]].measured
        errors.append(abs(result.model_tflops_per_gpu / measured - 1))
        inside += result.interval_tflops[0] <= measured <= result.interval_tflops[1]
    assert statistics.median(errors) <= MEDIAN
    assert inside / len(errors) >= COVERAGE


def test_the_accuracy_page_is_current() -> None:
    """evals/accuracy/throughput.md shows what the model gives now; write it with fit_speed.py --write."""
    fit = _fit()
    page = (ROOT / "evals" / "accuracy" / "throughput.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"^\| (\S+) \| \S+ \| \d+ \| (\d+) \|", page, flags=re.MULTILINE))
    assert set(shown) == set(_rows())
    parameters = fit.current()
    for name, row in _rows().items():
        assert abs(fit.predict(row, parameters) - int(shown[name])) <= PAGE_ABS, name
