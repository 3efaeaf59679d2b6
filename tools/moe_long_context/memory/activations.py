"""Tensors that one layer keeps for its backward, as a table: name, module, bytes, freed by, offloadable by.

One microbatch, one rank. The rows are what Megatron-Core's TransformerEngine layer spec keeps; where FP8/FP4 linears
save a quantized copy of their input, that row's dtype changes and nothing else. Symbols in shapes: t tokens of the CP rank
(MBS * seq / CP), s = t / TP under sequence parallelism, h hidden, n heads / TP, g KV groups / TP, d head dim,
D dispatched token copies, f expert width / ETP, E experts, k top-k.

Sources: megatron-core 0.19.2 transformer/{attention,multi_latent_attention,mlp,transformer_layer}.py,
transformer/moe/{router,token_dispatcher,experts,shared_experts}.py, fusions/fused_bias_swiglu.py, ssm/;
TransformerEngine pytorch/module/{linear,layernorm_linear,grouped_linear}.py and attention/dot_product_attention.
What a module frees under recompute: megatron-core tensor_parallel/random.py (CheckpointWithoutOutput, checkpoint).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from moe_long_context.catalog.architecture import Architecture, LayerKind
from moe_long_context.config.resolve import Run
from moe_long_context.memory.working import dispatched_tokens

QUANTIZED_INPUT_BYTES = {
    "bf16": 2.0, "fp8_tensorwise": 1.0, "fp8_delayed": 1.0, "fp8_blockwise": 1 + 4 / 128, "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}  # fmt: skip
"""Bytes per element of a linear's saved input: one (column-wise) copy with its scales."""
STATS_BYTES = 4
NORMS = frozenset({"layernorm"})
UP = frozenset({"mla_up_proj"})


class SavedTensor(NamedTuple):
    """One tensor kept for backward. `bytes` on one rank for one microbatch; any module of `freed_by` frees it."""

    name: str
    module: str
    shape: str
    bytes: float
    freed_by: frozenset[str] = frozenset()
    offloadable_by: frozenset[str] = frozenset()


class LayerSaved(NamedTuple):
    """Bytes of one layer for one microbatch on one rank."""

    kept: float
    everything: float
    rematerialised: float
    layer_input: float
    after_attention: float
    kept_after_attention: float


class _Shape(NamedTuple):
    """What the table depends on."""

    arch: Architecture
    t: float
    s: float
    tp: int
    cp: int
    etp: int
    a2a: bool
    dispatched: float
    linear_bytes: float
    quantized: bool


def _shape(run: Run) -> _Shape:
    t = run.tokens_per_cp_rank
    comm = run.cp_comm_type if isinstance(run.cp_comm_type, str) else run.cp_comm_type[0]
    s = t / run.sizes.tp if run.sequence_parallel else t
    return _Shape(
        run.arch, t, s, run.sizes.tp, run.sizes.cp, run.sizes.etp, comm.startswith("a2a"), dispatched_tokens(run),
        QUANTIZED_INPUT_BYTES[run.precision], run.precision != "bf16",
    )  # fmt: skip


def layer_tensors(run: Run, kind: LayerKind) -> tuple[SavedTensor, ...]:
    """The table of one layer."""
    return _tensors(_shape(run), kind)


@lru_cache(maxsize=16384)
def _tensors(x: _Shape, kind: LayerKind) -> tuple[SavedTensor, ...]:
    attention = {"gqa": _gqa, "mla": _mla, "gdn": _gdn, "mamba": _mamba}.get(kind.attention)
    rows = attention(x) if attention else []
    if kind.ffn != "none":
        rows += _ffn_norm(x, kind) + (_dense(x) if kind.ffn == "dense" else _moe(x))
    return tuple(rows)


