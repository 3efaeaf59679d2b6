"""SimuMax's 8 x B200 runs of Megatron-LM: the peak of every rank, no recompute (MooreThreads/SimuMax release 1.2)."""

from __future__ import annotations

from rows.common import Entry, Row, put_common, put_outcome, put_peak

MODELS = {
    "llama3-70b": ("llama3-70b", {}),
    "llama3-405b": ("llama3-405b", {"num_query_groups": 16}),
    "deepseekv2": ("deepseek-v2", {}),
    "deepseekv3": ("deepseek-v3", {}),
}
"""llama3-405b has 16 KV groups there (configs/models/llama3-405b_padding_128.json), 8 as released."""
SETTINGS: Entry = {
    "frontend": "megatron_lm", "precision": "bf16", "optimizer": {"distributed": True}, "loss": "fused",
    "megatron": {"model.cross_entropy_fusion_impl": "te"}, "versions": {"transformer_engine": "2.11.0"},
    "mtp_num_layers": 0,
}  # fmt: skip


def read(entry: Entry, row: Row) -> None:
    """One topology; rows whose memory the source copied from another are skipped."""
    row.group = "simumax_b200"
    if entry.get("memory_copied_from_case"):
        row.skip = f"memory copied by the source from {entry['memory_copied_from_case']}"
    known = MODELS.get(str(entry.get("model")))
    if known is None:
        row.skip = f"unknown truncated model {entry.get('model')}"
        return
    put_common(row, entry)
    config = row.config
    config.update({**SETTINGS, "model": known[0], **known[1]})
    config.setdefault("dispatcher", "alltoall")
    if entry.get("cp", 1) > 1:
        config["cp_comm_type"] = "a2a"
    layers = entry.get("num_layers_truncated") or entry.get("num_layers")
    if layers:
        config["num_layers"] = layers
        if known[0].startswith("deepseek"):
            config["moe_layer_freq"] = f"([0]*1+[1]*{layers - 1})"
            config["moe"] = {"capacity_factor": 1.0, "pad_to_capacity": True}
    if entry.get("ep", 1) > 1 or known[0].startswith("deepseek"):
        config.setdefault("expert_tensor_parallel_size", 1)
    put_peak(row, entry["measured"])
    put_outcome(row, entry)
