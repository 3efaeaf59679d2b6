"""Papers, Megatron-MoE-ModelZoo, DGX Cloud recipes and public threads."""

from __future__ import annotations

from moe_long_context.units import GIB
from rows.common import (
    LONG_CONTEXT_TOKENS,
    Entry,
    Row,
    need,
    put_common,
    put_model,
    put_outcome,
    put_peak,
)
from rows.joined import put_known

LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")


def _outcome_group(row: Row) -> str:
    if row.measured.get("outcome") == "oom":
        return "oom"
    return "longcontext_runs" if (row.config.get("seq_length") or 0) >= LONG_CONTEXT_TOKENS else "published_runs"


def read_modelzoo(entry: Entry, row: Row) -> None:
    """A best-practice configuration; published as working, memory column left empty."""
    put_common(row, entry)
    model = put_model(row, entry.get("model"))
    put_outcome(row, entry)
    row.group = _outcome_group(row)
    put_known(row)
    row.config.setdefault("seq_length", 4096)
    if model == "deepseek-v3" and "m" not in str(row.config.get("pipeline_model_parallel_layout", "")):
        row.config.setdefault("mtp_num_layers", 0)
    if entry.get("strategy") == "FSDP":
        row.config["fsdp"] = {"enabled": True, "sharding": "optim_grads_params"}
    if entry.get("optimizer_moments"):
        row.config.setdefault("optimizer", {}).update(precision_aware=True, moment_dtype="bf16")
    if (row.config.get("expert_model_parallel_size") or 1) > 1:
        row.config.setdefault("expert_tensor_parallel_size", 1)
    row.config.setdefault("context_parallel_size", 1)
    if not entry.get("measured") and not entry.get("recompute"):
        row.skip = row.skip or "a default script without a figure, recompute not printed"
    need(row, "num_gpus", *LAYOUT)


def read_core_paper(entry: Entry, row: Row) -> None:
    """arXiv 2603.07685: two peaks with a partly unstated setting, and running layouts."""
    put_common(row, entry)
    put_model(row, entry.get("model"))
    measured = entry.get("measured") or {}
    put_outcome(row, entry)
    put_peak(row, measured)
    row.group = _outcome_group(row)
    put_known(row)
    if "peak_gib" in row.measured:
        _offload_pair(entry, row)
    if entry.get("kind"):
        row.skip = row.skip or f"{entry['kind']}: no running configuration"
    need(row, "num_gpus", "seq_length", *LAYOUT)


def _offload_pair(entry: Entry, row: Row) -> None:
    """Table 5: DeepSeek-V3 with and without fine-grained activation offload; hardware and sizes are not printed."""
    row.group = "paper"
    row.config.setdefault("num_gpus", 256)
    row.config.setdefault("seq_length", 4096)
    if "hardware" not in entry:
        row.config["gpu"] = "GB200"
    row.config.setdefault("micro_batch_size", 1)
    row.config.setdefault("mtp_num_layers", 0)
    row.assume("256 GB200, 4096 tokens, micro-batch 1, no MTP: the section's other rows")
    if "on" in str(entry.get("offload")):
        row.skip = "which modules are offloaded is not printed"


def read_folding_paper(entry: Entry, row: Row) -> None:
    """arXiv 2504.14960: out-of-memory flags, and runs with a printed layout."""
    put_common(row, entry)
    put_model(row, entry.get("model"))
    put_outcome(row, entry)
    row.group = _outcome_group(row)
    row.config.setdefault("context_parallel_size", 1)
    row.config.setdefault("micro_batch_size", 1)
    row.assume("micro-batch 1")
    strategy = str(entry.get("strategy") or "")
    if "pp" not in entry and strategy in ("tp_ep_dp", "fsdp", "fsdp_ep"):
        row.config["pipeline_model_parallel_size"] = 1
    if strategy in ("mcore", "tp_ep_dp") and "etp" not in entry:
        row.config["expert_tensor_parallel_size"] = entry.get("tp", 1)
    if strategy.startswith("fsdp"):
        row.config["fsdp"] = {"enabled": True, "sharding": "optim_grads_params"}
        row.config.setdefault("expert_model_parallel_size", 1)
    if "drop" in str(entry.get("routing")):
        row.config["moe"] = {"capacity_factor": 1.0, "pad_to_capacity": True}
    put_known(row)
    if not (entry.get("measured") or entry.get("outcome")):
        row.skip = row.skip or "no measurement"
    need(row, "num_gpus", "seq_length", *LAYOUT)


def read_dgxc(entry: Entry, row: Row) -> None:
    """DGX Cloud recipes: only rows with a measured step time ran for sure."""
    put_common(row, entry)
    put_model(row, entry.get("model"))
    put_outcome(row, entry)
    row.group = _outcome_group(row)
    put_known(row)
    if not entry.get("measured"):
        row.skip = row.skip or "a layout without any measurement"
    need(row, "num_gpus", "seq_length", *LAYOUT)


PR_6429: Entry = {
    "num_layers": 14, "frontend": "megatron_lm", "expert_tensor_parallel_size": 1, "context_parallel_size": 1,
    "optimizer": {"distributed": True},
}  # fmt: skip
PR_3880: Entry = {
    "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
    "expert_model_parallel_size": 16, "expert_tensor_parallel_size": 1, "global_batch_size": 1024,
    "seq_length": 4096, "optimizer": {"grad_dtype": "bf16"},
}  # fmt: skip


def read_thread(entry: Entry, row: Row) -> None:
    """A measured point of a public issue or pull request."""
    put_common(row, entry)
    put_model(row, entry.get("model"))
    measured = entry.get("measured") or {}
    put_outcome(row, entry)
    put_peak(row, measured)
    row.group = "threads" if "peak_gib" in row.measured else _outcome_group(row)
    if measured.get("peak_reserved_mb"):
        row.measured["reserved_gib"] = round(measured["peak_reserved_mb"] * 2**20 / GIB, 4)
    if entry.get("num_layers_truncated"):
        _truncated(entry, row)
    if "pull 3868" in str(entry.get("related")):
        row.config = {**PR_3880, **row.config}
        row.assume("layout of pull 3868 and the recipe's optimizer, 4096 tokens")
    if entry.get("out_of_scope_for_scoring"):
        row.skip = "another engine than Megatron"
    need(row, "num_gpus", "seq_length", *LAYOUT)


def _truncated(entry: Entry, row: Row) -> None:
    layers = entry["num_layers_truncated"]
    row.config |= {**PR_6429, "num_layers": layers}
    if row.config.get("model") == "deepseek-v3":
        dense = 1
        row.config["moe_layer_freq"] = f"([0]*{dense}+[1]*{layers - dense})"
        row.assume("one dense layer first; fp32 gradients; distributed optimizer")
