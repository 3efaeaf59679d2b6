"""Runs whose parameters are compared with real models: every catalog model whole, and many layouts of cut models."""

from __future__ import annotations

from typing import Any

from moe_long_context.catalog.loader import model_entry, model_ids
from moe_long_context.config.resolve import resolve

Written = dict[str, Any]

CASES: dict[str, Written] = {}

V3_FULL = {
    "256 GPUs, 128K": {"cp": 32, "pp": 8, "ep": 32, "pipeline_model_parallel_layout": "Et|(tt|)*30mL"},
    "256 GPUs, MTP apart from the loss": {
        "cp": 32,
        "pp": 8,
        "ep": 32,
        "pipeline_model_parallel_layout": "Et*3|(tt|)*29m|L",
    },
    "512 GPUs, 256K": {
        "cp": 64,
        "pp": 8,
        "ep": 32,
        "pipeline_model_parallel_layout": "Ettttttt|(tttttttt|)*6ttttttmL",
    },
    "1024 GPUs": {
        "tp": 2,
        "pp": 16,
        "ep": 64,
        "num_gpus": 1024,
        "pipeline_model_parallel_layout": "Etttt|(tttt|)*14tmL",
    },
}
CUTS = {
    "deepseek-v3": 8,
    "moonlight-16b-a3b": 8,
    "glm-4.7-flash": 8,
    "qwen3-30b-a3b": 8,
    "qwen3-next-80b-a3b": 8,
    "qwen3.5-35b-a3b": 8,
    "gpt-oss-20b": 8,
    "mixtral-8x7b": 8,
    "glm-4.5": 8,
    "qwen2-57b-a14b": 8,
    "llama4-maverick": 8,
    "minimax-m2": 8,
    "olmoe-1b-7b": 8,
    "llama3-70b": 8,
}
SPLITS: dict[str, Written] = {
    "tp2 ep2": {"tp": 2, "ep": 2, "etp": 1},
    "tp2 etp2 ep2": {"tp": 2, "ep": 2, "etp": 2},
    "tp4 pp2 ep4": {"tp": 4, "pp": 2, "ep": 4, "etp": 1},
    "cp2 pp2 vpp2 ep4": {"cp": 2, "pp": 2, "vpp": 2, "ep": 4},
    "pp4 ep2 uneven": {
        "pp": 4,
        "ep": 2,
        "num_layers_in_first_pipeline_stage": 1,
        "num_layers_in_last_pipeline_stage": 3,
    },
}
MIXED: dict[str, tuple[str, Written]] = {
    "kv groups below TP": ("qwen3-30b-a3b", {"tp": 8, "ep": 8, "etp": 1}),
    "kv groups below TP, gated attention": ("qwen3-next-80b-a3b", {"tp": 4, "ep": 4, "etp": 1}),
    "kv groups below TP, biases and sinks": ("gpt-oss-20b", {"tp": 16, "ep": 2, "etp": 1}),
    "kv groups below TP, norms over heads": ("minimax-m2", {"tp": 16, "ep": 16, "etp": 1}),
    "tied": ("qwen3-30b-a3b", {"ep": 8, "share_embeddings_and_output_weights": True}),
    "tied pp2": ("qwen3-30b-a3b", {"pp": 2, "ep": 8, "share_embeddings_and_output_weights": True}),
    "tied tp2 pp2 vpp2": (
        "llama3-70b",
        {"tp": 2, "pp": 2, "vpp": 2, "share_embeddings_and_output_weights": True},
    ),
    "tied mtp pp1": ("glm-4.5", {"ep": 16, "share_embeddings_and_output_weights": True}),
    "tied mtp pp2": ("glm-4.5", {"pp": 2, "ep": 16, "share_embeddings_and_output_weights": True}),
    "vocabulary padded": ("mixtral-8x7b", {"tp": 4, "ep": 2, "etp": 1, "vocab": {"should_pad": True}}),
    "vocabulary padded to 1280 tp8": (
        "deepseek-v3",
        {"tp": 8, "ep": 8, "etp": 1, "vocab": {"should_pad": True, "divisible_by": 1280}},
    ),
    "embedding counts as a layer": (
        "qwen3-30b-a3b",
        {"num_layers": 7, "pp": 4, "ep": 4, "account_for_embedding_in_pipeline_split": True},
    ),
    "loss counts as a layer": (
        "qwen3-30b-a3b",
        {"num_layers": 7, "pp": 4, "ep": 4, "account_for_loss_in_pipeline_split": True},
    ),
    "both count, vpp2": (
        "qwen3-30b-a3b",
        {
            "num_layers": 14,
            "pp": 4,
            "vpp": 2,
            "ep": 4,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
    ),
    "first stage short": ("glm-4.5", {"pp": 2, "ep": 16, "num_layers_in_first_pipeline_stage": 3}),
    "last stage short": ("glm-4.5", {"pp": 2, "ep": 16, "num_layers_in_last_pipeline_stage": 3}),
    "two mtp layers": ("deepseek-v3", {"pp": 2, "ep": 16, "mtp_num_layers": 2}),
    "no mtp": ("deepseek-v3", {"pp": 2, "ep": 16, "mtp_num_layers": 0}),
    "stage without layers": ("qwen3-30b-a3b", {"pp": 4, "ep": 4, "pipeline_model_parallel_layout": "E|tttt|tttt|L"}),
    "mtp alone": ("deepseek-v3", {"pp": 4, "ep": 16, "pipeline_model_parallel_layout": "Et*4|tttt|m|L"}),
    "mtp with the last layer": ("deepseek-v3", {"pp": 2, "ep": 16, "pipeline_model_parallel_layout": "Et*4|ttt|tm|L"}),
    "etp4 tp1": ("mixtral-8x7b", {"ep": 2, "etp": 4}),
    "etp8 tp8": ("mixtral-8x7b", {"tp": 8, "ep": 1, "etp": 8}),
    "sparse attention pp2": (
        "glm-5.2",
        {"num_layers": 10, "pp": 2, "ep": 16, "num_layers_in_first_pipeline_stage": 6},
    ),
    "sparse attention tp2 vpp2": (
        "glm-5.2",
        {"num_layers": 9, "tp": 2, "pp": 2, "ep": 16, "etp": 1, "pipeline_model_parallel_layout": "Et|t|tttt|tttmL"},
    ),
    "hybrid tp2 ep8": ("nemotron-3-nano-30b-a3b", {"tp": 2, "ep": 8, "etp": 1, "num_layers": 52}),
    "hybrid pp2": ("nemotron-3-nano-30b-a3b", {"pp": 2, "ep": 8, "num_layers": 52}),
    "hybrid pp2 mtp": ("nemotron-3.5-lightning", {"pp": 2, "ep": 16, "num_layers": 52}),
    "hybrid tp4 pp4 latent": ("nemotron-3-super-120b-a12b", {"tp": 4, "pp": 4, "ep": 64, "etp": 1, "num_layers": 88}),
    "hybrid first and last": (
        "nemotron-3-nano-30b-a3b",
        {
            "pp": 3,
            "ep": 8,
            "num_layers": 52,
            "num_layers_in_first_pipeline_stage": 20,
            "num_layers_in_last_pipeline_stage": 12,
        },
    ),
    "94 layers": (
        "qwen3-235b-a22b",
        {
            "num_layers": 94,
            "tp": 4,
            "cp": 4,
            "pp": 4,
            "vpp": 12,
            "ep": 32,
            "etp": 1,
            "account_for_embedding_in_pipeline_split": True,
            "account_for_loss_in_pipeline_split": True,
        },
    ),
}


def _case(name: str, model: str, **fields: Any) -> None:
    written = {"model": model, "gpu": "H100", "seq_length": 4096, "num_gpus": 1, **fields}
    smallest = resolve(written).sizes.min_gpus
    CASES[name] = {**written, "num_gpus": max(smallest, fields.get("num_gpus", 1))}


def _collect() -> None:
    for model in model_ids():
        experts = model_entry(model).architecture.num_moe_experts or 1
        _case(f"{model}: whole, one expert a rank", model, ep=experts)
    for name, fields in V3_FULL.items():
        _case(f"deepseek-v3: {name}", "deepseek-v3", **fields)
    for model, layers in CUTS.items():
        arch = model_entry(model).architecture
        for name, fields in SPLITS.items():
            if arch.add_bias_linear and fields.get("etp", 1) > 1:
                continue
            sizes = fields if arch.is_moe else {k: v for k, v in fields.items() if k not in ("ep", "etp")}
            _case(f"{model}: {layers} layers, {name}", model, num_layers=layers, **sizes)
    for name, (model, fields) in MIXED.items():
        _case(f"{model}: {name}", model, **{"num_layers": CUTS.get(model, 8), **fields})


_collect()
