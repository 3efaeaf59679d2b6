"""`estimate_throughput`: step time, tokens/s and model TFLOP/s of a run, by cause, with an interval."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.results import Evidence, Frozen
from moe_long_context.speed.bottleneck import bottleneck
from moe_long_context.speed.efficiency import interval
from moe_long_context.speed.flops import megatron_lm_flops, model_flops
from moe_long_context.speed.schedule import StepTime, step_time
from moe_long_context.speed.stand_in import notes, spread
from moe_long_context.tools._tool import Draft, Options, tool

COUNTERS_EQUAL = 1e-9
"""Two counts that differ by less add the same terms in another order."""


class ThroughputOptions(Options):
    """No options beyond the run configuration."""


class ExposedCommunication(Frozen):
    """Seconds per step that communication adds after overlap, by kind."""

    tensor_parallel_s: float
    expert_parallel_s: float
    context_parallel_s: float
    pipeline_s: float
    data_parallel_s: float


class Breakdown(Frozen):
    """Seconds of the step by cause, on the slowest pipeline stage; they sum to the step time."""

    compute_s: float
    exposed_communication: ExposedCommunication
    bubble_s: float
    recompute_s: float
    launch_s: float
    optimizer_s: float


class BottleneckResult(Frozen):
    """The largest cause of lost time and the change that attacks it."""

    name: str
    share_of_step: float
    change: str


class StageTime(Frozen):
    """Seconds of one microbatch on one pipeline rank, all its virtual stages together."""

    stage: int
    forward_s: float
    backward_s: float
    compute_s: float
    communication_s: float
    recompute_s: float
    launch_s: float


class ThroughputResult(Frozen):
    """What a step takes. TFLOP/s are model FLOPs as Megatron counts and prints them."""

    step_time_s: float
    tokens_per_s_per_gpu: float
    model_tflops_per_gpu: float
    mfu: float = Field(description="model_tflops_per_gpu / mfu_peak_tflops")
    mfu_peak: str
    mfu_peak_tflops: float
    interval_tflops: tuple[float, float] = Field(description="90 % of the calibration rows lie inside such an interval")
    model_flops_per_step: float
    num_microbatches: int
    breakdown: Breakdown
    bottleneck: BottleneckResult
    stages: tuple[StageTime, ...]
    basis: Literal["modelled"] = "modelled"


def _breakdown(step: StepTime) -> Breakdown:
    exposed = ExposedCommunication(
        tensor_parallel_s=step.tp_s, expert_parallel_s=step.ep_s, context_parallel_s=step.cp_s, pipeline_s=step.pp_s,
        data_parallel_s=step.dp_s,
    )  # fmt: skip
    return Breakdown(
        compute_s=step.compute_s, exposed_communication=exposed, bubble_s=step.bubble_s, recompute_s=step.recompute_s,
        launch_s=step.launch_s, optimizer_s=step.optimizer_s,
    )  # fmt: skip


def _stages(step: StepTime) -> tuple[StageTime, ...]:
    return tuple(
        StageTime(
            stage=index, forward_s=stage.forward, backward_s=stage.backward, compute_s=stage.compute,
            communication_s=stage.tp + stage.ep + stage.cp, recompute_s=stage.recompute, launch_s=stage.launch,
        )
        for index, stage in enumerate(step.stages)
    )  # fmt: skip


def _peak(run: Run) -> tuple[str, float]:
    """The peak that MFU divides by: of the GEMM precision, dense, from the GPU catalog."""
    if run.precision == "nvfp4" and run.gpu.nvfp4_tflops:
        return f"{run.gpu.id} NVFP4 dense", run.gpu.nvfp4_tflops
    if run.precision != "bf16" and run.gpu.fp8_tflops:
        return f"{run.gpu.id} FP8 dense", run.gpu.fp8_tflops
    return f"{run.gpu.id} BF16 dense", run.gpu.bf16_tflops


def _counter(run: Run) -> tuple[str, ...]:
    """How Megatron-LM's own count of the same step differs, where it does and that front end is asked about."""
    if run.bridge:
        return ()
    ratio = megatron_lm_flops(run.arch, run.seq_length, 1, run.sizes.tp) / model_flops(
        run.arch, run.seq_length, 1, run.sizes.tp
    )
    if abs(ratio - 1) < COUNTERS_EQUAL:
        return ()
    return (f"model FLOPs by Bridge's counter; Megatron-LM prints {ratio:.3f} times as many TFLOP/s",)


def _assumptions(run: Run) -> tuple[str, ...]:
    """The run's defaults, with what speed takes where the configuration is silent in their place."""
    own = (*notes(run), *_counter(run))
    taken = {note.split(" = ", 1)[0] for note in own}
    return (*(a for a in run.assumptions if a.split(" = ", 1)[0] not in taken), *own)


def throughput_result(run: Run) -> ThroughputResult:
    """The typed result for a resolved run.

    Raises:
        InvalidLayoutError: the sizes leave no run to time.
    """
    run.require_mesh()
    step = step_time(run)
    name, peak = _peak(run)
    tflops = step.tflops_per_gpu
    found = bottleneck(run, step)
    band, (slow, fast) = interval(), spread(run, step)
    return ThroughputResult(
        step_time_s=step.step_time_s, tokens_per_s_per_gpu=step.tokens_per_s_per_gpu, model_tflops_per_gpu=tflops,
        mfu=tflops / peak, mfu_peak=name, mfu_peak_tflops=peak,
        interval_tflops=(tflops * band[0] * slow, tflops * band[1] * fast),
        model_flops_per_step=step.model_flops, num_microbatches=step.num_microbatches, breakdown=_breakdown(step),
        bottleneck=BottleneckResult(name=found.name, share_of_step=found.share, change=found.change),
        stages=_stages(step),
    )  # fmt: skip


@tool("throughput", ThroughputOptions, ThroughputResult)
def estimate_throughput(config: RunConfig, options: ThroughputOptions) -> Draft:
    """Step time, tokens/s/GPU, model TFLOP/s/GPU and MFU of a run, with what the step spends its time on.

    Raises:
        InputError: a needed fact is missing.
        InvalidLayoutError: the sizes leave no run to time.
    """
    run = resolve(config)
    result = throughput_result(run)
    return Draft(result, assumptions=_assumptions(run), evidence=_EVIDENCE)


_EVIDENCE = (
    Evidence(
        what="step time: white-box model, its named efficiencies fitted to published Megatron runs",
        basis="modelled",
        source="speed/data/efficiency.yaml; evals/calibration/fit_speed.py",
    ),
    Evidence(
        what="model FLOPs: equal to Megatron Bridge's own counter",
        basis="exact",
        source="megatron-bridge 0.6.2 megatron/bridge/training/utils/flop_utils.py",
    ),
)
