"""Peak memory of every pipeline rank: states + activations in flight + the largest moment of a step.

The peak is the maximum over phases (steady backward of each chunk, loss forward, loss backward, output-layer backward,
optimizer step), each a sum of named components that are alive at that time; nothing is a sum of savings.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import mul
from typing import NamedTuple

from moe_long_context.config.resolve import Run
from moe_long_context.memory import buffers
from moe_long_context.memory.chunks import ChunkBytes, chunk_bytes
from moe_long_context.memory.inputs import attention_mask_bytes
from moe_long_context.memory.loss import LossBytes, loss_bytes
from moe_long_context.memory.parameters import StageParameters, stage_parameters
from moe_long_context.memory.peft import adapter_parameters
from moe_long_context.memory.schedule import moments
from moe_long_context.memory.states import StateBytes, gradient_bytes, stage_states
from moe_long_context.mesh.partition import Chunk


class Phase(NamedTuple):
    """One instant of a step on one rank; bytes above the static part."""

    name: str
    activations: float
    logits: float
    working: float

    @property
    def total(self) -> float:
        """Bytes above the static part."""
        return self.activations + self.logits + self.working


class StageEstimate(NamedTuple):
    """One pipeline rank at its peak. All sizes in bytes."""

    stage: int
    parameters: StageParameters
    states: StateBytes
    workspace: float
    communication: float
    phase: Phase
    phases: tuple[Phase, ...]

    @property
    def static_bytes(self) -> float:
        """What stays allocated between steps."""
        return self.states.total + self.workspace

    @property
    def peak_bytes(self) -> float:
        """The most that is allocated at once."""
        return self.static_bytes + self.communication + self.phase.total

    @property
    def components(self) -> dict[str, float]:
        """What the peak is made of."""
        return {
            "weights": self.states.weights,
            "gradients": self.states.gradients,
            "optimizer": self.states.optimizer,
            "activations": self.phase.activations,
            "logits": self.phase.logits,
            "working_set": self.phase.working,
            "workspace": self.workspace,
            "communication": self.communication,
        }


class MemoryEstimate(NamedTuple):
    """All pipeline ranks."""

    stages: tuple[StageEstimate, ...]

    @property
    def peak(self) -> StageEstimate:
        """The rank with the highest peak."""
        return max(self.stages, key=lambda stage: stage.peak_bytes)


def estimate(run: Run, ranks: Iterable[int] | None = None) -> MemoryEstimate:
    """Peak memory of every pipeline rank, or of the ranks asked for (their maximum is then a lower bound of the peak).

    Raises:
        InvalidLayoutError: no mesh fits the GPUs, or layers do not divide.
    """
    run.require_mesh()
    parameters = stage_parameters(run)
    shared = _Shared(loss_bytes(run), buffers.workspace_bytes(run) + buffers.gather_buffer_bytes(run), {})
    chosen = range(run.sizes.pp) if ranks is None else ranks
    return MemoryEstimate(tuple(_stage(run, rank, parameters[rank], shared) for rank in chosen))


class _Shared(NamedTuple):
    """What all ranks of a run have in common; `chunks` remembers the bytes of equal chunks."""

    loss: LossBytes
    buffers: float
    chunks: dict[tuple[object, ...], ChunkBytes]


def _stage(run: Run, rank: int, parameters: StageParameters, shared: _Shared) -> StageEstimate:
    chunks = run.partition.of_rank(rank)
    states = stage_states(run, parameters, adapter_parameters(run, chunks))
    held = tuple(_chunk(run, chunk, shared) for chunk in chunks)
    phases = (*_schedule_phases(run, rank, chunks, held, shared.loss), _optimizer_phase(run, states, parameters))
    return StageEstimate(
        stage=rank,
        parameters=parameters,
        states=states,
        workspace=shared.buffers + buffers.dummy_wgrad_bytes(run, chunks),
        communication=buffers.pipeline_buffer_bytes(run),
        phase=max(phases, key=lambda phase: phase.total),
        phases=phases,
    )


def _chunk(run: Run, chunk: Chunk, shared: _Shared) -> ChunkBytes:
    key = (run.arch.layer_kinds[chunk.first : chunk.first + chunk.layers], chunk.mtp, chunk.loss)
    if key not in shared.chunks:
        shared.chunks[key] = chunk_bytes(run, chunk)
    return shared.chunks[key]


def _schedule_phases(
    run: Run, rank: int, chunks: tuple[Chunk, ...], held: tuple[ChunkBytes, ...], loss: LossBytes
) -> list[Phase]:
    group = int(run.written.field("model.microbatch_group_size_per_vp_stage") or 0)
    instants = moments(
        run.sizes.pp, rank, run.partition.vpp, run.num_microbatches, group, bool(run.written.overlap.ep_a2a)
    )
    most: dict[int, float] = {}
    kept = [chunk.kept for chunk in held]
    for instant in instants:
        total = sum(map(mul, instant.in_flight, kept))
        if total > most.get(instant.backward, -1.0):
            most[instant.backward] = total
    phases: list[Phase] = []
    for chunk, total in most.items():
        phases += _phases_at(total, chunks[chunk], held[chunk], loss, attention_mask_bytes(run, chunks[chunk]))
    return phases


def _phases_at(kept: float, chunk: Chunk, busy: ChunkBytes, loss: LossBytes, mask: float) -> list[Phase]:
    """The phases of the newest microbatch's chunk while `kept` bytes of activations are in flight; `mask` is there
    until its forward ends."""
    phases = [
        Phase(step.name, kept + step.offset, 0.0, step.working + (mask if step.name == "forward" else 0.0))
        for step in busy.steps
    ]
    if chunk.loss:
        phases += [
            Phase("loss forward", kept, loss.forward, mask),
            Phase("loss backward", kept, loss.backward, 0.0),
            Phase("output layer backward", kept, loss.output_backward, 0.0),
        ]
    return phases


def _optimizer_phase(run: Run, states: StateBytes, parameters: StageParameters) -> Phase:
    """The distributed optimizer copies low-precision gradients of its shard to fp32 unless it is precision-aware."""
    needs_copy = gradient_bytes(run) < 4 and not run.precision_aware
    shard = states.masters / 4 if needs_copy else 0.0
    return Phase("optimizer step", 0.0, 0.0, shard * 4)
