"""NVIDIA Megatron Bridge: measured numbers in its skills, its verification cards and its performance tables."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from moe_long_context.units import GIB
from moe_long_context.yaml_safe import load_file
from rows.common import (
    GB,
    LONG_CONTEXT_TOKENS,
    Entry,
    Row,
    model_id,
    need,
    put_common,
    put_dispatcher,
    put_graphs,
    put_model,
    put_outcome,
    put_peak,
    put_recompute,
)
from rows.joined import put_known

LAYOUT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
BF16_GRADIENTS: Entry = {"grad_dtype": "bf16"}
TE_LOSS: Entry = {"loss": "fused", "megatron": {"model.cross_entropy_fusion_impl": "te"}}
"""Of the performance recipes: perf_recipes/_common.py, _benchmark_common(cross_entropy_impl="te")."""
OPTIMIZERS = Path(__file__).resolve().parents[1] / "recipe_optimizers.yaml"
STUDIES: dict[str, tuple[str, str, Entry]] = {
    "skill_rc_moonlight_": (
        "moonlight_recompute",
        "skill_rc_moonlight_none",
        {
            "optimizer": {"precision_aware": True, "grad_dtype": "bf16", "moment_dtype": "bf16"},
            "dispatcher": "alltoall", "expert_tensor_parallel_size": 1, "sequence_parallel": True, "loss": "fused",
            "overlap": {"shared_expert": True}, "megatron": {"model.cross_entropy_fusion_impl": "te"},
        },
    ),
    "skill_rc_nemotron3nano_": (
        "nemotron_recompute",
        "skill_rc_nemotron3nano_none",
        {"optimizer": BF16_GRADIENTS, "expert_tensor_parallel_size": 1, **TE_LOSS},
    ),
    "skill_off_qwen3_30b_opt": (
        "offload_curve",
        "skill_off_qwen3_30b_opt0",
        {
            "seq_length": 4096, "micro_batch_size": 1, "global_batch_size": 32, "expert_tensor_parallel_size": 1,
            "sequence_parallel": True, "dispatcher": "alltoall", "context_parallel_size": 1,
            "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1},
            "optimizer": {"precision_aware": False, "grad_dtype": "fp32"},
        },
    ),
}  # fmt: skip
"""id prefix -> group, control row, and settings of the recipe that the study names (moonlight_16b_pretrain_8gpu_h100,
nemotron_3_nano_pretrain_16gpu_h100, qwen3_30b_a3b_pretrain at 067f987)."""


def read_skill(entry: Entry, row: Row) -> None:
    """One measured point of a skill."""
    put_common(row, entry)
    put_model(row, entry.get("model"))
    measured = entry.get("measured") or {}
    put_outcome(row, entry)
    put_peak(row, measured)
    row.group = _group(row)
    if not _study(row, measured):
        put_known(row)
    _dense(row)
    if "peak_gib" in row.measured and "optimizer" not in row.config:
        row.config["optimizer"] = dict(BF16_GRADIENTS)
        put_te_loss(row)
        row.assume("bf16 gradient reduction, as the Bridge performance recipes set it")
    _transformer_engine(row, entry)
    if row.id.startswith("skill_lc_dsv3_h100"):
        _long_context_offload(row)
    if "LoRA" in str(entry.get("model")):
        row.skip = row.skip or "LoRA rank and target modules are not published"
    if entry.get("same_as"):
        row.skip = "the same figures as the paper's"
    need(row, "num_gpus", "seq_length", *LAYOUT)


@lru_cache(maxsize=1)
def recipe_optimizers() -> dict[str, Entry]:
    """Recipe id -> optimizer fields."""
    return dict(load_file(OPTIMIZERS))


def put_te_loss(row: Row) -> None:
    """The loss of the performance recipes, unless the row names its own."""
    if "loss" not in row.config:
        row.config["loss"] = "fused"
        row.config["megatron"] = {**TE_LOSS["megatron"], **row.config.get("megatron", {})}
        row.assume("Transformer Engine's cross entropy, as the Bridge performance recipes set it")


TE_OF_AUGUST = ("2026-07-21", "2.18.0")
"""Transformer Engine e7c550c5 (2.18.0) in the lock file of Megatron-Bridge @067f987, and the day of that commit."""


def _transformer_engine(row: Row, entry: Entry) -> None:
    """The library's version decides what its cross entropy holds."""
    since, version = TE_OF_AUGUST
    if str(entry.get("validated") or entry.get("last_verified") or "") >= since:
        row.config["versions"] = {"transformer_engine": version}
        row.assume(f"Transformer Engine {version}, as locked in August 2026")


