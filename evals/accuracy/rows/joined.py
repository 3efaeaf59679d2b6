"""Features that a table of results does not print (recompute, dispatcher, graphs, layout), looked up beside it.

Source: throughput_rows.yaml, where every row says from which recipe its features were taken.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from moe_long_context.yaml_safe import load_file
from rows.common import Entry, Row

KNOWN = Path(__file__).resolve().parents[1] / "throughput_rows.yaml"
FEATURES = ("recompute", "dispatcher", "cuda_graph", "overlap", "optimizer", "activation_offload", "megatron", "moe")
SPLIT = (
    "mtp_num_layers", "pipeline_model_parallel_layout", "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
)  # fmt: skip
SIZES = (
    "num_gpus", "micro_batch_size", "tensor_model_parallel_size", "context_parallel_size",
    "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "expert_model_parallel_size",
)  # fmt: skip
LEFT_OUT_WHEN_ONE = tuple(name for name in SIZES if name.endswith("parallel_size") and "virtual" not in name)


@lru_cache(maxsize=1)
def known_rows() -> dict[str, Entry]:
    """id -> {config, assumed} of the throughput rows."""
    return {row["id"]: row for row in load_file(KNOWN)["rows"]}


def put_known(row: Row) -> bool:
    """Take the whole configuration of the same run, or the features of the nearest; False where neither is known."""
    same = known_rows().get(row.id)
    if same:
        row.config = {**dict.fromkeys(LEFT_OUT_WHEN_ONE, 1), **same["config"]}
        row.assumptions = list(same.get("assumed") or [])
        row.skip = ""
        return True
    near = _nearest(row.config)
    if near is None or "recompute" in row.config:
        return False
    config = near["config"]
    for name in FEATURES:
        if name in config:
            row.config.setdefault(name, config[name])
    _split(row, config)
    row.assume(f"features of the nearest published run, {near['id']}")
    return True


def _split(row: Row, near: Entry) -> None:
    """The layer split belongs to its PP and VPP."""
    pipeline = ("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size")
    if all((row.config.get(n) or 1) == (near.get(n) or 1) for n in pipeline):
        for name in SPLIT:
            if name in near:
                row.config.setdefault(name, near[name])


def _nearest(config: Entry) -> Entry | None:
    """The row of the same model, GPU and precision that shares the most sizes."""
    same = [
        row
        for row in known_rows().values()
        if all(row["config"].get(n) == config.get(n) for n in ("model", "gpu", "precision"))
    ]
    return max(same, key=lambda r: sum((r["config"].get(n) or 1) == (config.get(n) or 1) for n in SIZES), default=None)
