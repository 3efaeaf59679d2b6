"""Causes of a failed device allocation: where it happened, how big it was, and how the memory was held."""

from __future__ import annotations

from collections.abc import Iterator

from moe_long_context.diagnosis.case import Case
from moe_long_context.diagnosis.cause import Cause
from moe_long_context.diagnosis.events import OutOfMemory
from moe_long_context.diagnosis.places import words_for
from moe_long_context.diagnosis.tensors import matches
from moe_long_context.memory.capacity import peak_interval, verdict
from moe_long_context.memory.estimate import StageEstimate
from moe_long_context.units import GIB, gib

ACTIVATION_PLACES = frozenset({
    "attention", "experts", "dispatch", "mlp", "norm", "layer", "recompute", "backward", "linear_attention",
    "embedding", "pipeline",
})  # fmt: skip
ROUTED_PLACES = frozenset({"experts", "dispatch"})
STATE_PLACES = frozenset({"grad_buffer", "build", "checkpoint"})

LATE_STEPS = 20
"""Steps after which static memory and the first microbatches cannot be the reason any more."""
FRAGMENTED_SHARE = 0.05
"""Share of the device that is reserved but unused from which fragmentation is worth naming; running jobs show 3-9 %
(SimuMax B200 runs: reserved over allocated 1.03 to 1.09)."""
LARGEST_DEVICE_BYTES = 288 * GIB
"""No training GPU of the catalog has more; used where the GPU was not given."""
FRAGMENTED_RATIO = 1.15
"""Reserved over allocated above which fragmentation is worth naming; B200 runs show 1.03 to 1.09."""
POOLS_SHARE = 0.08
"""Share of the device in CUDA-graph pools from which they are worth naming."""
OUTSIDE_USUAL_BYTES = 4 * GIB
"""CUDA context, NCCL and DeepEP of a healthy job stay below this."""
OTHERS_BYTES = 1 * GIB
UNEVEN = 1.25
"""Ratio of stage peaks from which moving layers is worth proposing."""
WORTH_A_SHARE = 0.10
STATES_WORTH_A_SHARE = 0.4
"""Share of the device from which sharding weights, gradients and optimizer further is worth proposing."""
STATIC_SHARE = 0.92
"""Share of the device from which weights, gradients and optimizer leave no room for a step."""


def memory_causes(case: Case) -> Iterator[Cause]:
    """What a failed allocation, a snapshot and the estimate say; nothing when memory is not the matter."""
    event = case.oom
    if case.snapshot is not None:
        yield from _snapshot_causes(case)
    yield from _report_causes(case)
    yield from _told_causes(case)
    if event is not None:
        yield from _place_causes(case, event)
        yield from _size_causes(case, event)
        yield from _holding_causes(case, event)
        yield from _stage_causes(case, event)
    if case.died_of_memory:
        yield from _estimate_causes(case)
        yield from _time_causes(case, event)


def _place_causes(case: Case, event: OutOfMemory) -> Iterator[Cause]:
    where = f"the allocation failed in {words_for(event.place)}" if event.place else ""
    first_step = event.iteration is None or event.iteration <= 1
    match event.place:
        case "loss":
            yield Cause("logits_crossentropy_peak", 0.9, where)
        case "mask":
            yield Cause("dense_attention_mask", 0.88, where)
        case "graph":
            yield Cause("cuda_graph_static_buffers", 0.9, where)
        case "optimizer" if first_step:
            text = f"{where} before a second step was printed; its state is allocated in the first step"
            yield Cause("optimizer_state_lazy_alloc", 0.88, text)
        case "optimizer":
            text = f"{where} at step {event.iteration} or later, when its state exists already"
            yield Cause("regression_after_upgrade", 0.4, f"{text}: look for what changed since it last ran")
            yield Cause("fragmentation", 0.5, f"{text}: the copies of a step find no block of that size")
        case place if place in STATE_PLACES:
            yield Cause("model_states", 0.85, where)
        case place if place in ACTIVATION_PLACES:
            late = event.iteration is not None and event.iteration >= LATE_STEPS
            yield Cause("activations", 0.45 if late else 0.7, where)
            if place in ROUTED_PLACES:
                yield Cause("expert_imbalance", 0.4, f"{where}, whose size follows the tokens that are routed here")


def _size_causes(case: Case, event: OutOfMemory) -> Iterator[Cause]:
    """The size of the request, matched with the tensors of the model."""
    if event.requested is None or not case.knows_model or "seq_length" in case.run.missing:
        return
    found = matches(case.run, event.requested, event.place)
    if not found:
        return
    tensor = found[0].tensor
    text = f"{gib(event.requested):.2f} GiB is {tensor.name}: {tensor.formula}"
    same_place = tensor.place == event.place
    table = {
        "loss": ("logits_crossentropy_peak", 0.85),
        "mask": ("dense_attention_mask", 0.85),
        "optimizer": ("optimizer_state_lazy_alloc", 0.5),
        "grad_buffer": ("model_states", 0.6),
    }
    cause, confidence = table.get(tensor.place, ("activations", 0.5))
    if event.place is None or same_place:
        yield Cause(cause, confidence, text)