def _long_context_offload(row: Row) -> None:
    """ModelZoo's script of the same table offloads the optimizer at every length, 4K included."""
    if "optimizer" not in row.config:
        row.config["optimizer"] = {"cpu_offload_fraction": 1.0, "precision_aware": True}
        row.assume("optimizer offloaded, as in ModelZoo's script of the same table")


def _group(row: Row) -> str:
    if row.measured.get("outcome") == "oom":
        return "oom"
    if (row.config.get("seq_length") or 0) >= LONG_CONTEXT_TOKENS:
        return "longcontext_runs"
    return "cards" if "peak_gib" in row.measured else "published_runs"


def _study(row: Row, measured: Entry) -> bool:
    """Whether the row belongs to a study whose recipe is known; takes what the recipe sets."""
    found = next((study for prefix, study in STUDIES.items() if row.id.startswith(prefix)), None)
    if found:
        group, control, settings = found
        row.group, row.control = group, control if row.id != control else ""
        offload = row.config.get("optimizer", {})
        row.config = {**settings, **row.config}
        row.config["optimizer"] = {**offload, **settings.get("optimizer", {})}
        row.assume("settings of the named recipe: " + ", ".join(sorted(settings)))
    if measured.get("alloc_mem_gb"):
        row.measured["static_gib"] = round(measured["alloc_mem_gb"] * GB / GIB, 4)
        row.unit = "GB of 1e9 bytes, one decimal; allocated, not the peak"
    if measured.get("mem_gb_after_iter1"):
        row.measured["first_step_peak_gib"] = round(measured["mem_gb_after_iter1"] * GB / GIB, 4)
        row.unit = "GB of 1e9 bytes, rank 0, after iteration 1 of a run that died in iteration 2"
    return found is not None


def _dense(row: Row) -> None:
    if row.id.startswith("skill_mem_llama3_70b"):
        row.group = "oom_by_fragmentation" if row.measured.get("outcome") == "oom" else "cards"
        row.config.setdefault("expert_model_parallel_size", 1)
        row.config["optimizer"] = dict(BF16_GRADIENTS)
        row.assume("bf16 gradients, FP8 parameters gathered: Bridge's llama3_70b SFT performance recipe")
        if row.group == "oom_by_fragmentation":
            row.measured["outcome"] = "fits"
            row.assume("died of fragmentation at a peak that fits; the same run passed with expandable segments")


def read_card(entry: Entry, row: Row) -> None:
    """One verification card: what it prints, then the recipe's defaults, then the card's overrides."""
    joined = entry.get("joined_from_recipe") or {}
    merged = {**{k: v for k, v in joined.items() if k not in ("recipe_id", "note")}, **entry}
    put_common(row, merged)
    put_model(row, entry.get("model"))
    if joined:
        row.assume(f"recipe defaults where the card is silent ({joined.get('recipe_id', 'recipe')})")
    put_dispatcher(row.config, joined.get("dispatcher"))
    _features(row, entry)
    _card_options(row, entry, joined)
    _overrides(row, entry)
    measured = entry.get("measured") or {}
    put_outcome(row, entry)
    put_peak(row, measured)
    row.rank = "first"
    row.group = "cards" if "peak_gib" in row.measured else _group(row)
    if measured.get("peak_reserved_gib"):
        row.measured["reserved_gib"] = measured["peak_reserved_gib"]
    if not row.measured.get("peak_gib"):
        put_known(row)
    if "peft" in str(entry.get("task")) or "lora" in str(entry.get("task")):
        row.config["peft"] = {"type": "lora"}
    _transformer_engine(row, entry)
    if entry.get("status") == "unverified":
        row.measured.pop("outcome", None)
    need(row, "num_gpus", "seq_length", *LAYOUT)


