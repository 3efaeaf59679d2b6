"""The grid whose predictions are kept in tests/golden/speed_grid.json: `python tests/speed/grid.py --write`.

Guards against unseen change, not against error: whether predictions are right is evals/accuracy's question.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from moe_long_context.tools import estimate_throughput  # noqa: E402

GOLDEN = ROOT / "tests" / "golden" / "speed_grid.json"
DIGITS = 4
MODELS: dict[str, dict[str, Any]] = {
    "deepseek-v3": {"pp": 8, "ep": 32},
    "qwen3-235b-a22b": {"pp": 4, "ep": 32},
    "qwen3-30b-a3b": {"ep": 8},
    "qwen3-next-80b-a3b": {"pp": 2, "ep": 32},
    "gpt-oss-120b": {"ep": 32},
    "nemotron-3-nano-30b-a3b": {"ep": 8},
    "mixtral-8x22b": {"pp": 4, "tp": 2, "sp": True, "ep": 8},
}
GPUS = ("H100", "B200", "GB200", "GB300")
LENGTHS = ((4096, 1), (32768, 4), (131072, 8))
PRECISIONS = ("bf16", "mxfp8")


def configs() -> dict[str, dict[str, Any]]:
    """Case name -> configuration."""
    out = {}
    for model, sizes in MODELS.items():
        for gpu in GPUS:
            for length, cp in LENGTHS:
                for precision in PRECISIONS[: 1 if gpu == "H100" else 2]:
                    out[f"{model}/{gpu}/{length}/{precision}"] = {
                        "model": model, "gpu": gpu, "num_gpus": 256, "seq_length": length, "cp": cp,
                        "precision": precision, "gbs": 1024, **sizes,
                    }  # fmt: skip
    return out


def predictions() -> dict[str, list[float]]:
    """Case name -> [TFLOP/s per GPU, low, high, step seconds], rounded to four significant digits."""
    out = {}
    for name, config in configs().items():
        result = estimate_throughput(config).raise_for_error().result
        assert result is not None
        numbers = (result.model_tflops_per_gpu, *result.interval_tflops, result.step_time_s)
        out[name] = [float(f"{x:.{DIGITS}g}") for x in numbers]
    return out


def render(found: dict[str, list[float]]) -> str:
    """One line for each case."""
    return "{\n" + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in found.items()) + "\n}\n"


if __name__ == "__main__":
    if "--write" in sys.argv:
        GOLDEN.write_text(render(predictions()), encoding="utf-8")
    else:
        print(render(predictions()), end="")
