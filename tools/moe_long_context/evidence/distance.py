"""How far a published run is from a wanted one, in units of one doubling of the sequence length.

Only what both sides state is compared; a fact that the publication leaves out costs a little, one that the wanted
run leaves open costs nothing. The weights are judgements of comparability, ordered by how much each fact moves
memory and speed: model > length > GPU generation > recompute, offload, precision > one doubling of a parallel size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.loader import gpu as gpu_named
from moe_long_context.catalog.loader import model_entry
from moe_long_context.errors import MoeError
from moe_long_context.evidence.store import PublishedRun
from moe_long_context.units import length_text

OTHER_MODEL = 2.0
OTHER_FAMILY = 1.5
OTHER_ATTENTION = 1.5
UNKNOWN_MODEL = 9.0
UNKNOWN_FACT = 0.4
UNKNOWN_LENGTH = 3.0
SAME_GENERATION_GPU = 0.5
OTHER_GENERATION_GPU = 2.0
OTHER_PRECISION = 1.0
OTHER_FP8_RECIPE = 0.4
OTHER_GRANULARITY = 1.0
OTHER_RECOMPUTE_MODULES = 0.8
OFFLOAD = 1.0
OTHER_DISPATCHER = 0.3
OTHER_TRAINING = 3.0
NO_FIGURE = 0.5
OTHER_ENGINE = 2.0

PER_DOUBLING = {
    "seq_length": 1.0,
    "num_gpus": 0.25,
    "micro_batch_size": 0.4,
    "tensor_model_parallel_size": 0.3,
    "context_parallel_size": 0.3,
    "pipeline_model_parallel_size": 0.3,
    "expert_model_parallel_size": 0.3,
    "expert_tensor_parallel_size": 0.3,
    "virtual_pipeline_model_parallel_size": 0.1,
}
SHORT = {
    "num_gpus": "GPUs", "micro_batch_size": "MBS", "tensor_model_parallel_size": "TP", "context_parallel_size": "CP",
    "pipeline_model_parallel_size": "PP", "expert_model_parallel_size": "EP", "expert_tensor_parallel_size": "ETP",
    "virtual_pipeline_model_parallel_size": "VPP",
}  # fmt: skip
_VARIANT = re.compile(r"-(?:sft|instruct|base|thinking|chat|fp8|int4)\b")


class Difference(NamedTuple):
    """One fact that differs: its cost and a short text, wanted first."""

    cost: float
    text: str


class Wanted(NamedTuple):
    """The run to compare with: the facts that were written, in run-configuration names."""

    model: str | None
    shape: Architecture | None
    facts: dict[str, Any]


def differences(wanted: Wanted, run: PublishedRun) -> list[Difference]:
    """What differs between a wanted and a published run, costliest first; the distance is the sum of the costs."""
    parts = [
        *_model(wanted, run), *_sizes(wanted.facts, run.config), *_gpu(wanted.facts, run.config),
        *_precision(wanted.facts, run.config), *_recompute(wanted.facts, run.config),
        *_offload(wanted.facts, run.config), *_other(wanted.facts, run),
    ]  # fmt: skip
    return sorted((part for part in parts if part.cost > 0), key=lambda part: -part.cost)


def _model(wanted: Wanted, run: PublishedRun) -> Iterator[Difference]:
    if wanted.model is None or _VARIANT.sub("", wanted.model) == _VARIANT.sub("", run.model):
        return
    theirs = shape_of(run.model)
    if wanted.shape is None or theirs is None:
        yield Difference(UNKNOWN_MODEL, f"model {wanted.model} / {run.published_as}")
        return
    cost = OTHER_MODEL + abs(math.log2(_size(wanted.shape) / _size(theirs)))
    cost += OTHER_ATTENTION * (_attention(wanted.shape) != _attention(theirs))
    cost += OTHER_FAMILY * (_family(wanted.model) != _family(run.model)) + UNKNOWN_MODEL * (
        wanted.shape.is_moe != theirs.is_moe
    )
    yield Difference(min(cost, UNKNOWN_MODEL), f"model {wanted.model} / {run.model}")


@lru_cache(maxsize=128)
def shape_of(model: str) -> Architecture | None:
    """The architecture of a catalog model, None when the catalog has no such model."""
    try:
        return model_entry(model).architecture
    except MoeError:
        return None


def _size(shape: Architecture) -> float:
    """Layers x (attention + active expert width) x hidden: a stand-in for active parameters."""
    active = (shape.moe_ffn_hidden_size or 0) * shape.moe_router_topk if shape.is_moe else shape.ffn_hidden_size
    return float(shape.num_layers * shape.hidden_size * (4 * shape.hidden_size + 3 * active))


def _attention(shape: Architecture) -> frozenset[str]:
    return frozenset(kind.attention for kind in shape.layer_kinds) - {"none"}


def _family(model: str) -> str:
    return re.split(r"[-.\d]", model, maxsplit=1)[0]


def _sizes(wanted: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    for name, weight in PER_DOUBLING.items():
        mine = wanted.get(name)
        if mine is None:
            continue
        other = theirs.get(name)
        if other is None:
            label = SHORT.get(name, "length")
            cost = UNKNOWN_LENGTH if name == "seq_length" else UNKNOWN_FACT
            yield Difference(cost, f"{label} not published")
        elif mine != other:
            show = length_text if name == "seq_length" else str
            label = "length" if name == "seq_length" else SHORT[name]
            yield Difference(weight * abs(math.log2(mine / other)), f"{label} {show(mine)} / {show(other)}")


def _gpu(wanted: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    mine, other = wanted.get("gpu"), theirs.get("gpu")
    if not isinstance(mine, str):
        return
    if other is None:
        yield Difference(2 * UNKNOWN_FACT, "GPU not published")
    elif mine.upper() != other.upper():
        same = _generation(mine) == _generation(other)
        yield Difference(SAME_GENERATION_GPU if same else OTHER_GENERATION_GPU, f"GPU {mine} / {other}")


@lru_cache(maxsize=64)
def _generation(name: str) -> str:
    try:
        return gpu_named(name).architecture
    except MoeError:
        return name


def _precision(wanted: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    mine, other = wanted.get("precision"), theirs.get("precision")
    if mine is None or mine == other:
        return
    if other is None:
        yield Difference(UNKNOWN_FACT, "precision not published")
        return
    both_low = "bf16" not in (mine, other)
    yield Difference(OTHER_FP8_RECIPE if both_low else OTHER_PRECISION, f"precision {mine} / {other}")


def _recompute(wanted: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    mine, other = wanted.get("recompute"), theirs.get("recompute")
    if mine is None:
        return
    if other is None:
        yield Difference(UNKNOWN_FACT, "recompute not published")
        return
    a, b = mine.get("granularity") or "none", other.get("granularity") or "none"
    if a != b:
        yield Difference(OTHER_GRANULARITY, f"recompute {a} / {b}")
        return
    left, right = set(mine.get("modules") or ()), set(other.get("modules") or ())
    if left != right:
        share = 1 - len(left & right) / max(len(left | right), 1)
        text = f"recompute {'+'.join(sorted(left)) or 'default'} / {'+'.join(sorted(right)) or 'not published'}"
        yield Difference(OTHER_RECOMPUTE_MODULES * share, text)


def _offload(wanted: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Difference]:
    if "optimizer" not in wanted:
        return
    mine = _fraction(wanted)
    other = _fraction(theirs)
    if mine != other:
        yield Difference(OFFLOAD * abs(mine - other), f"optimizer offload {mine:g} / {other:g}")


def _fraction(facts: dict[str, Any]) -> float:
    section = facts.get("optimizer") or {}
    return float(section.get("cpu_offload_fraction") or 0.0)


def _other(wanted: dict[str, Any], run: PublishedRun) -> Iterator[Difference]:
    theirs = run.config
    mine = wanted.get("dispatcher")
    if mine and theirs.get("dispatcher") and mine != theirs["dispatcher"]:
        yield Difference(OTHER_DISPATCHER, f"dispatcher {mine} / {theirs['dispatcher']}")
    for section, key, label in (("peft", "type", "adapter training"), ("fsdp", "enabled", "FSDP")):
        a, b = (side.get(section, {}).get(key) not in (None, "none", False) for side in (wanted, theirs))
        if a != b:
            yield Difference(OTHER_TRAINING, f"{label} {'yes / no' if a else 'no / yes'}")
    layers = theirs.get("megatron", {}).get("model.num_layers")
    if layers != wanted.get("megatron", {}).get("model.num_layers"):
        yield Difference(OTHER_MODEL, f"layers cut to {layers}" if layers else "layers cut here, not there")
    if run.kind == "runs":
        yield Difference(NO_FIGURE, "no figure published")
    if any(caveat.startswith("not a Megatron engine") for caveat in run.caveats):
        yield Difference(OTHER_ENGINE, "not a Megatron engine")
