"""Seconds of a step: pipeline stages, bubbles, gradient reduction, optimizer. `step_time(run)` is the core of the tool.

Source of the schedules: megatron-core 0.19.2 megatron/core/pipeline_parallel/schedules.py (1F1B and interleaved 1F1B).
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from moe_long_context.catalog.architecture import Architecture, LayerKind
from moe_long_context.config.resolve import Run
from moe_long_context.mesh.partition import Partition
from moe_long_context.speed import collectives
from moe_long_context.speed.efficiency import Efficiency, traffic
from moe_long_context.speed.facts import Facts, facts_of
from moe_long_context.speed.flops import model_flops
from moe_long_context.speed.kernels import BF16_BYTES, Gemm, memory
from moe_long_context.speed.layers import LayerTime, layer_time
from moe_long_context.speed.parts import gemms


class Stage(NamedTuple):
    """Seconds of one pipeline rank for one microbatch, all of its chunks; parameters are counts on one rank."""

    compute: float
    recompute: float
    tp: float
    ep: float
    cp: float
    launch: float
    forward: float
    backward: float
    dense_parameters: float
    expert_parameters: float

    @property
    def total(self) -> float:
        """Forward, backward and replay of one microbatch."""
        return self.forward + self.backward


class StepTime(NamedTuple):
    """Seconds of one training step by cause; causes sum to `step_time_s`. FLOPs are Megatron's model FLOPs."""

    step_time_s: float
    compute_s: float
    recompute_s: float
    tp_s: float
    ep_s: float
    cp_s: float
    pp_s: float
    dp_s: float
    bubble_s: float
    launch_s: float
    optimizer_s: float
    model_flops: float
    num_gpus: int
    tokens: float
    num_microbatches: int
    stages: tuple[Stage, ...]

    @property
    def tflops_per_gpu(self) -> float:
        """Model TFLOP/s per GPU, as Megatron prints it."""
        return self.model_flops / self.step_time_s / self.num_gpus / 1e12

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and GPU."""
        return self.tokens / self.step_time_s / self.num_gpus


@lru_cache(maxsize=4096)
def _head(facts: Facts) -> tuple[float, float, float]:
    """(forward, backward, parameters) of the output layer and the loss on [tokens, vocabulary / TP]."""
    columns = facts.vocab / facts.tp
    time, parameters = gemms(facts, [Gemm(facts.tokens_cp, facts.arch.hidden_size, columns, fp8=False)])
    passes = memory(facts, facts.tokens_cp * columns * traffic().logits(facts.loss) / 2)
    return time.forward + passes, time.backward + passes, parameters


@lru_cache(maxsize=4096)
def _mtp_projection(facts: Facts) -> tuple[float, float, float]:
    hidden = facts.arch.hidden_size
    time, parameters = gemms(facts, [Gemm(facts.tokens_cp, 2 * hidden, hidden / facts.tp)])
    return time.forward, time.backward, parameters


Counts = tuple[tuple[tuple[LayerKind, int], ...], int, int]


@lru_cache(maxsize=8192)
def stage_counts(arch: Architecture, split: Partition) -> tuple[Counts, ...]:
    """For each pipeline rank: layer kinds with counts (MTP layers included), MTP depths, heads (loss and MTP)."""
    kinds = arch.layer_kinds
    out = []
    for rank in range(split.pp):
        chunks = split.of_rank(rank)
        count = Counter(kind for c in chunks for kind in kinds[c.first : c.first + c.layers])
        depths = sum(c.mtp for c in chunks)
        if depths:
            count[arch.mtp_layer_kind] += depths
        out.append((tuple(count.items()), depths, sum(c.loss for c in chunks) + depths))
    return tuple(out)


@lru_cache(maxsize=65536)
def stages_of(facts: Facts, split: Partition) -> tuple[Stage, ...]:
    """One microbatch of every pipeline rank."""
    return tuple(_stage(facts, *counts) for counts in stage_counts(facts.arch, split))


def _stage(facts: Facts, layers: tuple[tuple[LayerKind, int], ...], depths: int, heads: int) -> Stage:
    compute = recompute = tp = ep = cp = launch = forward = dense = expert = 0.0
    for kind, count in layers:
        t: LayerTime = layer_time(facts, kind)
        compute, recompute = compute + count * t.compute, recompute + count * t.recompute
        launch += count * t.launch
        tp, ep, cp = tp + count * t.tp, ep + count * t.ep, cp + count * t.cp
        forward += count * t.forward_share * (t.total - t.recompute)
        dense, expert = dense + count * t.dense_parameters, expert + count * t.expert_parameters
    for times, count in ((_head(facts), heads), (_mtp_projection(facts), depths)):
        if count:
            forward, compute = forward + count * times[0], compute + count * (times[0] + times[1])
            dense += count * times[2]
    total = compute + recompute + tp + ep + cp + launch
    return Stage(compute, recompute, tp, ep, cp, launch, forward, total - forward, dense, expert)


def _pipeline(run: Run, facts: Facts) -> float:
    """Exposed send and receive per microbatch: both directions of each chunk boundary; overlapped when interleaved."""
    s = run.sizes
    if s.pp == 1:
        return 0.0
    n_bytes = facts.tokens_sp * run.arch.hidden_size * BF16_BYTES
    speed = facts.rates.nvlink if s.num_gpus <= facts.rates.domain else facts.rates.nic * facts.eff.nic
    hidden = s.vpp > 1 and run.written.overlap.p2p is not False
    return 0.0 if hidden else 2 * n_bytes / speed


def _data_parallel(run: Run, facts: Facts, stage: Stage) -> float:
    """Exposed reduce-scatter of gradients and all-gather of parameters, dense over DP*CP, experts over EDP.

    Once a step; with Megatron-FSDP of parameters once a microbatch, parameters twice (forward and backward).
    """
    if facts.frozen:
        return 0.0
    s, o, e = run.sizes, run.written.overlap, facts.eff
    grad = 2 if run.grad_dtype != "fp32" else 4
    width = 1 if run.fp8_primary_weights else BF16_BYTES
    dense_span, expert_span = s.tp * s.cp * s.dp, s.etp * s.ep * s.edp
    spans = ((stage.dense_parameters, s.dense_shards, dense_span), (stage.expert_parameters, s.edp, expert_span))
    reduce = sum(collectives.ring(facts, n * grad, group, span) for n, group, span in spans)
    gather = sum(collectives.ring(facts, n * width, group, span) for n, group, span in spans)
    if run.written.fsdp.enabled and run.written.fsdp.sharding in (None, "optim_grads_params"):
        left = max(reduce - e.dp_hidden * stage.backward, reduce * e.dp_tail)
        left += max(2 * gather - e.dp_hidden * stage.total, 2 * gather * e.dp_tail)
        return max(run.num_microbatches, 1) * left
    if not run.distributed_optimizer:
        reduce, gather = 2 * reduce, 0.0
    hide = e.dp_hidden if o.grad_reduce is not False else 0.0
    hide_gather = e.dp_hidden if o.param_gather is not False else 0.0
    tail = e.dp_tail
    return max(reduce - hide * stage.backward, reduce * tail) + max(gather - hide_gather * stage.forward, gather * tail)


def _optimizer(run: Run, facts: Facts, stage: Stage) -> float:
    """Update of the local shard on the GPU, and of the offloaded share on the host, plus the fixed part of a step."""
    s = run.sizes
    if facts.frozen:
        return facts.eff.step_overhead_s
    if run.distributed_optimizer or run.written.fsdp.enabled:
        local = stage.dense_parameters / s.dense_shards + stage.expert_parameters / max(s.edp, 1)
    else:
        local = stage.dense_parameters + stage.expert_parameters
    on_gpu = local * (1 - run.cpu_offload_fraction)
    seconds = memory(facts, on_gpu * traffic().optimizer_step)
    on_host = local * run.cpu_offload_fraction / (facts.eff.cpu_adam_gparams_s * 1e9)
    return seconds + on_host + facts.eff.step_overhead_s


def step_time(run: Run, eff: Efficiency | None = None) -> StepTime:
    """One step of a run whose mesh fits; `eff` replaces the platform's parameters (calibration).

    Raises:
        InvalidLayoutError: the layers do not split as asked.
    """
    return step_time_of(run, facts_of(run, eff))


def step_time_of(run: Run, facts: Facts) -> StepTime:
    """One step of a run under other facts than its own.

    m microbatches through stages of t_i seconds take m * max(t) + (sum(t) - max(t)) / VPP: the pipeline fills and
    drains once, in chunks of 1/VPP of a stage.
    """
    s = run.sizes
    stages = stages_of(facts, run.partition)
    totals = [stage.total for stage in stages]
    slowest = max(range(len(stages)), key=totals.__getitem__)
    stage, m = stages[slowest], max(run.num_microbatches, 1)
    bubble = (sum(totals) - totals[slowest]) / s.vpp
    pp = _pipeline(run, facts) * m
    dp, optimizer = _data_parallel(run, facts, stage), _optimizer(run, facts, stage)
    seconds = m * stage.total + bubble + pp + dp + optimizer
    sequences = m * run.micro_batch_size * max(s.dp, 1)
    return StepTime(
        seconds, m * stage.compute, m * stage.recompute, m * stage.tp, m * stage.ep, m * stage.cp, pp, dp, bubble,
        m * stage.launch, optimizer, model_flops(run.arch, run.seq_length, sequences, s.tp), s.num_gpus,
        float(sequences * run.seq_length), m, stages,
    )  # fmt: skip
