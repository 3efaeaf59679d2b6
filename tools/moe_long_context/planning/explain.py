"""Why a plan is what it is, and the cheapest ways through when nothing fits."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.config.run_config import RunConfig
from moe_long_context.planning.search import Plan, Wall
from moe_long_context.planning.smallest import first_fitting
from moe_long_context.units import gib


def why(plan: Plan) -> str:
    """One sentence: what each knob of the plan buys, in this run's own numbers."""
    s, stage = plan.run.sizes, plan.memory.peak
    parts = [f"peak {gib(stage.peak_bytes):.1f} GiB on stage {stage.stage} at its {stage.phase.name}"]
    parts.append(f"{plan.run.seq_length // (s.cp * s.tp)} tokens per GPU (CP={s.cp}, TP={s.tp})")
    if s.cp > 1:
        parts.append(f"{plan.run.cp_comm_type} over {s.tp * s.cp} GPUs, NVLink domain {plan.run.gpu.nvlink_domain}")
    if plan.run.arch.is_moe:
        experts = (plan.run.arch.num_moe_experts or 0) // s.ep
        parts.append(f"{experts} experts per rank (EP={s.ep}, EDP={s.edp})")
    if s.pp > 1:
        share = plan.time.bubble_s / plan.time.step_time_s
        parts.append(f"bubble {share:.0%} (PP={s.pp}, VPP={s.vpp}, {plan.run.num_microbatches} microbatches)")
    parts.append(f"recompute {plan.recompute.label}")
    if plan.offload:
        parts.append(f"optimizer on the host ({plan.offload:.0%})")
    return "; ".join(parts)


def ways_through(
    config: RunConfig, run: Run, forbid: tuple[str, ...], min_dp: int, allow_offload: bool
) -> list[tuple[str, Plan]]:
    """Changes that make it fit, smallest first: other state dtypes, more GPUs, a shorter sequence."""
    low = config.optimizer.model_copy(update={"grad_dtype": "bf16", "moment_dtype": "bf16", "precision_aware": True})
    tries: list[tuple[str, RunConfig, int]] = [
        (
            "bf16 gradients and moments with the precision-aware optimizer",
            config.model_copy(update={"optimizer": low}),
            run.num_gpus,
        )
    ]
    tries += [(f"{run.num_gpus * times} GPUs", config, run.num_gpus * times) for times in (2, 4, 8)]
    if run.seq_length > 8192:
        tries.append(
            (
                f"seq_length {run.seq_length // 2}",
                config.model_copy(update={"seq_length": run.seq_length // 2}),
                run.num_gpus,
            )
        )
    out: list[tuple[str, Plan]] = []
    for text, changed, count in tries:
        if any("GPUs" in done for done, _ in out) and "GPUs" in text:
            continue
        plan = first_fitting(changed, count, forbid, min_dp, allow_offload)
        if plan is not None:
            out.append((text, plan))
    return out


__all__ = ["Wall", "ways_through", "why"]
