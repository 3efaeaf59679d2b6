"""The working set: tensors that live only while one layer's backward (and its recompute) runs, in bytes per rank.

Each step of a layer's backward holds its incoming gradient, its outgoing gradients and what the kernel copies; the
layer's working set is the largest step. All formulas are bf16 gradients of one microbatch (gradients stay bf16 under
FP8). Steps follow megatron-core 0.19.2 transformer/moe/token_dispatcher.py and experts.py read backwards, and
TransformerEngine pytorch/attention/dot_product_attention/context_parallel.py for CP.
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
    cp_a2a: int
    dispatched: float
    scores: float


def facts_of(run: Run) -> _Facts:
    """The facts of a run that decide its working sets."""
    comm = run.cp_comm_type if isinstance(run.cp_comm_type, str) else run.cp_comm_type[0]
    inner = run.written.hierarchical_context_parallel_sizes
    return _Facts(
        run.arch, run.tokens_per_cp_rank, run.sizes.tp, run.sizes.cp, run.sizes.ep, run.sizes.etp,
        run.sequence_parallel, comm if comm in _CP else "p2p", inner[0] if inner else 1, dispatched_tokens(run),
        score_elements(run),
    )  # fmt: skip


def score_elements(run: Run) -> float:
    """Elements of the attention matrices [b, n / TP, S / CP, S] of one layer when a run builds them whole, else 0."""
    if not run.eager_attention:
        return 0.0
    return run.tokens_per_cp_rank * run.seq_length * run.arch.num_attention_heads / run.sizes.tp


def dispatched_tokens(run: Run) -> float:
    """Token copies that one rank's experts process for one microbatch.

    Balanced: tokens of the rank x top-k (what EP sends away comes back), gathered over ETP; times token_imbalance for
    the fullest rank, or exactly the capacity when inputs are padded to it.
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


class Working(NamedTuple):
    """Largest transient of one layer, in bytes: in its forward's attention, and in its backward."""

    forward: float
    backward: float


def layer_working(run: Run, kind: LayerKind) -> Working:
    """The largest transient of one layer's attention forward and of its backward."""
    return _layer_working(facts_of(run), kind)


@lru_cache(maxsize=65536)
def _layer_working(f: _Facts, kind: LayerKind) -> Working:
    residual = f.tokens / (f.tp if f.sequence_parallel else 1) * f.arch.hidden_size * GRAD_BYTES
    forward, backward = _attention_working(f, kind)
    return Working(forward, residual + max(_ffn_working(f, kind), backward))


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


class _Core(NamedTuple):
    """Bytes of the attention core's tensors on one rank."""

    q: float
    kv: float
    out: float


def _core_tensors(f: _Facts, kind: LayerKind) -> _Core:
    a = f.arch
    heads = a.num_attention_heads / f.tp
    scale = f.tokens * GRAD_BYTES
    if kind.attention == "mla":
        assert a.qk_head_dim and a.qk_pos_emb_head_dim and a.v_head_dim
        qk = heads * (a.qk_head_dim + a.qk_pos_emb_head_dim)
        return _Core(qk * scale, (qk + heads * a.v_head_dim) * scale, heads * a.v_head_dim * scale)
    groups = max(a.num_query_groups / f.tp, 1)
    return _Core(heads * a.kv_channels * scale, 2 * groups * a.kv_channels * scale, heads * a.kv_channels * scale)


def _attention_working(f: _Facts, kind: LayerKind) -> Working:
    if kind.attention in ("none", "mamba", "gdn"):
        both = _linear_attention_working(f, kind)
        return Working(both, both)
    core = _core_tensors(f, kind)
    if f.scores:  # the scores before their softmax; backward: the probabilities' gradient
        return Working(f.scores * GRAD_BYTES, f.scores * GRAD_BYTES + core.q + core.kv + core.out)
    if f.cp == 1:
        return Working(core.q + core.kv + core.out, core.q + core.kv + core.out)
    return _CP[f.cp_comm_type](core, f.cp, f.cp_a2a)


def _ring(c: _Core, cp: int, inner: int) -> Working:
    """Ring: the forward keeps every received KV and every step's partial output until it returns.

    TransformerEngine context_parallel.py AttnFuncWithCPAndKVP2P.forward: `p2p_comm_buffers` holds CP buffers of k and
    v, `out_per_step` CP outputs (the last rank's are all whole), then one fp32 output. Backward: two [kv, dkv] pairs,
    dq and the step's own dq, dk, dv.
    """
    forward = cp * (c.kv + c.out) + 2 * c.out
    return Working(forward, 4 * c.kv + c.q + (c.q + c.kv) + 2 * c.out)


def _gathered(c: _Core, cp: int, inner: int) -> Working:
    """All-gather: k and v of the whole sequence, once as gathered and once in order; backward adds their gradients.

    TransformerEngine context_parallel.py AttnFuncWithCPAndKVAllGather.
    """
    return Working(2 * cp * c.kv + c.q + c.out, 3 * cp * c.kv + c.q + 2 * c.out)


def _all_to_all(c: _Core, cp: int, inner: int) -> Working:
    """All-to-all: send, receive and reordered copies of q, k, v or of the output beside the originals.

    TransformerEngine context_parallel.py AttnFuncWithCPAndQKVOA2A; copies as in MooreThreads/SimuMax's measured
    snapshots.
    """
    qkv = c.q + c.kv
    return Working(max(2 * qkv + 4 * c.out, 3 * qkv + c.kv), 2 * qkv + c.q + c.kv / 2 + 2 * c.out)


def _hierarchical(c: _Core, cp: int, inner: int) -> Working:
    """a2a inside groups of `inner` ranks, then a ring of CP / inner over inner-times longer, inner-times fewer
    heads."""
    ring, exchange = _ring(c, max(cp // max(inner, 1), 1), 1), _all_to_all(c, cp, 1)
    return Working(ring.forward + c.q + c.kv, max(ring.backward + c.q + c.kv, exchange.backward))


_CP = {"p2p": _ring, "all_gather": _gathered, "a2a": _all_to_all, "a2a+p2p": _hierarchical}


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
