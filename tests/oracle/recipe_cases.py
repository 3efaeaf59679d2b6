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
