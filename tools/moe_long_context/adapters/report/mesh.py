"""Which GPU holds which coordinates of both meshes: a drawing of the first stage, a table of the groups.

All pipeline stages hold the same pattern, shifted by whole stages, so one is drawn; of a large one its first nodes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from markupsafe import Markup

from moe_long_context.adapters.report import svg
from moe_long_context.mesh.sizes import Sizes, coordinates

MAX_GPUS = 256
PER_ROW = 8
CELL, TALL, LEFT = 92, 42, 110
COLOURS = 12
NAMES = {
    "tp": "tensor", "cp": "context", "dp": "data", "pp": "pipeline", "etp": "expert tensor", "ep": "expert",
    "edp": "expert data",
}  # fmt: skip


class Group(NamedTuple):
    """The group of rank 0 in one dimension, and what it crosses."""

    name: str
    label: str
    size: int
    ranks: str
    nodes: int
    domains: int


def groups(sizes: Sizes, node: int, domain: int) -> list[Group]:
    """Rank 0's group in each dimension of both meshes."""
    strides = {
        "tp": 1, "cp": sizes.tp, "dp": sizes.tp * sizes.cp, "pp": sizes.num_gpus // sizes.pp,
        "etp": 1, "ep": sizes.etp, "edp": sizes.etp * sizes.ep,
    }  # fmt: skip
    counts = {name: getattr(sizes, name) for name in NAMES}
    out = []
    for name, label in NAMES.items():
        ranks = range(0, strides[name] * counts[name], max(strides[name], 1))[: max(counts[name], 1)]
        out.append(
            Group(name.upper(), label, counts[name], _short(ranks), len({r // node for r in ranks}),
                  len({r // domain for r in ranks}))
        )  # fmt: skip
    return out


def _short(ranks: Iterable[int]) -> str:
    held = list(ranks)
    return ", ".join(map(str, held)) if len(held) <= 6 else f"{held[0]}, {held[1]}, {held[2]}, ... {held[-1]}"


def drawn_gpus(sizes: Sizes, node: int) -> int:
    """How many GPUs the picture shows: the first stage, or its first whole nodes."""
    stage = max(sizes.num_gpus // sizes.pp, 1)
    return stage if stage <= MAX_GPUS else max(MAX_GPUS // node * node, min(node, MAX_GPUS))


def picture(sizes: Sizes, node: int, domain: int) -> Markup:
    """A cell for each GPU, a frame for each node, a bracket for each NVLink domain."""
    count = drawn_gpus(sizes, node)
    lines = [ranks[i : i + PER_ROW] for ranks in _nodes(count, node) for i in range(0, len(ranks), PER_ROW)]
    width = LEFT + CELL * min(PER_ROW, max(map(len, lines))) + 12
    root = svg.canvas(width, (TALL + 6) * len(lines) + 8, f"Coordinates of GPUs 0 to {count - 1} in both meshes")
    for row, ranks in enumerate(lines):
        y = 6 + (TALL + 6) * row
        if ranks[0] % node == 0:
            svg.text(root, LEFT - 12, y + 18, f"node {ranks[0] // node}", "end strong")
        if ranks[0] % domain < PER_ROW and (ranks[0] // domain != (ranks[0] - 1) // domain or ranks[0] == 0):
            svg.text(root, LEFT - 12, y + 34, f"NVLink {ranks[0] // domain}", "end soft")
        style = f"domain-{ranks[0] // domain % 2}"
        svg.rect(root, (LEFT - 6, y - 3, 4, TALL + 6), style, f"NVLink domain {ranks[0] // domain}")
        svg.rect(root, (LEFT, y - 2, CELL * len(ranks), TALL + 3), "node")
        for column, rank in enumerate(ranks):
            _cell(root, LEFT + CELL * column, y, rank, coordinates(rank, sizes))
    return svg.markup(root)


def _nodes(count: int, node: int) -> list[range]:
    return [range(start, min(start + node, count)) for start in range(0, count, node)]


def _cell(root: Any, x: float, y: float, rank: int, at: dict[str, int]) -> None:
    tip = f"GPU {rank}: " + ", ".join(f"{name.upper()} {at[name]}" for name in NAMES)
    svg.rect(root, (x + 2, y, CELL - 4, TALL - 1), f"cell e-{at['ep'] % COLOURS}", tip)
    svg.text(root, x + 7, y + 16, f"T{at['tp']} C{at['cp']} D{at['dp']}", "cell-text")
    svg.text(root, x + 7, y + 33, f"E{at['ep']} t{at['etp']} d{at['edp']}", "cell-text")
