"""The layout search: every mesh of `space`, every recompute set and offload, the best by objective. Exact by bounds.

A mesh's time without recompute and offload is a lower bound of its time with them, so meshes are visited by that bound
and the visit ends when the bound passes the worst plan kept. What was not visited is counted as slower.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any, NamedTuple

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.resolve import Run
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import InvalidLayoutError
from moe_long_context.memory.capacity import peak_interval, verdict
from moe_long_context.memory.estimate import MemoryEstimate, estimate
from moe_long_context.memory.parameters import layer_parameters
from moe_long_context.memory.schedule import warmup_forwards
from moe_long_context.planning.layouts import split_fields
from moe_long_context.planning.recompute_sets import FULL, RecomputeChoice, worthwhile
from moe_long_context.planning.space import Limits, Mesh, meshes
from moe_long_context.rules.registry import errors_only
from moe_long_context.speed import StepTime, step_time
from moe_long_context.units import BYTES_PER_DTYPE

OFFLOADS = (0.0, 1.0)
VERDICT_RANK = {"yes": 0, "tight": 1, "no": 2}


class Plan(NamedTuple):
    """One plan that fits: its configuration and both estimates."""

    config: RunConfig
    run: Run
    memory: MemoryEstimate
    time: StepTime
    fits: str
    recompute: RecomputeChoice
    offload: float

    @property
    def order(self) -> tuple[int, float]:
        """Fitting before tight, then seconds per token."""
        return VERDICT_RANK[self.fits], seconds_per_token(self.time)


class Wall(NamedTuple):
    """The closest miss: how much the best candidate lacks and where its bytes are."""

    config: RunConfig
    missing_bytes: float
    components: dict[str, float]


class SearchResult(NamedTuple):
    """Plans best first, and what became of every candidate."""

    plans: tuple[Plan, ...]
    searched: int
    rejected: dict[str, int]
    wall: Wall | None


def seconds_per_token(time: StepTime) -> float:
    """GPU-seconds a token: comparable between batches and GPU counts."""
    return 1.0 / max(time.tokens_per_s_per_gpu, 1e-30)


def search(
    base: RunConfig, limits: Limits, top: int, allow_offload: bool = True, objective: str = "throughput"
) -> SearchResult:
    """The `top` fastest layouts of `base` that fit.

    `base` holds model, GPU, count, length and whatever else is pinned; sizes in it are the pinned ones.
    """
    first = Run(base)
    rejected: Counter[str] = Counter()
    bounded: list[tuple[float, int, Mesh, Run]] = []
    searched = 0
    nearest: tuple[float, Mesh] | None = None
    for mesh in meshes(first.arch, first.num_gpus, first.seq_length, limits, rejected):
        searched += 1
        reason, item, lack = _bounded(base, first, mesh)
        if item is None:
            rejected[reason] += 1
            nearest = (lack, mesh) if lack > 0 and (nearest is None or lack < nearest[0]) else nearest
        else:
            bounded.append((item[0], searched, mesh, item[1]))
    searched += sum(rejected.values()) - _within(rejected)
    bounded.sort(key=lambda entry: entry[:2])
    plans, wall = _visit(bounded, top, allow_offload, rejected)
    if not plans and wall is None and nearest is not None:
        wall = _wall_of(base, first, nearest[1], allow_offload)
    if objective == "memory":
        plans.sort(key=lambda plan: plan.memory.peak.peak_bytes)
    return SearchResult(tuple(plans), searched, dict(rejected), wall if not plans else None)


MESH_REASONS = (
    "states exceed the GPU", "activations exceed the GPU even with full recompute", "batch too small",
    "layers do not split",
)  # fmt: skip


def _within(rejected: Counter[str]) -> int:
    """Rejections of enumerated meshes, already counted in `searched`."""
    return sum(rejected[reason] for reason in MESH_REASONS)


def _bounded(base: RunConfig, first: Run, mesh: Mesh) -> tuple[str, tuple[float, Run] | None, float]:
    """Why a mesh falls out, or (seconds a token, run); and the bytes it lacks for certain."""
    states, rest = least_bytes(first, mesh)
    lack = states + rest - first.gpu.memory_bytes
    if states > first.gpu.memory_bytes:
        return "states exceed the GPU", None, lack
    if lack > 0:
        return "activations exceed the GPU even with full recompute", None, lack
    config = config_of(base, first, mesh)
    if config is None:
        return "batch too small", None, lack
    run = Run(config)
    try:
        return "", (seconds_per_token(step_time(run)), run), lack
    except InvalidLayoutError:
        return "layers do not split", None, lack


def _wall_of(base: RunConfig, first: Run, mesh: Mesh, allow_offload: bool) -> Wall | None:
    """The full estimate of a mesh that its lower bound already ruled out, for telling what stops it."""
    config = config_of(base, first, mesh)
    try:
        return _refused(_leanest(Run(config), allow_offload)) if config is not None else None
    except InvalidLayoutError:
        return None


def least_bytes(run: Run, mesh: Mesh) -> tuple[float, float]:
    """Lower bounds of (states, activations) in bytes on the fullest rank of a mesh.

    States: weights and gradients of an average stage (optimizer states may be offloaded). Activations: only the inputs
    of layers for the microbatches in flight on the first rank, and one attention forward.
    """
    states = _layer_elements(run.arch, mesh.tp, mesh.ep, mesh.etp) / mesh.pp * (2 + BYTES_PER_DTYPE[run.grad_dtype])
    if run.written.fsdp.enabled:
        states /= max(run.num_gpus // mesh.pp, 1)
    tokens = run.seq_length / mesh.cp * mesh.mbs
    chunks = warmup_forwards(mesh.pp, 0, mesh.vpp, 1 << 30, mesh.pp) + 1 if mesh.vpp > 1 else mesh.pp
    layers = run.arch.num_layers / (mesh.pp * mesh.vpp)
    inputs = chunks * layers * tokens / mesh.tp * run.arch.hidden_size * 2
    return states, inputs * LEAST_SHARE + _core_forward(run, mesh)


LEAST_SHARE = 0.5
"""Of the full-recompute inputs that any plan keeps at least: block and uniform-n recompute may keep fewer than all."""


@lru_cache(maxsize=16384)
def _layer_elements(arch: Architecture, tp: int, ep: int, etp: int) -> float:
    kinds = Counter(arch.layer_kinds)
    parts = {kind: layer_parameters(arch, kind, tp, ep, etp) for kind in kinds}
    return float(sum(count * (parts[kind].dense + parts[kind].expert) for kind, count in kinds.items()))


def _core_forward(run: Run, mesh: Mesh) -> float:
    """The ring's buffers when the run is pinned to p2p (or takes it by default), else nothing."""
    if mesh.cp == 1 or mesh.comm != "p2p":
        return 0.0
    a = run.arch
    heads = a.num_attention_heads / mesh.tp
    if a.multi_latent_attention:
        width = heads * ((a.qk_head_dim or 0) + (a.qk_pos_emb_head_dim or 0) + 2 * (a.v_head_dim or 0))
    else:
        width = (2 * max(a.num_query_groups / mesh.tp, 1) + heads) * a.kv_channels
    full = any(kind.attention in ("gqa", "mla") for kind in a.layer_kinds)
    return run.seq_length * mesh.mbs * width * 2 if full else 0.0


