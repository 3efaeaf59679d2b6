"""Every parallel layout of a model on N GPUs that both meshes and the model's own sizes allow. Integer arithmetic only.

Owns the enumeration and the count of what falls out and why; memory and time decide later, in `search`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.planning.layouts import split_fields


class Mesh(NamedTuple):
    """One candidate: sizes, virtual stages and micro batch."""

    tp: int
    cp: int
    pp: int
    vpp: int
    ep: int
    etp: int
    mbs: int
    comm: str = "p2p"
    inner: int = 1


class Limits(NamedTuple):
    """What the person pinned or forbade, and what bounds the enumeration. Empty tuples = free."""

    pinned: dict[str, tuple[Any, ...]]
    forbidden: dict[str, frozenset[Any]]
    max_tp: int
    domain: int = 8
    max_vpp: int = 16
    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    min_dp: int = 1
    mla_a2a: bool = True

    def allows(self, field: str, value: Any) -> bool:
        """Whether a value of a size field is within what the person said."""
        if field in self.forbidden and value in self.forbidden[field]:
            return False
        return field not in self.pinned or value in self.pinned[field]


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def tensor_sizes(arch: Architecture, num_gpus: int, limits: Limits) -> list[int]:
    """TP that divides the GPUs, attention heads and (either way round) the KV groups."""
    out = []
    for tp in divisors(num_gpus):
        if tp > limits.max_tp and "tp" not in limits.pinned:
            break
        groups = arch.num_query_groups
        fits = arch.num_attention_heads % tp == 0 and (groups % tp == 0 or tp % groups == 0)
        if fits and limits.allows("tp", tp):
            out.append(tp)
    return out


def context_sizes(arch: Architecture, num_gpus: int, tp: int, seq_length: int, limits: Limits) -> list[int]:
    """CP whose two chunks a rank divide the sequence, and whose shard TP divides under sequence parallelism."""
    out = []
    for cp in divisors(num_gpus // tp):
        gdn = arch.experimental_attention_variant == "gated_delta_net"
        heads_ok = not gdn or (
            arch.linear_num_key_heads % (tp * cp) == 0 and arch.linear_num_value_heads % (tp * cp) == 0
        )
        whole = cp == 1 or seq_length % (2 * cp) == 0
        if heads_ok and whole and seq_length % (cp * tp) == 0 and limits.allows("cp", cp):
            out.append(cp)
    return out


def expert_sizes(arch: Architecture, tp: int, limits: Limits) -> list[tuple[int, int]]:
    """(EP, ETP): EP divides the experts; ETP is 1 or TP unless pinned."""
    if not arch.num_moe_experts:
        return [(1, tp)]
    widths = limits.pinned.get("etp") or sorted({1, tp})
    return [
        (ep, etp)
        for ep in divisors(arch.num_moe_experts)
        if limits.allows("ep", ep)
        for etp in widths
        if limits.allows("etp", etp) and (arch.moe_ffn_hidden_size or etp) % etp == 0
    ]


def virtual_sizes(num_layers: int, pp: int, limits: Limits) -> list[int]:
    """VPP up to the layers of a rank: powers of two, and whatever divides the layers evenly; a pinned one always."""
    if pp == 1:
        return [1] if limits.allows("vpp", 1) else []
    top = min(limits.max_vpp, max((num_layers + 3) // pp, 1))
    even = [vpp for vpp in range(1, top + 1) if num_layers % (pp * vpp) == 0 or vpp & (vpp - 1) == 0]
    return [vpp for vpp in (limits.pinned.get("vpp") or even) if limits.allows("vpp", vpp)]


def meshes(
    arch: Architecture, num_gpus: int, seq_length: int, limits: Limits, rejected: Counter[str]
) -> Iterator[Mesh]:
    """Every candidate that divides; what does not is counted in `rejected` by reason."""
    mtp = arch.mtp_num_layers or 0
    for tp in tensor_sizes(arch, num_gpus, limits):
        experts = expert_sizes(arch, tp, limits)
        for cp in context_sizes(arch, num_gpus, tp, seq_length, limits):
            comms = communication_types(arch, tp, cp, limits)
            for pp in divisors(num_gpus // (tp * cp)):
                if not limits.allows("pp", pp):
                    rejected["excluded by the request"] += 1
                    continue
                if num_gpus // (tp * cp * pp) < limits.min_dp:
                    rejected["data parallelism below the request"] += 1
                    continue
                splits = [v for v in virtual_sizes(arch.num_layers, pp, limits) if _splits(arch.num_layers, mtp, pp, v)]
                if not splits:
                    rejected["fewer layers than pipeline stages"] += 1
                    continue
                for ep, etp in experts:
                    if num_gpus % (pp * math.lcm(tp * cp, etp * ep)):
                        rejected["the expert mesh does not divide the GPUs"] += 1
                        continue
                    for vpp in splits:
                        for mbs in limits.micro_batches:
                            for comm, inner in comms:
                                yield Mesh(tp, cp, pp, vpp, ep, etp, mbs, comm, inner)


def communication_types(arch: Architecture, tp: int, cp: int, limits: Limits) -> list[tuple[str, int]]:
    """(cp_comm_type, inner a2a size) that heads, windows, sinks and sparse attention allow at this TP and CP."""
    pinned = limits.pinned.get("comm")
    if cp == 1:
        return [("p2p", 1)]
    heads = arch.num_attention_heads // tp
    groups = heads if arch.multi_latent_attention else max(arch.num_query_groups // tp, 1)
    out = [("p2p", 1)] if arch.window_size is None and arch.softmax_type == "vanilla" else []
    if arch.experimental_attention_variant == "dsa":
        out = [("all_gather", 1)]
    elif math.gcd(heads, groups) % cp == 0 and (limits.mla_a2a or not arch.multi_latent_attention):
        out.append(("a2a", 1))
    elif out:
        inner = max(
            (d for d in divisors(cp) if math.gcd(heads, groups) % d == 0 and tp * d <= limits.domain), default=1
        )
        out += [("a2a+p2p", inner)] if 1 < inner < cp else []
    return [c for c in out if (pinned is None or c[0] in pinned) and limits.allows("comm", c[0])]


def _splits(num_layers: int, mtp: int, pp: int, vpp: int) -> bool:
    return split_fields(num_layers, mtp, pp, vpp) is not None
