"""How to split a model over a pipeline: the framework's own even split where it divides, else a balanced layout string.

A layout is weighed in layers: the loss and each MTP depth count as one layer, the embedding as none.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from moe_long_context.mesh.layout_string import write_layout

MAX_CHUNKS = 512


@lru_cache(maxsize=8192)
def split_fields(num_layers: int, mtp: int, pp: int, vpp: int) -> dict[str, Any] | None:
    """RunConfig fields that split `num_layers` (+ MTP) over PP x VPP, or None when there are fewer layers than chunks.

    Without MTP an even split or account_for_* is used when it divides; otherwise a layout string.
    """
    if pp == 1:
        return {} if vpp == 1 else None
    base: dict[str, Any] = {"virtual_pipeline_model_parallel_size": vpp} if vpp > 1 else {}
    chunks = pp * vpp
    if chunks > MAX_CHUNKS or num_layers < chunks - 1:
        return None
    if not mtp and num_layers % chunks == 0:
        return base
    if not mtp and (num_layers + 2) % chunks == 0 and (num_layers + 2) // chunks > 1:
        both = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
        return {**base, **both}
    return {**base, "pipeline_model_parallel_layout": write_layout(balanced_stages(num_layers, mtp, chunks))}


def balanced_stages(num_layers: int, mtp: int, chunks: int) -> tuple[str, ...]:
    """Stages in layout letters whose weights differ by at most one layer, the last one holding MTP and loss.

    The last chunk gives up one layer for the loss and one for each MTP depth; remainders go to the chunks after the first,
    because the first one also holds the embedding.
    """
    weight = num_layers + mtp + 1
    share, extra = divmod(weight, chunks)
    layers = [share] * chunks
    for index in range(extra):
        layers[(index + 1) % chunks] += 1
    layers[-1] -= mtp + 1
    borrow = chunks - 2
    while layers[-1] < 0:
        take = min(layers[borrow], 1) if borrow >= 0 else 0
        if take == 0 and borrow < 0:
            break
        layers[borrow] -= take
        layers[-1] += take
        borrow = borrow - 1 if borrow > 0 else chunks - 2
    stages = ["t" * count for count in layers]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * mtp + "L"
    return tuple(stages)