def _norm(x: _Shape, name: str, fused: bool, offload: str) -> list[SavedTensor]:
    """Input and statistics of a norm, and its output: in the linear's saved dtype where the norm is fused into it."""
    h = x.arch.hidden_size
    out_bytes = x.linear_bytes if fused else 2.0
    return [
        SavedTensor(f"{name} input", name, "[s, h]", x.s * h * 2, frozenset(), frozenset({offload})),
        SavedTensor(f"{name} statistics", name, "[s]", x.s * STATS_BYTES),
        SavedTensor(f"{name} output", name, "[s, h]", x.s * h * out_bytes, frozenset() if fused else NORMS),
    ]


def _core(x: _Shape, q: float, k: float, v: float, heads: float, freed: frozenset[str]) -> list[SavedTensor]:
    """What flash and fused attention keep: q, k, v, output and its log-sum-exp; a2a keeps a copy of the output."""
    core = frozenset({"core_attn"})
    rows = [
        SavedTensor("query", "core_attention", "[t, n, d]", x.t * q * 2, freed, core),
        SavedTensor("key", "core_attention", "[t, g, d]", x.t * k * 2, freed, core),
        SavedTensor("value", "core_attention", "[t, g, d]", x.t * v * 2, freed, core),
        SavedTensor("log-sum-exp", "core_attention", "[n, t]", x.t * heads * 4, core, core),
    ]
    out = heads * (v / (k / (q / heads)) if k else 0.0)
    width = out if out else q
    rows.append(
        SavedTensor(
            "attention output", "linear_proj", "[t, n, dv]", x.t * width * 2, frozenset(), frozenset({"attn_proj"})
        )
    )
    if x.cp > 1 and x.a2a:
        rows.append(
            SavedTensor("attention output before a2a", "core_attention", "[t, n, dv]", x.t * width * 2, core, core)
        )
    if x.quantized:
        rows.append(
            SavedTensor("attention output, quantized", "linear_proj", "[t, n, dv]", x.t * width * x.linear_bytes)
        )
    return rows


def _gqa(x: _Shape) -> list[SavedTensor]:
    a = x.arch
    heads, groups = a.num_attention_heads / x.tp, max(a.num_query_groups / x.tp, 1)
    q, k = heads * a.kv_channels, groups * a.kv_channels
    rows = _norm(x, "input_layernorm", True, "attn_norm")
    if a.qk_layernorm:
        rows += [
            SavedTensor("q_layernorm input", "q_layernorm", "[t, n, d]", x.t * q * 2),
            SavedTensor("k_layernorm input", "k_layernorm", "[t, g, d]", x.t * k * 2),
            SavedTensor("qk norm statistics", "q_layernorm", "[t, n + g]", x.t * (heads + groups) * STATS_BYTES),
        ]
    if a.attention_output_gate:
        rows += [
            SavedTensor("output gate", "self_attention", "[t, n, d]", x.t * q * 2),
            SavedTensor("ungated output", "self_attention", "[t, n, d]", x.t * q * 2),
        ]
    return rows + _core(x, q, k, k, heads, frozenset())


def _mla(x: _Shape) -> list[SavedTensor]:
    a = x.arch
    assert a.qk_head_dim and a.qk_pos_emb_head_dim and a.v_head_dim and a.kv_lora_rank
    heads = a.num_attention_heads / x.tp
    qk = heads * (a.qk_head_dim + a.qk_pos_emb_head_dim)
    rows = _norm(x, "input_layernorm", False, "attn_norm")
    if x.quantized:
        rows.append(
            SavedTensor(
                "down projection input, quantized", "linear_qkv_down", "[s, h]", x.s * a.hidden_size * x.linear_bytes
            )
        )
    if a.q_lora_rank:
        rows += [
            SavedTensor("q latent", "q_layernorm", "[s, q_lora]", x.s * a.q_lora_rank * 2),
            SavedTensor("q latent normed", "linear_q_up_proj", "[t, q_lora]", x.s * a.q_lora_rank * x.linear_bytes, UP),
        ]
    rows += [
        SavedTensor("kv latent", "kv_layernorm", "[s, kv_lora]", x.s * a.kv_lora_rank * 2),
        SavedTensor("kv latent normed", "linear_kv_up_proj", "[t, kv_lora]", x.s * a.kv_lora_rank * x.linear_bytes, UP),
        SavedTensor("latent statistics", "kv_layernorm", "[s]", x.s * STATS_BYTES * 2),
        SavedTensor("rotary key", "self_attention", "[t, rope]", x.t * a.qk_pos_emb_head_dim * 2 * 4),
    ]
    v = heads * a.v_head_dim
    core = _core(x, qk, qk, v, heads, UP)
    return rows + core


