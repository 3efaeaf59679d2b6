"""Facts that a short question leaves out and that decide speed: dispatcher, graphs, overlap, an uneven layer split.

Owns what the step-time model takes in their place, and how far the answer would move if they were otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.config.resolve import Run
from moe_long_context.errors import InvalidLayoutError
from moe_long_context.mesh.partition import Chunk, Partition
from moe_long_context.speed.efficiency import Efficiency
from moe_long_context.speed.facts import (
    GRAPH_EVERYTHING,
    Facts,
    assumes_flex,
    assumes_hierarchical,
    assumes_sequence_parallel,
    facts_of,
)
from moe_long_context.speed.schedule import StepTime, step_time_of

TUNED_GRAPHS = frozenset({"attn", "mamba", "moe_router", "moe_preprocess"})


class Split(NamedTuple):
    """The pipeline split that was timed, and the framework's complaint when it is not the one written."""

    partition: Partition
    problem: str = ""


def split_of(run: Run) -> Split:
    """The run's partition; a balanced one when the layers do not divide and no layout was written.

    Megatron refuses such a run; published tables print PP and VPP of models with a layout string without the string.

    Raises:
        InvalidLayoutError: a written layout or uneven split has no meaning.
    """
    c = run.written
    try:
        return Split(run.partition)
    except InvalidLayoutError as error:
        written = (
            c.pipeline_model_parallel_layout, c.num_layers_in_first_pipeline_stage, c.num_layers_in_last_pipeline_stage
        )  # fmt: skip
        if any(value is not None for value in written):
            raise
        return Split(balanced(run.arch.num_layers, run.sizes.pp, run.sizes.vpp, run.mtp), error.message)


def balanced(layers: int, pp: int, vpp: int, mtp: int) -> Partition:
    """Layers over PP * VPP chunks, the last ones lighter, as the recipes of 61- and 94-layer models split them.

    ceil(L / chunks) each until the layers run out; where that would leave chunks empty, one more on the first chunks.
    """
    total = pp * vpp
    most = -(-layers // total)
    counts = [max(0, min(most, layers - most * i)) for i in range(total)]
    if counts.count(0) > 1:
        counts = [layers // total + (i < layers % total) for i in range(total)]
    chunks, first = [], 0
    for index, count in enumerate(counts):
        last = index == total - 1
        chunks.append(Chunk(first, count, index == 0, mtp if last else 0, last))
        first += count
    return Partition(pp, vpp, tuple(chunks))


def spread(run: Run, step: StepTime, split: Partition, eff: Efficiency | None = None) -> tuple[float, float]:
    """(slowest, fastest) over the central TFLOP/s when what was not written is the front end's default, or tuned."""
    facts = facts_of(run, eff)
    center = step.step_time_s
    plain = facts._replace(dispatcher=run.dispatcher)
    if assumes_hierarchical(run):
        plain = plain._replace(cp_comm="p2p", cp_inner=1)
    slow = step_time_of(run, plain, split).step_time_s
    if run.arch.experimental_attention_variant == "dsa":
        slow *= facts.eff.dsa_unfused
    fast = step_time_of(run, _tuned(run, facts), split).step_time_s
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
    if assumes_sequence_parallel(run):
        out.append("sequence_parallel = True for speed (MoE with TP > 1 trains with it only)")
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
