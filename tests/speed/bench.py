"""Milliseconds of one evaluation: `python tests/speed/bench.py`. Layouts share layers; a second pass shares all."""

from __future__ import annotations

import sys
import time
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.speed import step_time


def layouts() -> list[Run]:
    """128 layouts of DeepSeek-V3 on 1,024 GPUs."""
    return [
        resolve({
            "model": "deepseek-v3", "gpu": "H100", "num_gpus": 1024, "seq_length": 32768, "gbs": 4096, "pp": 8,
            "pipeline_model_parallel_layout": "Et|(tt|)*30mL", "tp": tp, "sp": tp > 1, "ep": ep, "cp": cp, "mbs": mbs,
            "etp": 1, "dispatcher": "deepep",
        })
        for tp, ep, cp, mbs in product((1, 2, 4, 8), (8, 16, 32, 64), (1, 2, 4, 8), (1, 2))
    ]  # fmt: skip


if __name__ == "__main__":
    runs = layouts()
    for name in ("cold", "warm"):
        start = time.perf_counter()
        for run in runs:
            step_time(run)
        print(f"{name}: {(time.perf_counter() - start) / len(runs) * 1e3:.3f} ms per layout")