def _holding_causes(case: Case, event: OutOfMemory) -> Iterator[Cause]:
    """How the device's memory was held when the allocation failed."""
    total = event.capacity or (case.run.gpu.memory_bytes if "gpu" not in case.run.missing else 80 * GIB)
    unused, asked = event.reserved_unallocated, event.requested or 0.0
    if unused is not None and unused >= max(asked, 1) and unused >= total * FRAGMENTED_SHARE:
        text = (
            f"{gib(unused):.2f} GiB is reserved but not allocated while {gib(asked):.2f} GiB could not be had: "
            "enough memory, in pieces that are too small"
        )
        yield Cause("fragmentation", 0.92, text)
    elif unused is not None and unused >= 2 * total * FRAGMENTED_SHARE:
        yield Cause("fragmentation", 0.5, f"{gib(unused):.2f} GiB is reserved but not allocated")
    if event.private_pools and event.private_pools >= total * POOLS_SHARE:
        text = f"{gib(event.private_pools):.2f} GiB lies in the private pools of CUDA graphs"
        yield Cause("cuda_graph_static_buffers", 0.75, text)
    if event.other_processes and event.other_processes >= OTHERS_BYTES:
        text = f"other processes hold {gib(event.other_processes):.2f} GiB of this GPU"
        yield Cause("other_process_on_gpu", 0.7, text, missing=("rollout_memory_share",))
    outside = event.outside_allocator
    if outside and outside >= OUTSIDE_USUAL_BYTES:
        text = f"{gib(outside):.2f} GiB of this process is outside PyTorch's allocator (context, NCCL, DeepEP)"
        yield Cause("communication_buffers", 0.5, text)
    known = "gpu" not in case.run.missing
    if event.capacity and known and event.capacity < 0.9 * case.run.gpu.memory_bytes:
        text = f"the device has {gib(event.capacity):.1f} GiB, a {case.run.gpu.id} has {case.run.gpu.memory_gib:.1f}"
        yield Cause("wrong_gpu", 0.6, text)


def _stage_causes(case: Case, event: OutOfMemory) -> Iterator[Cause]:
    """The stage of the rank that failed, against the others."""
    stage = case.stage_of(event.rank)
    if case.memory is None or stage is None or len(case.memory.stages) == 1:
        return
    peaks = [each.peak_bytes for each in case.memory.stages]
    text = f"rank {event.rank} is on pipeline stage {stage}, estimated at {gib(peaks[stage]):.1f} GiB"
    if peaks[stage] == max(peaks) and max(peaks) > UNEVEN * min(peaks):
        yield Cause("uneven_pipeline_stages", 0.5, f"{text}; the lightest stage needs {gib(min(peaks)):.1f} GiB")
    elif peaks[stage] < max(peaks) / UNEVEN:
        fullest = peaks.index(max(peaks))
        more = (
            f"the fullest should be stage {fullest} with {gib(max(peaks)):.1f} GiB: check the rank order and the layout"
        )
        yield Cause("unexpected_stage", 0.4, f"{text}; {more}")


def _snapshot_causes(case: Case) -> Iterator[Cause]:
    snapshot = case.snapshot
    if snapshot is None or not snapshot.reserved:
        return
    asked = snapshot.failed_request or 0
    if snapshot.free_inside >= max(asked, snapshot.reserved * FRAGMENTED_SHARE) and snapshot.largest_free < max(
        asked, 1
    ):
        text = (
            f"{gib(snapshot.free_inside):.2f} GiB is free inside the allocator, "
            f"the largest piece {gib(snapshot.largest_free):.2f} GiB"
        )
        yield Cause("fragmentation", 0.93, text)
    if snapshot.graph_pools >= snapshot.reserved * POOLS_SHARE:
        yield Cause("cuda_graph_static_buffers", 0.7, f"{gib(snapshot.graph_pools):.2f} GiB lies in graph pools")
    for place, size in snapshot.by_place[:3]:
        cause = _cause_of_place(place)
        if cause and size >= snapshot.active * WORTH_A_SHARE:
            share = size / max(snapshot.active, 1)
            text = f"{gib(size):.2f} GiB ({share:.0%}) of what is alive was allocated in {words_for(place)}"
            yield Cause(cause, min(0.45 + 0.4 * share, 0.85), text)


def _cause_of_place(place: str) -> str | None:
    if place in ACTIVATION_PLACES:
        return "activations"
    if place in STATE_PLACES or place == "optimizer":
        return "model_states"
    return {
        "loss": "logits_crossentropy_peak",
        "mask": "dense_attention_mask",
        "graph": "cuda_graph_static_buffers",
    }.get(place)