def _ffn_norm(x: _Shape, kind: LayerKind) -> list[SavedTensor]:
    return _norm(x, "pre_mlp_layernorm", kind.ffn == "dense", "mlp_norm")


def _dense(x: _Shape) -> list[SavedTensor]:
    width = x.arch.ffn_hidden_size / x.tp
    mlp = frozenset({"mlp"})
    return [
        SavedTensor("fc1 output", "mlp", "[t, 2f]", x.t * width * x.arch.glu_factor * 2, mlp),
        SavedTensor("fc2 input", "mlp", "[t, f]", x.t * width * x.linear_bytes, mlp),
    ]


def _moe(x: _Shape) -> list[SavedTensor]:
    a, moe = x.arch, frozenset({"moe"})
    experts, width = a.num_moe_experts or 0, (a.moe_ffn_hidden_size or 0) / x.etp
    hidden = a.moe_latent_size or a.hidden_size
    act = frozenset({"moe", "moe_act"})
    rows = [
        SavedTensor(
            "router scores and map",
            "router",
            "[s, E]",
            x.s * (8 * experts + experts + 16 * a.moe_router_topk + 40),
            moe,
        ),
        SavedTensor("permutation map", "token_dispatcher", "[s, 2E + 1]", x.s * (2 * experts + 1) * 4, moe),
        SavedTensor(
            "expert fc1 input",
            "experts",
            "[D, h]",
            x.dispatched * hidden * x.linear_bytes,
            moe,
            frozenset({"expert_fc1"}),
        ),
        SavedTensor(
            "expert fc1 output",
            "experts",
            "[D, 2f]",
            x.dispatched * width * a.glu_factor * 2,
            moe,
            frozenset({"moe_act"}),
        ),
        SavedTensor("expert probabilities", "experts", "[D]", x.dispatched * 4, moe),
        SavedTensor("expert fc2 input", "experts", "[D, f]", x.dispatched * width * x.linear_bytes, act),
    ]
    return rows + _shared_experts(x)


def _shared_experts(x: _Shape) -> list[SavedTensor]:
    a = x.arch
    if not a.moe_shared_expert_intermediate_size:
        return []
    width = a.moe_shared_expert_intermediate_size / x.tp
    freed = frozenset({"moe", "shared_experts"})
    rows = [
        SavedTensor("shared fc1 output", "shared_experts", "[t, 2f]", x.t * width * a.glu_factor * 2, freed),
        SavedTensor("shared fc2 input", "shared_experts", "[t, f]", x.t * width * x.linear_bytes, freed),
    ]
    if x.quantized:
        rows.append(
            SavedTensor(
                "shared fc1 input, quantized", "shared_experts", "[t, h]", x.s * a.hidden_size * x.linear_bytes, freed
            )
        )
    if a.moe_shared_expert_gate:
        rows.append(
            SavedTensor("shared expert output", "shared_experts", "[s, h]", x.s * a.hidden_size * 2, frozenset({"moe"}))
        )
    return rows


