"""Whatever can be timed gives finite, ordered numbers; whatever cannot is refused as data."""

from __future__ import annotations

import math
import random
from typing import Any

from moe_long_context.catalog.loader import gpu_ids, model_ids
from moe_long_context.tools import estimate_throughput

DRAWS, SEED = 600, 20
RECOMPUTE: tuple[Any, ...] = (
    None, "full", ["moe"], ["core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "shared_experts"],
    {"granularity": "full", "method": "block", "num_layers": 1},
)  # fmt: skip


def _draw(rng: random.Random) -> dict[str, Any]:
    """A configuration of edge values; most meshes fit."""
    tp, cp, pp = rng.choice((1, 1, 2, 8)), rng.choice((1, 2, 8, 32)), rng.choice((1, 1, 2, 4))
    config: dict[str, Any] = {
        "model": rng.choice(model_ids()), "gpu": rng.choice(gpu_ids()), "num_gpus": tp * cp * pp * 16,
        "seq_length": rng.choice((1, 7, 4096, 131072, 1 << 20)), "tp": tp, "cp": cp, "pp": pp,
        "ep": rng.choice((1, 2, 8, 16)), "etp": 1, "gbs": rng.choice((1, 16, 1024)), "mbs": rng.choice((1, 1, 4)),
        "precision": rng.choice(("bf16", "fp8_tensorwise", "fp8_blockwise", "mxfp8", "nvfp4")),
        "recompute": rng.choice(RECOMPUTE), "vpp": rng.choice((None, None, 2)),
        "dispatcher": rng.choice((None, "allgather", "alltoall", "deepep", "hybridep")),
        "cp_comm_type": rng.choice((None, "p2p", "a2a", "all_gather", "a2a+p2p")),
        "hierarchical_context_parallel_sizes": rng.choice((None, [4, 2])),
        "optimizer": {"cpu_offload_fraction": rng.choice((0.0, 0.5, 1.0))},
        "cuda_graph": {"impl": rng.choice(("none", "transformer_engine", "full_iteration"))},
        "overlap": {"ep_a2a": rng.random() < 0.5, "shared_expert": rng.random() < 0.5},
        "moe": {"capacity_factor": rng.choice((0, 0.5, 2)), "pad_to_capacity": rng.random() < 0.5},
        "fsdp": {"enabled": rng.random() < 0.2}, "peft": {"type": rng.choice(("none", "none", "lora"))},
        "loss": rng.choice((None, "eager", "fused", "linear_fused", "chunked")),
    }  # fmt: skip
    return {key: value for key, value in config.items() if value is not None}


def test_any_run_is_timed_or_refused() -> None:
    """Seeded draws: step time, TFLOP/s and interval finite, positive and in order, stages never negative."""
    rng, timed = random.Random(SEED), 0
    for _ in range(DRAWS):
        config = _draw(rng)
        answer = estimate_throughput(config)
        if answer.result is None:
            assert answer.error is not None
            continue
        timed += 1
        result = answer.result
        low, high = result.interval_tflops
        assert 0 < low <= result.model_tflops_per_gpu <= high < math.inf, config
        assert 0 < result.step_time_s < math.inf, config
        assert all(stage.forward_s >= 0 and stage.backward_s >= 0 for stage in result.stages), config
    assert timed > DRAWS // 4