def _estimate_causes(case: Case) -> Iterator[Cause]:
    """The largest parts of the estimated peak, on the stage that peaks."""
    if case.memory is None:
        return
    worst = case.memory.peak
    known_gpu = "gpu" not in case.run.missing
    if known_gpu and verdict(case.run, peak_interval(case.run, worst)) == "yes":
        yield from _fits_by_estimate(case, worst)
    capacity = case.run.gpu.memory_bytes if known_gpu else LARGEST_DEVICE_BYTES
    known_place = 0.6 if case.oom is not None and case.oom.place else 1.0
    most_static = max(case.memory.stages, key=lambda stage: stage.static_bytes)
    if most_static.static_bytes >= capacity * STATIC_SHARE and not _refuted(case, most_static.static_bytes):
        text = (
            f"weights, gradients and optimizer alone need {gib(most_static.static_bytes):.1f} of "
            f"{gib(capacity):.1f} GiB on stage {most_static.stage}"
        )
        seen_elsewhere = case.oom is not None and case.oom.place is not None and case.oom.place not in STATE_PLACES
        yield Cause("model_states", 0.8 if seen_elsewhere else 0.95, text)
        known_place = 0.6
    yield from _component_causes(worst, known_place, capacity)


def _fits_by_estimate(case: Case, worst: StageEstimate) -> Iterator[Cause]:
    """The run should fit: what the estimate cannot see."""
    text = f"the run itself is estimated at {gib(worst.peak_bytes):.1f} of {case.run.gpu.memory_gib:.1f} GiB"
    share = 0.45 if case.is_rl else 0.3
    missing = ("rollout_memory_share",) if case.is_rl else ()
    yield Cause("other_process_on_gpu", share, f"{text}; something beside training may hold memory", missing=missing)
    yield Cause("fragmentation", 0.3, text, missing=("allocated_vs_reserved",))


def _refuted(case: Case, static_bytes: float) -> bool:
    """Whether the log shows that less was allocated outside the optimizer's first step than the estimate says."""
    event = case.oom
    if event is None or event.allocated is None or event.place in STATE_PLACES | {"optimizer", None}:
        return False
    return event.allocated < 0.9 * static_bytes


def _component_causes(worst: StageEstimate, factor: float, capacity: float) -> Iterator[Cause]:
    parts = worst.components
    peak = worst.peak_bytes
    held = parts["activations"] + parts["working_set"]
    logits = max((phase.logits for phase in worst.phases), default=0.0)
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    where = f"of the {gib(peak):.1f} GiB estimated for stage {worst.stage} (modelled)"
    for cause, size in (("activations", held), ("logits_crossentropy_peak", logits), ("model_states", states)):
        share = size / peak
        states_only = cause == "model_states"
        if share >= WORTH_A_SHARE and (not states_only or size >= capacity * STATES_WORTH_A_SHARE):
            limit = 0.5 if states_only else 0.72
            yield Cause(cause, factor * min(0.25 + 0.6 * share, limit), f"{gib(size):.1f} GiB {where}")


def _report_causes(case: Case) -> Iterator[Cause]:
    """What the memory lines after the first steps show: how far reserved is above allocated, and retries."""
    for report in case.facts.reports.values():
        allocated, reserved = report.peak, report.peak_reserved
        if allocated and reserved and reserved > FRAGMENTED_RATIO * allocated:
            text = f"rank {report.rank} reserved {gib(reserved):.1f} GiB for {gib(allocated):.1f} GiB in use"
            yield Cause("fragmentation", 0.55, text)
            return
        if report.retries:
            text = f"the allocator of rank {report.rank} had to free its cache and try again; that is slow, too"
            yield Cause("fragmentation", 0.45, text)
            return


def _told_causes(case: Case) -> Iterator[Cause]:
    """Allocated against reserved as a person tells them."""
    allocated, reserved = case.told_bytes.get("allocated"), case.told_bytes.get("reserved")
    if not allocated or not reserved or reserved < allocated:
        return
    spare = f"{gib(reserved - allocated):.1f} GiB are reserved beyond the {gib(allocated):.1f} GiB allocated"
    if reserved > FRAGMENTED_RATIO * allocated:
        text = f"{spare}, {reserved / allocated - 1:.0%} more where healthy runs show 3 to 9 %"
        yield Cause("fragmentation", 0.75, text, missing=("allocated_vs_reserved",))
    elif case.died_of_memory:
        yield Cause("activations", 0.5, f"{spare}: too little to be fragmentation, the run needs the memory")


def _time_causes(case: Case, event: OutOfMemory | None) -> Iterator[Cause]:
    """A run that survived many steps died of something that changes between steps."""
    step = event.iteration if event is not None else None
    if step is None and case.facts.last_iteration is not None:
        step = case.facts.last_iteration.number
    if step == 1 and (event is None or event.place not in STATE_PLACES | {"optimizer", "loss", "mask", "graph"}):
        text = "the first step passed and the second did not: optimizer state exists only after the first"
        yield Cause("optimizer_state_lazy_alloc", 0.6, text)
    if step is None or step < LATE_STEPS:
        return
    text = f"{step} steps ran before, so what every step needs fits"
    if case.run.arch.is_moe and not case.config.moe.pad_to_capacity:
        yield Cause(
            "expert_imbalance", 0.5, f"{text}; experts that receive more tokens than before need more",
            missing=("expert_load_max_over_mean",),
        )  # fmt: skip
    yield Cause(
        "fragmentation", 0.47, f"{text}; changing sizes fragment the allocator", missing=("allocated_vs_reserved",)
    )
