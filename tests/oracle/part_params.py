"""Parameters of every pipeline stage from real models, for each catalog model and for many layouts.

Each model is built by Megatron Bridge's own provider under a fake process group of the layout's world size; a stage is
counted on its first rank. Cut models (num_layers) keep the full width, so every weight shape is the real one.
"""

from __future__ import annotations

from typing import Any

import _env

_env.prepare(bridge=True)
_env.cpu_as_device()

import _modules  # noqa: E402

_modules.install()

from _layouts import CASES  # noqa: E402
from _models import build_chunks, provider_of  # noqa: E402
from _random_shapes import RANDOM_RUNS, random_runs  # noqa: E402

from moe_long_context.config.resolve import Run, resolve  # noqa: E402

GOLDEN = "params_core-0.19.2.json"
COLUMNS = ["dense", "expert", "embedding", "output", "router", "buffers"]


def record() -> dict[str, Any]:
    """Every case: the run as written, and for each pipeline rank the elements of COLUMNS; the same of random shapes."""
    cases = {name: {"run": written, "stages": _stages(resolve(written))} for name, written in CASES.items()}
    drawn = {name: _stages_or_none(written) for name, written in random_runs(RANDOM_RUNS).items()}
    return {
        "framework": "megatron-core 0.19.2, megatron-bridge 0.6.2",
        "columns": COLUMNS,
        "cases": cases,
        "random": {name: stages for name, stages in drawn.items() if stages is not None},
    }


def _stages_or_none(written: dict[str, Any]) -> list[list[int]] | None:
    """The stages of a random run, or None where the framework refuses to build it."""
    try:
        return _stages(resolve(written))
    except (AssertionError, ValueError):
        return None


def _stages(run: Run) -> list[list[int]]:
    return [_stage(run, rank) for rank in range(run.sizes.pp)]


def _stage(run: Run, rank: int) -> list[int]:
    sizes = run.sizes
    groups = {
        "tensor_model_parallel_size": sizes.tp,
        "pipeline_model_parallel_size": sizes.pp,
        "virtual_pipeline_model_parallel_size": sizes.vpp if sizes.vpp > 1 else None,
        "context_parallel_size": sizes.cp,
        "expert_model_parallel_size": sizes.ep,
        "expert_tensor_parallel_size": sizes.etp,
    }
    total = [0] * len(COLUMNS)
    with _env.fake_ranks(sizes.num_gpus, rank * (sizes.num_gpus // sizes.pp), **groups):
        for model in build_chunks(provider_of(run)):
            total = [a + b for a, b in zip(total, _count(model), strict=True)]
    return total


def _count(model: Any) -> list[int]:
    count = dict.fromkeys(COLUMNS, 0)
    for name, parameter in model.named_parameters():
        elements = parameter.numel()
        count["expert" if ".mlp.experts." in name else "dense"] += elements
        if name.startswith("embedding."):
            count["embedding"] += elements
        elif name.startswith("output_layer."):
            count["output"] += elements
        elif ".router." in name:
            count["router"] += elements
    router_buffers = (b for n, b in model.named_buffers() if n.endswith(("expert_bias", "local_tokens_per_expert")))
    count["buffers"] = sum(buffer.numel() for buffer in router_buffers)
    return [count[column] for column in COLUMNS]
