"""What a log says, as plain records. Sizes in bytes, times in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

MAX_EVENTS = 16
MAX_RANKS = 4096


@dataclass(frozen=True)
class OutOfMemory:
    """One device allocation that failed. None = the text does not say."""

    rank: str | None
    requested: float | None
    capacity: float | None = None
    free: float | None = None
    process: float | None = None
    other_processes: float | None = None
    allocated: float | None = None
    reserved_unallocated: float | None = None
    private_pools: float | None = None
    place: str | None = None
    frames: tuple[str, ...] = ()
    iteration: int | None = None
    text: str = ""

    @property
    def outside_allocator(self) -> float | None:
        """Memory of this process that PyTorch's allocator does not hold: context, NCCL, DeepEP."""
        if self.process is None or self.allocated is None:
            return None
        return max(self.process - self.allocated - (self.reserved_unallocated or 0.0), 0.0)


@dataclass(frozen=True)
class Iteration:
    """One printed training step."""

    number: int
    step_time_s: float | None = None
    tflops: float | None = None
    grad_norm: float | None = None
    loss: float | None = None


@dataclass(frozen=True)
class MemoryReport:
    """Megatron's memory line after the first steps, bytes."""

    rank: int
    iteration: int | None
    values: dict[str, float]

    def first(self, *names: str) -> float | None:
        """The first of these values that was printed."""
        return next((self.values[name] for name in names if name in self.values), None)

    @property
    def peak(self) -> float | None:
        """Most that was allocated at once, bytes."""
        return self.first("max_allocated", "mem-max-allocated-gigabytes")

    @property
    def peak_reserved(self) -> float | None:
        """Most that was reserved at once, bytes."""
        return self.first("max_reserved", "mem-max-reserved-gigabytes")

    @property
    def retries(self) -> float:
        """How often the allocator had to free its cache."""
        return self.first("mem-alloc-retires", "mem-alloc-retries") or 0.0


@dataclass(frozen=True)
class Failure:
    """The end of a traceback: type, message and the functions it went through, outermost first."""

    kind: str
    message: str
    frames: tuple[str, ...]
    rank: str | None
    place: str | None
    follower: bool = False


@dataclass
class SignatureHit:
    """One signature that was seen: how often, and the first line (redacted)."""

    count: int
    first: str
    offset: int
    rank: str | None


@dataclass
class LogFacts:
    """Everything that was read from one log."""

    n_bytes: int = 0
    ooms: list[OutOfMemory] = field(default_factory=list)
    oom_count: int = 0
    oom_ranks: set[str] = field(default_factory=set)
    first_iteration: Iteration | None = None
    last_iteration: Iteration | None = None
    best_tflops: float | None = None
    first_grad_norm: float | None = None
    worst_grad_norm: float | None = None
    iteration_count: int = 0
    nan_steps: int = 0
    reports: dict[int, MemoryReport] = field(default_factory=dict)
    theoretical_bytes: dict[str, float] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    failure_count: int = 0
    first_failure_offset: int | None = None
    hits: dict[str, SignatureHit] = field(default_factory=dict)
    config_facts: dict[str, object] = field(default_factory=dict)
    printable_share: float = 1.0
    short_text: str = ""

    @property
    def is_a_log(self) -> bool:
        """Whether anything that a program prints was recognised."""
        return bool(self.ooms or self.failures or self.hits or self.iteration_count or self.reports)

    def see_iteration(self, step: Iteration) -> None:
        """Fold one training step in."""
        self.iteration_count += 1
        self.first_iteration = self.first_iteration or step
        self.last_iteration = step
        if step.tflops is not None and math.isfinite(step.tflops):
            self.best_tflops = max(self.best_tflops or 0.0, step.tflops)
        if step.grad_norm is not None and not math.isfinite(step.grad_norm):
            self.nan_steps += 1
        elif step.grad_norm is not None:
            if self.first_grad_norm is None:
                self.first_grad_norm = step.grad_norm
            self.worst_grad_norm = max(self.worst_grad_norm or 0.0, step.grad_norm)

    def see_oom(self, event: OutOfMemory) -> None:
        """Fold one failed allocation in; the first ones are kept whole."""
        self.oom_count += 1
        if event.rank is not None and len(self.oom_ranks) < MAX_RANKS:
            self.oom_ranks.add(event.rank)
        if len(self.ooms) < MAX_EVENTS:
            self.ooms.append(event)

    def see_failure(self, failure: Failure, offset: int) -> None:
        """Fold one exception in."""
        self.failure_count += 1
        if self.first_failure_offset is None:
            self.first_failure_offset = offset
        if len(self.failures) < MAX_EVENTS:
            self.failures.append(failure)

    def see_report(self, report: MemoryReport) -> None:
        """Keep the latest memory line of each rank."""
        if report.rank in self.reports or len(self.reports) < MAX_RANKS:
            self.reports[report.rank] = report
