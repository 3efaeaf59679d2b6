"""ms-swift script headers (rounded, most likely reserved memory), and verl, slime and NeMo-RL layouts."""

from __future__ import annotations

from rows.common import Entry, Row, need, put_common, put_model, put_outcome

LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
LORA_RANK = 8
"""ms-swift's default rank; its examples set target_modules all-linear."""


def read(entry: Entry, row: Row) -> None:
    """One example script."""
    row.group = "swift"
    put_common(row, entry)
    measured = entry.get("measured") or {}
    put_model(row, entry.get("model"))
    put_outcome(row, entry)
    peak = measured.get("peak_mem_gib_per_gpu")
    if peak is None:
        row.skip = "a layout without a memory figure"
        return
    row.unit = "GiB in a script's comment, rounded, most likely reserved; +-5 GiB"
    if "device size" in str(entry.get("flag")):
        row.assume("the figure equals a device size: fits, not a measurement")
    else:
        row.measured["reserved_gib"] = peak
    row.config.setdefault("optimizer", {}).setdefault("distributed", True)
    _task(row, entry)
    if not entry.get("packed"):
        row.skip = row.skip or "sequences of unpacked batches are shorter than the printed limit"
    if row.config.get("model", "").startswith("llama") or entry.get("kind") == "dense":
        row.config.setdefault("expert_model_parallel_size", 1)
    if not entry.get("hardware"):
        row.measured.pop("outcome", None)
    need(row, "num_gpus", "seq_length", *LAYOUT)


def _task(row: Row, entry: Entry) -> None:
    task = str(entry.get("task") or "full")
    if task == "lora":
        row.config["peft"] = {"type": "lora", "rank": LORA_RANK}
        row.assume(f"LoRA rank {LORA_RANK} on all linears, ms-swift's defaults")
    elif task in ("dpo", "rlhf", "kto", "rm"):
        row.skip = row.skip or "the reference model of preference training is not a part of the estimate"
