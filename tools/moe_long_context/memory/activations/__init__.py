"""Tensors that one layer keeps for its backward, as a table: name, module, bytes, freed by, offloadable by.

One microbatch, one rank. The rows are what Megatron-Core's TransformerEngine layer spec keeps; `path="cpu"` gives what
the same layer keeps without TransformerEngine's kernels, which is compared tensor by tensor with real layers. Where
FP8/FP4 linears save a quantized copy of their input, that row's dtype changes and nothing else.

Symbols in shapes: t tokens of the CP rank (MBS * seq / CP), s = t / TP under sequence parallelism, h hidden, n heads /
TP, g KV groups / TP, d head dim, r rotary dim, D dispatched token copies, f expert width / ETP, E experts, k top-k.

Sources: megatron-core 0.19.2 transformer/{attention,multi_latent_attention,mlp,transformer_layer}.py,
transformer/moe/{router,token_dispatcher,experts,shared_experts}.py, fusions/fused_bias_{swiglu,geglu}.py, ssm/;
TransformerEngine pytorch/module/{linear,layernorm_linear,grouped_linear}.py and attention/dot_product_attention. What a
module frees under recompute: megatron-core tensor_parallel/random.py (CheckpointWithoutOutput, checkpoint).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from moe_long_context.catalog.architecture import LayerKind
from moe_long_context.config.resolve import Run
from moe_long_context.memory.activations.attention import gqa, mla
from moe_long_context.memory.activations.cpu import on_cpu
from moe_long_context.memory.activations.facts import BF16, QUANTIZED_INPUT_BYTES, Facts, SavedTensor, facts_of
from moe_long_context.memory.activations.feed_forward import dense, moe
from moe_long_context.memory.activations.linear_attention import gdn, mamba

__all__ = [
    "AFTER_ATTENTION",
    "QUANTIZED_INPUT_BYTES",
    "LayerSaved",
    "SavedTensor",
    "layer_saved_bytes",
    "layer_tensors",
    "mtp_replayed_bytes",
    "mtp_saved_bytes",
    "postprocess_saved_bytes",
    "saved_under",
]

AFTER_ATTENTION = frozenset({"pre_mlp_layernorm", "mlp", "router", "token_dispatcher", "experts", "shared_experts"})
"""Modules that run after a layer's attention."""
_ATTENTION = {"gqa": gqa, "mla": mla, "gdn": gdn, "mamba": mamba}
_FFN = {"dense": dense, "moe": moe}


class LayerSaved(NamedTuple):
    """Bytes of one layer for one microbatch on one rank."""

    kept: float
    everything: float
    rematerialised: float
    layer_input: float
    after_attention: float
    kept_after_attention: float


def layer_tensors(run: Run, kind: LayerKind, path: Literal["te", "cpu"] = "te") -> tuple[SavedTensor, ...]:
    """The table of one layer: with TransformerEngine's kernels, or as the framework keeps it on a CPU."""
    x = facts_of(run)
    return _tensors(x, kind) if path == "te" else tuple(on_cpu(x, kind, list(_tensors(x, kind))))


@lru_cache(maxsize=16384)
def _tensors(x: Facts, kind: LayerKind) -> tuple[SavedTensor, ...]:
    halves = (
        (_ATTENTION.get(kind.attention), "self_attention"), (_FFN.get(kind.ffn), "mlp"),
    )  # fmt: skip
    rows = [[*rows_of(x), *_dropout(x, module)] for rows_of, module in halves if rows_of]
    return tuple(row for part in rows for row in part)


def _dropout(x: Facts, module: str) -> list[SavedTensor]:
    """The mask of the dropout before a residual is added (megatron-core fusions/fused_bias_dropout.py)."""
    size = x.s * x.arch.hidden_size
    return [SavedTensor("hidden dropout mask", module, "[s, h]", size)] if x.hidden_dropout else []


def layer_saved_bytes(run: Run, kind: LayerKind) -> LayerSaved:
    """Kept bytes under the run's recompute modules, and what its backward makes again."""
    return saved_under(facts_of(run), kind, run.recompute_modules, run.offload_modules)


@lru_cache(maxsize=65536)
def saved_under(x: Facts, kind: LayerKind, modules: frozenset[str], offloaded: frozenset[str]) -> LayerSaved:
    """Kept bytes of a layer with these facts under any recompute modules and offloaded modules."""
    rows = _tensors(x, kind)
    plain = [row for row in rows if row.kept(frozenset())]
    stays = [row for row in rows if row.kept(modules) and not row.offloadable_by & offloaded]
    kept = _bytes(stays)
    back = _bytes([row for row in plain if not row.kept(modules) or row.offloadable_by & offloaded])
    after = [row for row in plain if row.module in AFTER_ATTENTION]
    kept_after = [row for row in stays if row.module in AFTER_ATTENTION]
    layer_input = x.s * x.arch.hidden_size * BF16
    return LayerSaved(kept, _bytes(plain), back, layer_input, _bytes(after), _bytes(kept_after))


def _bytes(rows: list[SavedTensor]) -> float:
    return sum(row.bytes for row in rows)


def mtp_saved_bytes(run: Run) -> float:
    """What one MTP depth keeps beside its layer.

    Its two norms' inputs, the concatenated [s, 2h] input of its projection, and its part of the heads' joint input with
    the copy that joining makes; a depth that is recomputed whole keeps its embedding and the joint input only.
    Source: megatron-core 0.19.2 transformer/multi_token_prediction.py.
    """
    x = facts_of(run)
    if _replays_mtp(run):
        return x.s * x.arch.hidden_size * 2 * BF16
    return _mtp_bytes(x)


def mtp_replayed_bytes(run: Run) -> float:
    """What backward makes again beside the layer when one MTP depth is recomputed whole."""
    return _mtp_bytes(facts_of(run)) - mtp_saved_bytes(run)


def _replays_mtp(run: Run) -> bool:
    return run.recompute_granularity == "full" and run.recompute_method != "block"


def _mtp_bytes(x: Facts) -> float:
    return x.s * x.arch.hidden_size * (4 * BF16 + 2 * x.linear_bytes)


def postprocess_saved_bytes(run: Run) -> float:
    """Final norm input and the output layer's input."""
    x = facts_of(run)
    return x.s * x.arch.hidden_size * 2 * BF16
