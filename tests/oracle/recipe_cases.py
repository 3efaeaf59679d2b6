"""The configurations that the recipe part emits: published layouts, and layouts generated over models and lengths."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.loader import model_entry, model_ids
from moe_long_context.config.reading import read_file
from moe_long_context.config.resolve import resolve
from moe_long_context.errors import InvalidLayoutError

LENGTHS = {"32k": 8, "128k": 32, "1M": 64}
GPUS = {
    "H100": ("bf16", "fp8_blockwise", "fp8_tensorwise"),
    "GB200": ("bf16", "mxfp8", "nvfp4"),
    "B200": ("mxfp8", "bf16"),
}
RECOMPUTE: tuple[Any, ...] = (
    {"granularity": "full", "method": "uniform", "num_layers": 1},
    ["moe_act", "layernorm"],
    ["core_attn"],
    None,
    {"granularity": "full", "method": "block", "num_layers": 2},
    ["moe", "layernorm"],
)
OPTIMIZERS: tuple[dict[str, Any], ...] = (
    {},
    {"cpu_offload_fraction": 1.0, "precision_aware": True},
    {"precision_aware": True, "grad_dtype": "bf16", "moment_dtype": "bf16"},
)
PEFT: tuple[dict[str, Any], ...] = ({}, {}, {}, {"type": "lora", "rank": 16})


def published() -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, configuration) of each distinct published layout of a catalog model."""
    rows = json.loads((Path(__file__).parent / "published_layouts.json").read_text(encoding="utf-8"))
    for row in rows:
        name = row.pop("id")
        config = {**row, **_fitting(row["model"], row["gpu"])}
        config["sp"] = row.get("tp", 1) > 1
        yield name, with_layout(config)


def shipped() -> Iterator[tuple[str, dict[str, Any]]]:
    """(file name, configuration) of the ready run configurations of the skill."""
    for path in sorted((Path(__file__).parents[2] / "skill" / "configs").glob("*.yaml")):
        yield path.stem, read_file(path).written()


