"""What a step spends most beyond useful compute, and the change that attacks it."""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.config.resolve import FLEX, Run
from moe_long_context.speed.schedule import StepTime

WORTH_NAMING = 0.08


class Bottleneck(NamedTuple):
    """The largest loss, its share of the step, and the change that attacks it."""

    name: str
    share: float
    change: str


def bottleneck(run: Run, step: StepTime) -> Bottleneck:
    """The largest cause beyond compute when it takes 8 % of the step or more; else compute itself."""
    losses = {
        "expert communication": step.ep_s,
        "context-parallel communication": step.cp_s,
        "tensor-parallel communication": step.tp_s,
        "pipeline communication": step.pp_s,
        "data-parallel communication": step.dp_s,
        "pipeline bubble": step.bubble_s,
        "recompute": step.recompute_s,
        "kernel launches": step.launch_s,
        "optimizer": step.optimizer_s,
    }
    name = max(losses, key=lambda key: losses[key])
    share = losses[name] / step.step_time_s
    if share < WORTH_NAMING:
        return Bottleneck("compute", step.compute_s / step.step_time_s, _compute_change(run))
    return Bottleneck(name, share, _CHANGES[name](run))


def _compute_change(run: Run) -> str:
    if run.precision == "bf16" and run.gpu.fp8_tflops:
        recipe = "mxfp8" if run.gpu.architecture == "blackwell" else "fp8_blockwise"
        return f"precision: {recipe}"
    return "nothing large is left; a larger micro_batch_size helps where memory allows"


def _expert(run: Run) -> str:
    if run.dispatcher not in FLEX:
        return "dispatcher: hybridep or deepep"
    if not run.written.overlap.ep_a2a:
        return "overlap.ep_a2a: true (needs VPP when PP > 1 and no full recompute)"
    return "a smaller expert_model_parallel_size, so that the group stays inside the NVLink domain"


def _context(run: Run) -> str:
    if run.sizes.tp * run.sizes.cp > run.gpu.nvlink_domain:
        return "TP*CP within the NVLink domain, or cp_comm_type: a2a+p2p with hierarchical sizes"
    return "a smaller context_parallel_size, or cp_comm_type: p2p, which hides behind attention"


def _tensor(run: Run) -> str:
    if run.sizes.tp > run.gpu.nvlink_domain:
        return "TP within the NVLink domain, with CP in its place"
    return "a smaller tensor_model_parallel_size (CP or EP shard what it held)"


def _bubble(run: Run) -> str:
    if run.sizes.vpp == 1:
        return "virtual_pipeline_model_parallel_size > 1, or a larger global_batch_size"
    return "a larger global_batch_size, or a smaller pipeline_model_parallel_size"


def _launch(run: Run) -> str:
    graph = run.written.cuda_graph
    if graph.impl == "none":
        return "cuda_graph: {impl: transformer_engine, modules: [attn, moe_router, moe_preprocess]}"
    return "a larger micro_batch_size, fewer experts per rank (larger EP), or cuda_graph.impl: full_iteration"


def _optimizer(run: Run) -> str:
    if run.cpu_offload_fraction:
        return "a smaller optimizer.cpu_offload_fraction, or a larger global_batch_size"
    return "a larger global_batch_size"


_CHANGES = {
    "expert communication": _expert,
    "context-parallel communication": _context,
    "tensor-parallel communication": _tensor,
    "pipeline communication": lambda run: "virtual_pipeline_model_parallel_size > 1 with overlap_p2p_comm",
    "data-parallel communication": lambda run: "overlap.grad_reduce and overlap.param_gather, or a larger batch",
    "pipeline bubble": _bubble,
    "recompute": lambda run: "fewer recompute modules (see `moe-long-context recompute`)",
    "kernel launches": _launch,
    "optimizer": _optimizer,
}
