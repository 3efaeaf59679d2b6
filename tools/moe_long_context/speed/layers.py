"""Seconds of one decoder layer for one microbatch on one GPU: its parts, what recompute replays, what the host adds.

Owns how the parts are joined; the parts are `attention_part` and `ffn_part`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from moe_long_context.catalog.architecture import LayerKind
from moe_long_context.speed.attention_part import attention_part
from moe_long_context.speed.efficiency import launches, traffic
from moe_long_context.speed.facts import GRAPH_EVERYTHING, Facts
from moe_long_context.speed.ffn_part import dense_part, moe_launches, moe_part
from moe_long_context.speed.kernels import BF16_BYTES, Times, memory
from moe_long_context.speed.parts import Part


class LayerTime(NamedTuple):
    """Seconds of one layer and microbatch; `gpu` is kernels and exposed exchanges, `launch` what the host adds."""

    compute: float
    recompute: float
    tp: float
    ep: float
    cp: float
    launch: float
    forward_share: float
    dense_parameters: float
    expert_parameters: float

    @property
    def total(self) -> float:
        """Forward, backward and replay."""
        return self.compute + self.recompute + self.tp + self.ep + self.cp + self.launch


def _norms(facts: Facts, kind: LayerKind) -> Times:
    """A norm and a residual addition before each half of the layer: passes over [tokens, hidden] in BF16."""
    halves = (kind.attention != "none") + (kind.ffn != "none")
    unit = halves * memory(facts, facts.tokens_sp * facts.arch.hidden_size * BF16_BYTES)
    return Times(traffic().norm_forward * unit, traffic().norm_backward * unit)


def _replayed_launches(facts: Facts, kind: LayerKind, part: Part) -> float:
    """Kernel launches that recompute adds to a layer; a graph of the whole iteration holds them too."""
    if facts.graphs == GRAPH_EVERYTHING:
        return 0.0
    if facts.full_recompute:
        return part.launches_forward * facts.full_recompute
    table, names = launches(), facts.recompute
    count = table.replay_core_attn * ("core_attn" in names) + table.replay_layernorm * ("layernorm" in names)
    count += table.replay_mla_up_proj * ("mla_up_proj" in names and kind.attention == "mla")
    if kind.ffn == "dense":
        return count + table.replay_mlp * ("mlp" in names)
    if kind.ffn == "moe" and "moe" in names:
        return count + moe_launches(facts)[0]
    count += table.replay_shared_experts * ("shared_experts" in names)
    return count + table.replay_moe_act * ("moe_act" in names)


ATTENTION_REPLAYS = frozenset({"core_attn", "mla_up_proj"})
"""Recompute modules that `attention_part` reads."""
FFN_REPLAYS = frozenset({"mlp", "moe", "moe_act", "shared_experts"})
"""Recompute modules that `moe_part` and `dense_part` read."""


@lru_cache(maxsize=65536)
def _attention(facts: Facts, kind: LayerKind) -> Part:
    return attention_part(facts, kind)


@lru_cache(maxsize=65536)
def _feed_forward(facts: Facts, ffn: str) -> Part:
    return moe_part(facts) if ffn == "moe" else dense_part(facts) if ffn == "dense" else Part()


def _both_halves(facts: Facts, kind: LayerKind) -> Part:
    """Attention and feed-forward. Each is looked up with its own recompute modules, so that module sets share it."""
    attention = facts._replace(recompute=facts.recompute & ATTENTION_REPLAYS, full_recompute=0.0)
    part = _attention(attention, kind)
    if kind.ffn == "none":
        return part
    feed_forward = facts._replace(recompute=facts.recompute & FFN_REPLAYS, full_recompute=0.0)
    return part.plus(_feed_forward(feed_forward, kind.ffn))


@lru_cache(maxsize=65536)
def layer_time(facts: Facts, kind: LayerKind) -> LayerTime:
    """One layer and microbatch: kernels and exposed exchanges, joined with the host's launch time in quadrature."""
    part = _both_halves(facts, kind)
    norms, e = _norms(facts, kind), facts.eff
    forward, backward = part.forward + norms.forward, part.backward + norms.backward
    replay, replay_ep = part.replay, part.replay_ep
    if "layernorm" in facts.recompute:
        replay += norms.forward
    if facts.full_recompute:
        replay = forward * facts.full_recompute + part.cp / 3
        replay_ep = part.ep / 2 * facts.full_recompute
    compute = forward + backward
    exchange = part.ep
    if facts.ep_overlap:
        exchange -= e.ep_hidden * min(exchange, compute)
    gpu = compute + replay + replay_ep + exchange + part.tp + part.cp
    host = (part.launches_forward + part.launches_backward + _replayed_launches(facts, kind, part)) * e.launch_us * 1e-6
    if facts.ep_overlap:
        host *= e.ep_overlap_launches
    launch = (gpu * gpu + host * host) ** 0.5 - gpu
    return LayerTime(
        compute, replay + replay_ep, part.tp, exchange, part.cp, launch, forward / max(compute, 1e-12),
        part.dense_parameters, part.expert_parameters,
    )  # fmt: skip