def config_of(base: RunConfig, first: Run, mesh: Mesh) -> RunConfig | None:
    """The run configuration of a mesh, None when the batch cannot fill it."""
    dp = first.num_gpus // (mesh.tp * mesh.cp * mesh.pp)
    batch = _batch(base, mesh, dp)
    if batch is None:
        return None
    update: dict[str, Any] = {
        "tensor_model_parallel_size": mesh.tp, "context_parallel_size": mesh.cp,
        "pipeline_model_parallel_size": mesh.pp,
        "expert_model_parallel_size": mesh.ep, "expert_tensor_parallel_size": mesh.etp, "micro_batch_size": mesh.mbs,
        "sequence_parallel": mesh.tp > 1, "global_batch_size": batch, "virtual_pipeline_model_parallel_size": None,
    }  # fmt: skip
    if mesh.cp > 1:
        update["cp_comm_type"] = mesh.comm
        update["hierarchical_context_parallel_sizes"] = (mesh.inner, mesh.cp // mesh.inner) if mesh.inner > 1 else None
    if base.dispatcher is None and first.arch.is_moe:
        update["dispatcher"] = dispatcher_for(first, mesh)
    if base.pipeline_model_parallel_layout is None:
        update.update(split_fields(first.arch.num_layers, first.mtp, mesh.pp, mesh.vpp) or {})
    elif mesh.vpp > 1:
        update["virtual_pipeline_model_parallel_size"] = mesh.vpp
    return base.model_copy(update=update)


DEEPEP_RANKS = frozenset((2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160))
"""Group sizes that DeepEP has configurations for. Source: deepseek-ai/DeepEP deep_ep/buffer.py get_dispatch_config."""


def dispatcher_for(run: Run, mesh: Mesh) -> str:
    """The released recipes' choice: HybridEP on Grace-Blackwell, DeepEP on Hopper and HGX Blackwell, else alltoall."""
    span = mesh.ep * mesh.etp
    if span == 1 or run.gpu.compute_capability < 9:
        return "alltoall"
    if run.gpu.nvlink_domain > 8:
        return "hybridep"
    return "deepep" if span in DEEPEP_RANKS else "alltoall"


def _batch(base: RunConfig, mesh: Mesh, dp: int) -> int | None:
    unit = dp * mesh.mbs
    if base.global_batch_size is not None:
        enough = base.global_batch_size % unit == 0 and (mesh.vpp == 1 or base.global_batch_size // unit >= mesh.pp)
        rest = base.global_batch_size // unit % mesh.pp
        return base.global_batch_size if enough and (mesh.vpp == 1 or rest == 0) else None
    return unit * (4 * mesh.pp if mesh.pp > 1 else 1)


def _visit(
    bounded: list[tuple[float, int, Mesh, Run]], top: int, allow_offload: bool, rejected: Counter[str]
) -> tuple[list[Plan], Wall | None]:
    kept: list[Plan] = []
    wall: Wall | None = None
    too_big: dict[Mesh, int] = {}
    for index, (bound, _, mesh, run) in enumerate(bounded):
        if len(kept) >= top and kept[-1].fits == "yes" and bound > seconds_per_token(kept[-1].time):
            rejected["slower than the plans shown"] += len(bounded) - index
            break
        size = mesh._replace(mbs=0)
        if mesh.mbs >= too_big.get(size, mesh.mbs + 1):
            rejected["does not fit in memory"] += 1
            continue
        full = len(kept) >= top and kept[-1].fits == "yes"
        plan, miss = best_of_mesh(run, allow_offload, seconds_per_token(kept[-1].time) if full else float("inf"))
        if plan is None and miss is None:
            rejected["slower than the plans shown"] += 1
            continue
        if plan is None:
            too_big[size] = min(mesh.mbs, too_big.get(size, mesh.mbs))
            rejected["does not fit in memory"] += 1
            wall = miss if wall is None or (miss and miss.missing_bytes < wall.missing_bytes) else wall
            continue
        broken = errors_only(plan.run)
        if broken:
            rejected[f"refused: {broken[0]}"] += 1
            continue
        kept.append(plan)
        kept.sort(key=lambda p: p.order)
        if len(kept) > top:
            kept.pop()
            rejected["slower than the plans shown"] += 1
    return kept, wall


def best_of_mesh(run: Run, allow_offload: bool = True, cutoff: float = float("inf")) -> tuple[Plan | None, Wall | None]:
    """The fastest recompute and offload of one mesh that fits, else how much the leanest lacks.

    `cutoff` in GPU-seconds a token: nothing slower is looked for. (None, None) = it would fit, but slower.
    """
    lack = _refused(_leanest(run, allow_offload))
    if lack is not None:
        return None, lack
    best: Plan | None = None
    for offload in _offloads(run, allow_offload):
        plan = _cheapest(
            run, offload, min(cutoff, seconds_per_token(best.time)) if best and best.fits == "yes" else cutoff
        )
        if plan is not None and (best is None or plan.order < best.order):
            best = plan
    return best, None


def _offloads(run: Run, allow_offload: bool) -> tuple[float, ...]:
    pinned = run.written.optimizer.cpu_offload_fraction is not None or not allow_offload
    return (run.cpu_offload_fraction,) if pinned else OFFLOADS


def _cheapest(run: Run, offload: float, cutoff: float) -> Plan | None:
    """The first of the recompute choices, dearer ones keeping less, that fits at this offload; by bisection."""
    pinned = run.written.recompute is not None
    sets = (_pinned(run),) if pinned else worthwhile(run)
    judged: dict[int, tuple[Run, str]] = {}

    def fits(index: int) -> str:
        if index not in judged:
            variant = variant_of(run, None if pinned else sets[index], offload)
            judged[index] = (variant, _fits(variant))
        return judged[index][1]

    def too_slow(index: int) -> bool:
        return seconds_per_token(step_time(variant_of(run, None if pinned else sets[index], offload))) > cutoff

    if too_slow(0):
        return None
    for wanted in (("yes",), ("yes", "tight")) if cutoff == float("inf") else (("yes",),):
        if fits(len(sets) - 1) not in wanted:
            continue
        low, high = 0, len(sets) - 1
        while low < high:
            middle = (low + high) // 2
            if fits(middle) in wanted:
                high = middle
            elif cutoff < float("inf") and too_slow(middle + 1):
                return None
            else:
                low = middle + 1
        variant, verdict_ = judged[low] if low in judged else (fits(low), judged[low])[1]
        return Plan(variant.written, variant, estimate(variant), step_time(variant), verdict_, sets[low], offload)
    return None


def _fits(run: Run) -> str:
    if _refused(run) is not None:
        return "no"
    return verdict(run, peak_interval(run, estimate(run).peak))


def _refused(run: Run) -> Wall | None:
    """How much the likely fullest ranks (first, second, last) lack, None when they may fit."""
    last = run.sizes.pp - 1
    stage = estimate(run, sorted({0, min(1, last), last})).peak
    if verdict(run, peak_interval(run, stage)) != "no":
        return None
    return Wall(run.written, stage.peak_bytes - run.gpu.memory_bytes, dict(stage.components))


def _pinned(run: Run) -> RecomputeChoice:
    modules = tuple(sorted(run.recompute_modules))
    return RecomputeChoice(run.recompute_granularity, run.recompute_method, run.recompute_num_layers, modules)


def _leanest(run: Run, allow_offload: bool) -> Run:
    offload = 1.0 if allow_offload and run.written.optimizer.cpu_offload_fraction is None else run.cpu_offload_fraction
    return variant_of(run, None if run.written.recompute is not None else FULL, offload)


def variant_of(run: Run, choice: RecomputeChoice | None, offload: float) -> Run:
    """The run with another recompute choice and optimizer offload fraction."""
    update: dict[str, Any] = {}
    if choice is not None:
        from moe_long_context.config.sections import Recompute

        update["recompute"] = Recompute.model_validate({k: v for k, v in choice.fields.items() if v is not None})
    if offload != run.cpu_offload_fraction:
        section = {
            "cpu_offload_fraction": offload or None,
            "precision_aware": True if offload else run.written.optimizer.precision_aware,
        }
        update["optimizer"] = run.written.optimizer.model_copy(update=section)
    return Run(run.written.model_copy(update=update)) if update else run
