"""Turns what a person pinned and forbade into the `Limits` of the search."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.names import resolve_key
from moe_long_context.config.resolve import Run
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, shorten
from moe_long_context.planning.space import Limits
from moe_long_context.rules.families.context_parallel import MLA_A2A_SINCE

SHORT = {
    "tensor_model_parallel_size": "tp", "context_parallel_size": "cp", "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vpp", "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp", "cp_comm_type": "comm", "micro_batch_size": "mbs",
}  # fmt: skip


def limits_of(config: RunConfig, run: Run, forbid: tuple[str, ...], min_dp: int, cross_domain_tp: bool) -> Limits:
    """Sizes given in the configuration are pinned; `forbid` holds FIELD=VALUE texts.

    Raises:
        BadValueError: a forbidden field that is not a searched size, or no value.
    """
    pinned = {s: (getattr(config, f),) for f, s in SHORT.items() if getattr(config, f) is not None}
    if config.pipeline_model_parallel_layout is not None:
        pinned["pp"], pinned["vpp"] = (run.sizes.pp,), (run.sizes.vpp,)
    batches = pinned.pop("mbs", None) or (1, 2, 4)
    return Limits(
        pinned=pinned,
        forbidden=_forbidden(forbid),
        max_tp=run.num_gpus if cross_domain_tp else run.gpu.nvlink_domain,
        domain=run.gpu.nvlink_domain,
        micro_batches=tuple(int(b) for b in batches),
        min_dp=min_dp,
        mla_a2a=run.te_version >= MLA_A2A_SINCE,
    )


def _forbidden(texts: tuple[str, ...]) -> dict[str, frozenset[Any]]:
    out: dict[str, set[Any]] = {}
    for text in texts:
        field, equals, value = text.partition("=")
        short = SHORT.get(resolve_key(field)) if equals else None
        if short is None or not value:
            raise BadValueError(
                f"--forbid takes FIELD=VALUE of a searched size, got {shorten(text)}.",
                given=text,
                allowed=[f"{s}=4" for s in ("tp", "cp", "pp", "vpp", "ep", "etp")],
            )
        values = [v.strip() for v in value.split(",")]
        out.setdefault(short, set()).update(int(v) if v.isdigit() else v for v in values)
    return {field: frozenset(values) for field, values in out.items()}
