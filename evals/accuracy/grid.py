"""Did predictions of memory move? A grid of them over models, GPUs, lengths and layouts, kept in tests/golden.

    python evals/accuracy/grid.py            what moved since the recorded grid
    python evals/accuracy/grid.py --check    the same, and fail if anything did
    python evals/accuracy/grid.py --write    record today's predictions: a change accepted on purpose

Whether predictions are right is score.py's question.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from moe_long_context.catalog.loader import model_ids  # noqa: E402
from moe_long_context.tools import estimate_memory  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "memory_grid.json"
DIGITS = 5
GPUS = ("H100", "GB200")
LENGTHS = ((4096, 1), (32768, 4), (131072, 16))
LAYOUTS: dict[str, dict[str, Any]] = {
    "ep8": {"ep": 8},
    "tp2-ep8-selective": {"tp": 2, "sp": True, "ep": 8, "recompute": ["layernorm", "moe_act"]},
    "pp4-ep8-full": {"pp": 4, "ep": 8, "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}},
    "pp2-ep16-fp8-offload": {
        "pp": 2, "ep": 16, "precision": "fp8_blockwise",
        "optimizer": {"cpu_offload_fraction": 1.0, "precision_aware": True},
    },
}  # fmt: skip
COMMON = {"num_gpus": 256, "gbs": 512, "mbs": 1}
Prediction = list[Any]


def configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """(case name, configuration) of every point."""
    for model in model_ids():
        for layout, sizes in LAYOUTS.items():
            for gpu in GPUS:
                for length, cp in LENGTHS:
                    name = f"{model}/{layout}/{gpu}/{length}"
                    yield name, {**COMMON, "model": model, "gpu": gpu, "seq_length": length, "cp": cp, **sizes}


def predictions() -> dict[str, Prediction]:
    """Case name -> [peak GiB, static GiB, peak stage, verdict], or [error code] where the layout has no meaning."""
    out: dict[str, Prediction] = {}
    for name, config in configs():
        answer = estimate_memory(config)
        if not answer.ok:
            assert answer.error is not None
            out[name] = [answer.error.code]
            continue
        result = answer.result
        assert result is not None
        numbers = [float(f"{value:.{DIGITS}g}") for value in (result.peak_gib, result.static_gib)]
        out[name] = [*numbers, result.peak_stage, result.fits]
    return out


def moved(old: dict[str, Prediction], new: dict[str, Prediction]) -> list[str]:
    """Which predictions moved, largest relative change first, in words."""
    changes: list[tuple[float, str]] = []
    for name in sorted(set(old) | set(new)):
        before, after = old.get(name), new.get(name)
        if before == after:
            continue
        size = float("inf")
        text = f"{name}: {before} -> {after}"
        if before and after and len(before) == len(after) > 1 and before[0]:
            size = abs(after[0] / before[0] - 1)
            text += f" ({(after[0] / before[0] - 1) * 100:+.2f} % of the peak)"
        changes.append((size, text))
    return [text for _, text in sorted(changes, key=lambda change: -change[0])]


def recorded() -> dict[str, Prediction]:
    """The golden grid."""
    return dict(json.loads(GOLDEN.read_text(encoding="utf-8")))


def render(found: dict[str, Prediction]) -> str:
    """One line for each case, so that a change reads as a diff."""
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n"


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    found = predictions()
    changes = moved(recorded(), found) if GOLDEN.exists() else ["nothing recorded yet"]
    print("\n".join(changes) or f"{len(found)} predictions, none moved")
    if arguments.write:
        GOLDEN.write_text(render(found), encoding="utf-8")
    return int(bool(changes) and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