BASE = {
    "model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 64, "seq_length": "32k", "tp": 2, "cp": 4, "pp": 2, "ep": 8,
    "etp": 1, "sp": True, "gbs": 64, "dispatcher": "alltoall",
}  # fmt: skip
DSV3 = {
    "model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_length": "32k", "cp": 4, "pp": 8, "ep": 32,
    "gbs": 256, "dispatcher": "alltoall", "layout": "Ettttttt|(tttttttt|)*6ttttttmL",
}  # fmt: skip
SMALL_STATES = {"precision_aware": True, "grad_dtype": "bf16", "moment_dtype": "bf16", "master_dtype": "fp16"}
OPTIONS: dict[str, dict[str, Any]] = {
    "fsdp": {"pp": 1, "fsdp": {"enabled": True, "sharding": "optim_grads_params"}},
    "te-graphs": {"cuda_graph": {"impl": "transformer_engine", "modules": ["attn", "moe_router", "moe_preprocess"]}},
    "full-iteration-graph": {"pp": 1, "cuda_graph": {"impl": "full_iteration"}},
    "older-graph-scope": {"pp": 1, "cuda_graph_scope": ["full_iteration"], "cuda_graph_impl": "local"},
    "ep-overlap": {"vpp": 2, "overlap": {"ep_a2a": True, "delay_wgrad": True}},
    "tp-overlap": {"overlap": {"tp_comm": True}},
    "p2p-overlap": {"vpp": 4, "overlap": {"p2p": True}},
    "no-overlap": {"overlap": {"grad_reduce": False, "param_gather": False}},
    "activation-offload": {"activation_offload": {"modules": ["core_attn", "attn_proj"]}},
    "capacity": {"moe": {"capacity_factor": 1.25, "pad_to_capacity": True}},
    "hierarchical-cp": {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": [2, 2]},
    "a2a-cp": {"tp": 1, "sp": False, "cp_comm_type": "a2a"},
    "per-layer-cp": {"cp_comm_type": ["p2p"] * 24 + ["all_gather"] * 24},
    "packed": {"data": {"packed": True}},
    "sgd": {"optimizer": {"type": "sgd"}},
    "plain-optimizer": {"optimizer": {"distributed": False}},
    "bf16-states": {"optimizer": SMALL_STATES},
    "half-offload": {"optimizer": {"cpu_offload_fraction": 0.5, "precision_aware": True}},
    "flash": {"attention_backend": "flash"},
    "unfused": {"attention_backend": "unfused"},
    "eager-loss": {"loss": "eager"},
    "padded-vocab": {"vocab": {"should_pad": True, "divisible_by": 128}},
    "cut-model": {"num_layers": 8},
    "uneven-stages": {"num_layers_in_first_pipeline_stage": 23, "num_layers_in_last_pipeline_stage": 25},
    "listed-layout": {"layout": [["embedding", *["decoder"] * 24], [*["decoder"] * 24, "loss"]]},
    "dora": {"peft": {"type": "dora", "rank": 8, "target_modules": ["linear_qkv", "linear_proj"]}},
    "deepep-older": {"dispatcher": None, "megatron": {"model.moe_enable_deepep": True}},
    "padding-older": {"precision": "fp8_blockwise", "megatron": {"model.moe_router_padding_for_fp8": True}},
    "free-fields": {"megatron": {"train.train_iters": 50, "model.moe_permute_fusion": True, "optimizer.lr": 1e-4,
                                 "scheduler.lr_warmup_iters": 5, "ddp.bucket_size": 1000, "rng.seed": 7}},
    "fp8-weights": {"precision": "fp8_tensorwise", "megatron": {"mixed_precision.fp8_param_gather": False}},
}  # fmt: skip


def options() -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, configuration) with each option in turn."""
    for name, change in OPTIONS.items():
        yield f"option-{name}", {key: value for key, value in {**BASE, **change}.items() if value is not None}
    yield "option-no-mtp", {**DSV3, "mtp": 0, "layout": "Ettttttt|(tttttttt|)*6ttttttL"}
    yield "option-mtp-2", {**DSV3, "mtp": 2, "layout": "Ettttttt|(tttttttt|)*6ttttttmmL"}


def generated() -> Iterator[tuple[str, dict[str, Any]]]:
    """(id, configuration) over catalog models, lengths and GPUs, with every option in turn."""
    recompute, optimizer, peft = cycle(RECOMPUTE), cycle(OPTIMIZERS), cycle(PEFT)
    for model in model_ids():
        arch = model_entry(model).architecture
        for length, cp in LENGTHS.items():
            for gpu, precisions in GPUS.items():
                config = _layout(model, arch, gpu, length, cp)
                config["precision"] = precisions[len(model) % len(precisions)]
                choice = next(recompute)
                config["recompute"] = None if isinstance(choice, list) and not arch.is_moe else choice
                config["optimizer"] = next(optimizer)
                if peft_config := next(peft):
                    config["peft"] = peft_config
                yield f"{model}-{length}-{gpu}", with_layout(config)


def _layout(model: str, arch: Architecture, gpu: str, length: str, cp: int) -> dict[str, Any]:
    cp = min(cp, 8) if arch.experimental_attention_variant or arch.hybrid_layer_pattern else cp
    tp = 2 if arch.num_attention_heads % 2 == 0 and not arch.multi_latent_attention else 1
    pp = 1 if arch.hybrid_layer_pattern else 4
    experts = arch.num_moe_experts or 1
    ep = max(e for e in (1, 2, 4, 8, 16, 32) if experts % e == 0)
    gpus = pp * max(tp * cp, ep)
    config = {"model": model, "gpu": gpu, "num_gpus": gpus, "seq_length": length, "tp": tp, "cp": cp, "pp": pp,
              "ep": ep, "etp": 1, "sp": tp > 1, "gbs": 64 * gpus // (tp * cp * pp)}  # fmt: skip
    return {**config, **_fitting(model, gpu)}


def _fitting(model: str, gpu: str) -> dict[str, Any]:
    """What a GPU and a model need whatever the layout is."""
    arch = model_entry(model).architecture
    out: dict[str, Any] = {}
    if arch.is_moe:
        out["dispatcher"] = "hybridep" if gpu.startswith("GB") else "deepep" if gpu == "H100" else "alltoall"
    if arch.experimental_attention_variant == "dsa":
        out["cp_comm_type"] = "all_gather"
    return out


def with_layout(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration, with an explicit layout where layers do not divide over the stages."""
    run = resolve(config)
    try:
        run.partition  # noqa: B018
        return config
    except InvalidLayoutError:
        stages = run.sizes.pp * max(config.get("vpp", 1), 1)
        return {**config, "layout": spread(run.arch.num_layers, stages, run.mtp)}


def spread(layers: int, stages: int, mtp: int) -> str:
    """Layers over stages as evenly as they go, the last stage (MTP and loss) one short."""
    sizes = [layers // stages + (1 if i < layers % stages else 0) for i in range(stages)]
    if stages > 1 and sizes[-1] > 1:
        sizes[-1] -= 1
        sizes[0] += 1
    parts = ["t" * size for size in sizes]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * mtp + "L"
    return "|".join(parts)
