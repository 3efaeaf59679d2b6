"""Seconds of the collectives of one layer or step, from bytes, group size and where the group lives.

A group whose ranks all share NVLink runs at NVLink speed; any other is bounded by each GPU's network port.
Rank order is Megatron's (tp, cp, ep, dp, pp; fastest first), so a group of span n covers n neighbouring ranks.
"""

from __future__ import annotations

import math

from moe_long_context.speed.facts import Facts


def _bandwidth(facts: Facts, group: int, span: float) -> float:
    """Bytes/s per GPU, one direction, of a collective over `group` ranks that stretch over `span` neighbours.

    Across domains the members that share one domain use their network ports side by side.
    """
    near = facts.rates.nvlink * facts.eff.nvlink_collective
    if span <= facts.rates.domain:
        return near
    stride = span / group
    members = max(1.0, min(float(group), facts.rates.domain / stride))
    return min(near, members * facts.rates.nic * facts.eff.nic_collective)


def ring(facts: Facts, full_bytes: float, group: int, span: float) -> float:
    """All-gather or reduce-scatter of a tensor of `full_bytes`: (n-1)/n of it crosses each link."""
    if group <= 1:
        return 0.0
    return full_bytes * (group - 1) / group / _bandwidth(facts, group, span)


def neighbour(facts: Facts, n_bytes: float, span: float) -> float:
    """One hop of a ring of send and receive between neighbours: the slowest hop sets the pace."""
    if span <= facts.rates.domain:
        return n_bytes / (facts.rates.nvlink * facts.eff.nvlink_p2p)
    return n_bytes / (facts.rates.nic * facts.eff.nic)


def all_to_all(facts: Facts, local_bytes: float, group: int, span: float) -> float:
    """Each rank keeps 1/n of its bytes and sends the rest; the part that leaves the NVLink domain goes by network."""
    if group <= 1:
        return 0.0
    inside = min(1.0, facts.rates.domain / span)
    away = local_bytes * (1 - inside) / (facts.rates.nic * facts.eff.nic)
    near = local_bytes * max(inside - 1 / group, 0.0) / (facts.rates.nvlink * facts.eff.nvlink_collective)
    return max(away, near)


def distinct(groups: float, topk: float) -> float:
    """Expected number of distinct groups that `topk` experts fall in, of `groups` equal ones: g (1 - (1 - 1/g)^k)."""
    return groups * (1 - (1 - 1 / groups) ** topk) if groups > 1 else 1.0


def _reachable(facts: Facts, nodes: float) -> float:
    """Nodes a token may reach: all of them, or under group-limited routing those that hold its k of G groups.

    With G/nodes groups on a node: nodes * (1 - C(G - G/nodes, k) / C(G, k)).
    """
    groups, kept = facts.arch.moe_router_num_groups or 1, facts.arch.moe_router_group_topk
    if not kept or groups <= 1:
        return nodes
    if nodes >= groups:
        return kept * nodes / groups
    missed = math.comb(groups - round(groups / nodes), kept) / math.comb(groups, kept)
    return nodes * (1 - missed)


def expert_exchange(facts: Facts, tokens: float, width: float) -> float:
    """One dispatch or one combine of `tokens` tokens [T, width] in BF16 over EP ranks, in seconds.

    alltoall sends one copy per chosen expert; DeepEP and HybridEP one per destination rank inside NVLink and one per
    destination node across the network. allgather moves every token to every rank.
    """
    if facts.ep * facts.etp <= 1:
        return 0.0
    arch, ep, e = facts.arch, facts.ep, facts.eff
    domain = max(1.0, min(ep * facts.etp, facts.rates.domain) / facts.etp)
    nodes = ep / domain
    token_bytes = 2 * width * tokens * facts.imbalance
    if facts.dispatcher == "allgather":
        return ring(facts, token_bytes * ep, ep, ep * facts.etp)
    topk = arch.moe_router_topk
    if facts.flex:
        near_speed = facts.rates.nvlink * e.nvlink_flex * (e.nvlink_deepep if facts.dispatcher == "deepep" else 1.0)
        ranks = distinct(ep, topk)
        away = distinct(_reachable(facts, nodes), topk) * (nodes - 1) / nodes if nodes > 1 else 0.0
        near = ranks * (domain - 1) / domain
    else:
        near_speed = facts.rates.nvlink * e.nvlink_alltoall
        away = topk * (nodes - 1) / nodes if nodes > 1 else 0.0
        near = topk / nodes * (domain - 1) / domain
    return max(token_bytes * away / (facts.rates.nic * e.nic), token_bytes * near / near_speed)
