"""The scaled-down twin of every catalog model: the emitted program builds real Megatron layers and trains one step.

The loss of an untrained model over a vocabulary of 512 is close to ln(512) = 6.24, plus MTP's share in the backward.
"""

from __future__ import annotations

import contextlib
import io
import types
from typing import Any

import _env

_env.prepare(bridge=True)

import _hub  # noqa: E402

_hub.install()

import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402

from moe_long_context.catalog.loader import model_ids  # noqa: E402
from moe_long_context.config.resolve import resolve  # noqa: E402
from moe_long_context.config.run_config import RunConfig  # noqa: E402
from moe_long_context.recipes.writers import smoke  # noqa: E402

GOLDEN = "smoke_core-0.19.2.json"
DECIMALS = 1
RECOMPUTE = {"granularity": "full", "method": "uniform", "num_layers": 1}


def step(model: str) -> str:
    """What the emitted twin of a model does: its loss to one decimal, or why it stopped."""
    config = {"model": model, "gpu": "H100", "num_gpus": 1, "seq_length": 131072, "recompute": RECOMPUTE}
    (text,) = smoke(resolve(RunConfig.read(config))).files.values()
    module = types.ModuleType("smoke")
    exec(compile(text, "smoke.py", "exec"), module.__dict__)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return f"one step, loss {module.train_one_step():.{DECIMALS}f}"
    except (Exception, SystemExit) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:160]
    finally:
        parallel_state.destroy_model_parallel()
        if dist.is_initialized():
            dist.destroy_process_group()


def record() -> dict[str, Any]:
    """Model id -> outcome of one step of its twin on the CPU."""
    return {"steps": {model: step(model) for model in model_ids()}}
