"""The working set: tensors that live only while one layer's backward (and its recompute) runs, in bytes per rank.

Each step of a layer's backward holds its incoming gradient, its outgoing gradients and what the kernel copies; the layer's
working set is the largest step. All formulas are bf16 gradients of one microbatch (gradients stay bf16 under FP8).
Steps follow megatron-core 0.19.2 transformer/moe/token_dispatcher.py and experts.py read backwards, and TransformerEngine
pytorch/attention/dot_product_attention/context_parallel.py for CP.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from moe_long_context.catalog.architecture import Architecture, LayerKind
from moe_long_context.config.resolve import Run

GRAD_BYTES = 2


class _Facts(NamedTuple):
    """What the working set of a layer depends on."""

    arch: Architecture
    tokens: int
    tp: int
    cp: int
    ep: int
    etp: int
    sequence_parallel: bool
    cp_comm_type: str
    dispatched: float


def facts_of(run: Run) -> _Facts:
    """The facts of a run that decide its working sets."""
    comm = run.cp_comm_type if isinstance(run.cp_comm_type, str) else run.cp_comm_type[0]
    return _Facts(
        run.arch, run.tokens_per_cp_rank, run.sizes.tp, run.sizes.cp, run.sizes.ep, run.sizes.etp,
        run.sequence_parallel, comm, dispatched_tokens(run),
    )  # fmt: skip


def dispatched_tokens(run: Run) -> float:
    """Token copies that one rank's experts process for one microbatch.

    Balanced: tokens of the rank x top-k (what EP sends away comes back), gathered over ETP; times token_imbalance for the
    fullest rank, or exactly the capacity when inputs are padded to it.
    """
    if not run.arch.is_moe:
        return 0.0
    s = run.sizes
    tokens = run.tokens_per_cp_rank / (s.tp if run.sequence_parallel else 1)
    copies = tokens * run.arch.moe_router_topk * s.etp
    moe = run.written.moe
    if moe.capacity_factor and moe.pad_to_capacity:
        return copies * moe.capacity_factor
    peak = copies * moe.token_imbalance
    return min(peak, copies * moe.capacity_factor) if moe.capacity_factor else peak


def layer_working_bytes(run: Run, kind: LayerKind) -> float:
    """The largest step of one layer's backward."""
    return _layer_working(facts_of(run), kind)


@lru_cache(maxsize=65536)
def _layer_working(f: _Facts, kind: LayerKind) -> float:
    residual = f.tokens / (f.tp if f.sequence_parallel else 1) * f.arch.hidden_size * GRAD_BYTES
    return residual + max(_ffn_working(f, kind), _attention_working(f, kind))


def _ffn_working(f: _Facts, kind: LayerKind) -> float:
    a = f.arch
    if kind.ffn == "dense":
        width = a.ffn_hidden_size / f.tp
        gathered = f.tokens * a.hidden_size * GRAD_BYTES
        fc1 = f.tokens * width * a.glu_factor * GRAD_BYTES
        return max(gathered + f.tokens * width * GRAD_BYTES, f.tokens * width * GRAD_BYTES + fc1, fc1 + gathered)
    if kind.ffn == "moe":
        return _moe_working(f)
    return 0.0


def _moe_working(f: _Facts) -> float:
    """Combine and dispatch each hold the permuted gradient before and after a copy; the experts hold it beside fc's."""
    a = f.arch
    hidden = a.moe_latent_size or a.hidden_size
    width = (a.moe_ffn_hidden_size or 0) / f.etp
    permuted = f.dispatched * hidden * GRAD_BYTES
    act = f.dispatched * width * GRAD_BYTES
    return max(2 * permuted, permuted + act, act + act * a.glu_factor, act * a.glu_factor + permuted)


def _attention_working(f: _Facts, kind: LayerKind) -> float:
    a = f.arch
    if kind.attention in ("none", "mamba", "gdn"):
        return _linear_attention_working(f, kind)
    heads = a.num_attention_heads / f.tp
    if kind.attention == "mla":
        assert a.qk_head_dim and a.qk_pos_emb_head_dim and a.v_head_dim
        q = heads * (a.qk_head_dim + a.qk_pos_emb_head_dim)
        k, v = q, heads * a.v_head_dim
        out = heads * a.v_head_dim
    else:
        groups = max(a.num_query_groups / f.tp, 1)
        q, k, v = heads * a.kv_channels, groups * a.kv_channels, groups * a.kv_channels
        out = q
    scale = f.tokens * GRAD_BYTES
    return _core_working(f, q * scale, (k + v) * scale, out * scale)


def _core_working(f: _Facts, q: float, kv: float, out: float) -> float:
    """Gradients of q, k and v beside the output's, and what context parallelism adds."""
    base = out + q + kv
    if f.cp == 1:
        return base
    if f.cp_comm_type == "all_gather":
        return base + 2 * kv * f.cp
    if f.cp_comm_type == "a2a":
        return 2 * out + 2 * (q + kv) + q + kv
    return base + 4 * kv + q


def _linear_attention_working(f: _Facts, kind: LayerKind) -> float:
    a = f.arch
    if kind.attention == "gdn":
        width = 2 * a.linear_num_key_heads * a.linear_key_head_dim
        width += 2 * a.linear_num_value_heads * a.linear_value_head_dim
    elif kind.attention == "mamba":
        width = 2 * (a.mamba_num_heads or 0) * a.mamba_head_dim + 2 * a.mamba_num_groups * a.mamba_state_dim
    else:
        return 0.0
    return 2 * f.tokens * width / f.tp * GRAD_BYTES