def _gdn(x: _Shape) -> list[SavedTensor]:
    """Gated delta net: projection input, convolution input and output, normed q and k, gate, kernel state, norm."""
    a = x.arch
    key = a.linear_num_key_heads * a.linear_key_head_dim / x.tp
    value = a.linear_num_value_heads * a.linear_value_head_dim / x.tp
    heads = a.linear_num_value_heads / x.tp
    out = frozenset({"gdn_norm_out"})
    return [
        *_norm(x, "input_layernorm", True, "attn_norm"),
        SavedTensor("convolution input", "conv1d", "[t, qkv]", x.t * (2 * key + value) * 2),
        SavedTensor("convolution output", "conv1d", "[t, qkv]", x.t * (2 * key + value) * 2),
        SavedTensor(
            "normalised q and k", "gated_delta_rule", "[t, 2 * heads * dk]", x.t * 2 * heads * a.linear_key_head_dim * 2
        ),
        SavedTensor("value, decay and beta", "gated_delta_rule", "[t, value + 2 heads]", x.t * (value * 2 + heads * 8)),
        SavedTensor(
            "chunk state",
            "gated_delta_rule",
            "[t / 64, heads, dk, dv]",
            x.t / 64 * heads * a.linear_key_head_dim * a.linear_value_head_dim * 2,
        ),
        SavedTensor("gate", "out_norm", "[t, value]", x.t * value * 2),
        SavedTensor("kernel output", "out_norm", "[t, value]", x.t * value * 2),
        SavedTensor("projection input", "out_proj", "[t, value]", x.t * value * x.linear_bytes, out),
    ]


def _mamba(x: _Shape) -> list[SavedTensor]:
    """Mamba-2 with the memory-efficient path: the fused kernel keeps its projected input and recomputes inside."""
    a = x.arch
    inner = (a.mamba_num_heads or 0) * a.mamba_head_dim / x.tp
    groups = a.mamba_num_groups * a.mamba_state_dim / x.tp
    heads = (a.mamba_num_heads or 0) / x.tp
    return [
        *_norm(x, "input_layernorm", True, "attn_norm"),
        SavedTensor(
            "projected input", "in_proj", "[t, 2 inner + 2 groups + heads]", x.t * (2 * inner + 2 * groups + heads) * 2
        ),
        SavedTensor("scan output", "mixer", "[t, inner]", x.t * inner * 2),
        SavedTensor("projection input", "out_proj", "[t, inner]", x.t * inner * x.linear_bytes),
    ]


def layer_saved_bytes(run: Run, kind: LayerKind) -> LayerSaved:
    """Kept bytes under the run's recompute modules, and what its backward makes again."""
    return _saved(_shape(run), kind, run.recompute_modules, run.offload_modules)


@lru_cache(maxsize=65536)
def _saved(x: _Shape, kind: LayerKind, modules: frozenset[str], offloaded: frozenset[str]) -> LayerSaved:
    rows = _tensors(x, kind)
    everything = sum(row.bytes for row in rows)
    freed = sum(row.bytes for row in rows if row.freed_by & modules)
    moved = sum(row.bytes for row in rows if row.offloadable_by & offloaded and not row.freed_by & modules)
    after = [row for row in rows if row.module in AFTER_ATTENTION]
    gone = modules | offloaded
    kept_after = sum(row.bytes for row in after if not (row.freed_by | row.offloadable_by) & gone)
    layer_input = x.s * x.arch.hidden_size * 2
    return LayerSaved(
        everything - freed - moved, everything, freed + moved, layer_input, sum(row.bytes for row in after), kept_after
    )


AFTER_ATTENTION = frozenset({"pre_mlp_layernorm", "mlp", "router", "token_dispatcher", "experts", "shared_experts"})


def mtp_saved_bytes(run: Run) -> float:
    """What one MTP depth keeps beside its layer: two norms' inputs, the joined [s, 2h] input and the projection."""
    x = _shape(run)
    h = x.arch.hidden_size
    return x.s * h * (2 * 2 + 2 * 2) + x.s * 2 * h * x.linear_bytes + x.s * h * 2


def postprocess_saved_bytes(run: Run) -> float:
    """Final norm input and the output layer's input."""
    x = _shape(run)
    return x.s * x.arch.hidden_size * 4
