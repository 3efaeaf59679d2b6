"""GPU counts and the two meshes."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.rule import rule

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 16, "seq_length": 4096, "ep": 8, "gbs": 64}
STATE = "megatron-core 0.19.2 megatron/core/parallel_state.py initialize_model_parallel"


@rule(
    "world-size-dense-mesh", "error", "GPUs are not a multiple of TP*CP*PP",
    why="The job dies before a model is built, after the nodes are allocated.",
    fix="use a multiple of TP*CP*PP GPUs; DP is the quotient", where="process groups",
    fields="num_gpus tensor_model_parallel_size context_parallel_size pipeline_model_parallel_size", source=STATE,
    fails={"tp": 4, "sp": True, "cp": 8}, passes={"tp": 4, "sp": True, "cp": 2}, needs=("num_gpus",),
)  # fmt: skip
def _dense(run: Run) -> str | None:
    s = run.sizes
    if s.fits_attention:
        return None
    return f"{s.num_gpus} GPUs are not a multiple of TP*CP*PP = {s.tp}*{s.cp}*{s.pp} = {s.attention_ranks}"


@rule(
    "world-size-expert-mesh", "error", "GPUs are not a multiple of ETP*EP*PP",
    why="No early assert exists: the error comes at process-group creation on the cluster. CP is not a factor of this mesh.",
    fix="use a common multiple of TP*CP*PP and ETP*EP*PP, or a smaller EP or ETP", where="process groups",
    fields="num_gpus expert_tensor_parallel_size expert_model_parallel_size pipeline_model_parallel_size", source=STATE,
    fails={"ep": 32}, passes={"ep": 16}, needs=("num_gpus",),
)  # fmt: skip
def _expert(run: Run) -> str | None:
    s = run.sizes
    if s.fits_expert:
        return None
    took = "" if run.written.expert_tensor_parallel_size else f" (ETP unset means {s.etp} in {run.frontend_name})"
    return f"{s.num_gpus} GPUs are not a multiple of ETP*EP*PP = {s.etp}*{s.ep}*{s.pp} = {s.expert_ranks}{took}"


@rule(
    "min-gpus", "info", "GPU count is not a multiple of the smallest legal one",
    why="Both meshes must divide: the unit is PP*lcm(TP*CP, ETP*EP), not TP*CP*EP*PP.",
    fix="use a multiple of the unit", where="derived", fields="num_gpus", source=STATE,
    fails={"ep": 32}, passes={}, needs=("num_gpus",),
)  # fmt: skip
def _unit(run: Run) -> str | None:
    s = run.sizes
    if s.fits_attention and s.fits_expert:
        return None
    below = s.num_gpus // s.min_gpus * s.min_gpus
    near = f"{below} or {below + s.min_gpus}" if below else str(s.min_gpus)
    return f"the smallest legal count is PP*lcm(TP*CP, ETP*EP) = {s.min_gpus}; nearest legal counts: {near}"


@rule(
    "etp-default-differs", "warning", "ETP is unset: Bridge and Megatron-LM take different values",
    why="The same visible configuration gets another expert mesh: divisibility, expert memory and checkpoint sharding change.",
    fix="write expert_tensor_parallel_size, normally 1 for fine-grained MoE", where="silently",
    fields="expert_tensor_parallel_size tensor_model_parallel_size",
    source="megatron-bridge 0.6.2 models/transformer_config.py _set_moe_expert_tensor_parallel_default",
    fails={"tp": 2, "sp": True}, passes={"tp": 2, "sp": True, "etp": 1}, repair=lambda run: {"etp": run.sizes.etp},
)  # fmt: skip
def _etp(run: Run) -> str | None:
    if not run.arch.is_moe or run.sizes.tp == 1 or run.written.expert_tensor_parallel_size is not None:
        return None
    other = "Megatron-LM takes TP" if run.bridge and run.sizes.ep > 1 else "Bridge takes 1 when EP > 1"
    return f"expert_tensor_parallel_size is unset and becomes {run.sizes.etp} in {run.frontend_name}; {other}"


@rule(
    "pp-last-order", "error", "tp-pp-dp mapping with PP needs DP equal to EDP",
    why="With that rank order the expert mesh cannot fold over CP or TP.",
    fix="leave use_tp_pp_dp_mapping off", where="process groups", fields="dist.use_tp_pp_dp_mapping", source=STATE,
    fails={"pp": 2, "ep": 4, "cp": 2, "megatron": {"dist.use_tp_pp_dp_mapping": True}},
    passes={"pp": 2, "ep": 4, "cp": 2}, needs=("num_gpus",),
)  # fmt: skip
def _order(run: Run) -> str | None:
    s = run.sizes
    if not run.written.field("dist.use_tp_pp_dp_mapping") or s.pp == 1:
        return None
    dense, expert = s.num_gpus // s.attention_ranks * s.cp, s.edp
    return None if dense == expert else f"dense replicas {dense} and expert replicas {expert} differ under tp-pp-dp mapping"


@rule(
    "conflicting-spellings", "error", "one field is written twice with different values",
    why="Which value counts depends on the reader; nothing is silently rewritten here.",
    fix="keep one spelling", where="config", fields="spelling_conflicts", source="this package: RunConfig reading",
    fails={"tp": 1, "tensor_model_parallel_size": 2, "sp": True}, passes={},
)  # fmt: skip
def _spelling(run: Run) -> str | None:
    conflicts = run.written.spelling_conflicts
    return f"written twice: {'; '.join(conflicts)}" if conflicts else None
