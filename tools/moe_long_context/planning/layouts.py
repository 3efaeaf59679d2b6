"""How to split a model over a pipeline: the framework's own even split where it divides, else a balanced layout string.

A layout is weighed in layers: the loss and each MTP depth count as one layer, the embedding as none.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from moe_long_context.mesh.balance import balanced_stages
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
