"""Facts that a short question leaves out and that decide speed: dispatcher, graphs, overlap, the CP exchange.

Owns what the step-time model takes in their place, and how far the answer would move if they were otherwise.
"""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.speed.efficiency import Efficiency
from moe_long_context.speed.facts import (
    GRAPH_EVERYTHING,
    Facts,
    assumes_flex,
    assumes_hierarchical,
    facts_of,
)
from moe_long_context.speed.schedule import StepTime, step_time_of

TUNED_GRAPHS = frozenset({"attn", "mamba", "moe_router", "moe_preprocess"})


def spread(run: Run, step: StepTime, eff: Efficiency | None = None) -> tuple[float, float]:
    """(slowest, fastest) over the central TFLOP/s when what was not written is the front end's default, or tuned."""
    facts = facts_of(run, eff)
    center = step.step_time_s
    plain = facts._replace(dispatcher=run.dispatcher)
    if assumes_hierarchical(run):
        plain = plain._replace(cp_comm="p2p", cp_inner=1)
    slow = step_time_of(run, plain).step_time_s
    if run.arch.experimental_attention_variant == "dsa":
        slow *= facts.eff.dsa_unfused
    fast = step_time_of(run, _tuned(run, facts)).step_time_s
    return min(1.0, center / slow), max(1.0, center / fast)


def _tuned(run: Run, facts: Facts) -> Facts:
    """CUDA graphs and EP overlap where they were not written and the framework allows them.

    On Blackwell in MXFP8 as its recipes since Bridge 0.5: a graph of the whole iteration and the fused grouped MLP.
    """
    c, s = run.written, run.sizes
    if "impl" not in c.cuda_graph.model_fields_set and not facts.full_recompute:
        whole = run.precision == "mxfp8" and run.gpu.architecture == "blackwell"
        facts = facts._replace(graphs=GRAPH_EVERYTHING if whole else TUNED_GRAPHS, fused_mlp=facts.fused_mlp or whole)
    allowed = s.ep > 1 and (s.pp == 1 or s.vpp > 1) and not facts.full_recompute and "moe" not in facts.recompute
    if c.overlap.ep_a2a is None and allowed:
        facts = facts._replace(ep_overlap=True)
    return facts


def notes(run: Run) -> tuple[str, ...]:
    """What speed takes where the run configuration is silent, in words, to stand among the assumptions."""
    out = []
    if assumes_flex(run):
        out.append(
            f"dispatcher = hybridep for speed, as performance recipes set it (framework default {run.dispatcher})"
        )
    if assumes_hierarchical(run):
        out.append(
            "cp_comm_type = a2a+p2p for speed: the framework default p2p would wait for the network (see interval)"
        )
    c = run.written
    if "impl" not in c.cuda_graph.model_fields_set:
        out.append("cuda_graph.impl = none (framework default)")
    if c.overlap.ep_a2a is None and run.sizes.ep > 1:
        out.append("overlap.ep_a2a = False (framework default)")
    if run.arch.experimental_attention_variant == "dsa":
        out.append("sparse attention as one fused kernel (Megatron-Core's own path gathers keys and is times slower)")
        out.append("model FLOPs count sparse attention as full, as Megatron prints them: MFU can pass 1")
    if run.arch.is_moe and c.moe.token_imbalance == 1.0:
        out.append("moe.token_imbalance = 1.0 (balanced routing)")
    return tuple(out)