def _features(row: Row, entry: Entry) -> None:
    features = entry.get("enabled_features") or {}
    put_dispatcher(row.config, features.get("moe_dispatcher"))
    put_dispatcher(row.config, entry.get("dispatcher"))
    put_graphs(row.config, features.get("cuda_graph"))
    if features.get("megatron_fsdp"):
        row.config["fsdp"] = {"enabled": True, "sharding": features["megatron_fsdp"]}
    if features.get("sequence_packing"):
        row.config["data"] = {"packed": True}
    if features.get("context_parallel_size"):
        row.config["context_parallel_size"] = features["context_parallel_size"]


def _card_options(row: Row, entry: Entry, joined: Entry) -> None:
    dispatcher = joined.get("dispatcher") or {}
    if dispatcher.get("moe_expert_capacity_factor"):
        padded = bool(dispatcher.get("moe_pad_expert_input_to_capacity"))
        row.config["moe"] = {
            "capacity_factor": dispatcher["moe_expert_capacity_factor"],
            "pad_to_capacity": padded,
        }
    modules = (joined.get("offload") or {}).get("offload_modules")
    if modules:
        row.config["activation_offload"] = {"modules": modules}
    recipe = str(joined.get("recipe_id"))
    known = recipe_optimizers().get(recipe)
    if known is None and "pretrain" in str(entry.get("task")):
        known = BF16_GRADIENTS
        row.assume("bf16 gradient reduction, as the Bridge pretraining recipes set it")
    if known:
        row.config["optimizer"] = {**known, **row.config.get("optimizer", {})}
    if "perf" in recipe or "performance" in str(entry.get("task")):
        put_te_loss(row)
    recompute = row.config.get("recompute") or {}
    if isinstance(recompute.get("modules"), list) and not recompute["modules"]:
        row.config.pop("recompute")
    graph = row.config.get("cuda_graph") or {}
    if graph.get("impl") == "transformer_engine" and not graph.get("modules") and "nemotron" in str(entry.get("model")):
        graph["modules"] = ["mamba"]
        row.assume("CUDA graphs of the Mamba layers")


def _overrides(row: Row, entry: Entry) -> None:
    given: dict[str, Any] = entry.get("command_overrides") or {}
    if comm := given.get("model.cp_comm_type"):
        row.config["cp_comm_type"] = comm
    granularity = given.get("model.recompute_granularity")
    if granularity in ("full", "selective"):
        listed = str(given.get("model.recompute_modules") or "").strip("[]")
        modules = [m for m in listed.split(",") if m and m != "null"]
        put_recompute(row.config, {"granularity": granularity, **({"modules": modules} if modules else {})})
    if str(given.get("model.cross_entropy_loss_fusion", "")).lower() == "false":
        row.config["loss"] = "eager"
    if str(given.get("optimizer.optimizer_cpu_offload", "")).lower() == "true":
        fraction = float(given.get("optimizer.optimizer_offload_fraction") or 1.0)
        row.config.setdefault("optimizer", {}).update(cpu_offload_fraction=fraction, precision_aware=True)
    put_dispatcher(row.config, given.get("model.moe_flex_dispatcher_backend"))
    if "null" in str(given.get("model.virtual_pipeline_model_parallel_size")):
        row.config.pop("virtual_pipeline_model_parallel_size", None)


def read_table(entry: Entry, row: Row) -> None:
    """One row of the performance tables: the layout ran on that GPU."""
    put_common(row, entry)
    put_model(row, entry.get("model"))
    put_outcome(row, entry)
    row.group = _group(row)
    row.config.setdefault("optimizer", {"grad_dtype": "bf16"})
    row.assume("bf16 gradient reduction, as the Bridge performance recipes set it")
    if entry.get("fsdp"):
        row.config["fsdp"] = {"enabled": True}
    if entry.get("routing") == "tokendrop":
        row.config["moe"] = {"capacity_factor": 1.0, "pad_to_capacity": True}
    if model_id(entry.get("model")) == "deepseek-v3" and "w/o MTP" in str(entry.get("model_qualifier")):
        row.config["mtp_num_layers"] = 0
    if str(entry.get("optimizer", "")).lower() == "muon":
        row.config["optimizer"] = {"type": "muon", "grad_dtype": "bf16"}
    put_known(row)
    put_te_loss(row)
    need(row, "num_gpus", "seq_length", *LAYOUT)
