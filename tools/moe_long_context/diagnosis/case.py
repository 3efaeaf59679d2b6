"""`Case`: everything known about one failure, and the yes/no questions that signatures ask about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from moe_long_context.config.resolve import FLEX, Run
from moe_long_context.config.run_config import RunConfig
from moe_long_context.diagnosis.events import LogFacts, OutOfMemory
from moe_long_context.diagnosis.snapshot import SnapshotFacts
from moe_long_context.errors import MoeError
from moe_long_context.memory.estimate import MemoryEstimate, estimate
from moe_long_context.mesh.sizes import coordinates
from moe_long_context.results import Finding

SIZE_FIELDS = {
    "tp": "tensor_model_parallel_size", "cp": "context_parallel_size", "pp": "pipeline_model_parallel_size",
    "ep": "expert_model_parallel_size",
}  # fmt: skip
_OOM_TOLD = re.compile(
    r"(?<![a-z])oom(?:s|ed|ing)?(?![a-z]|[- ]?kill)|out of (?:gpu |cuda |device |v)?(?:memory|ram)|爆了?显存|"
    r"显存.{0,4}(?:不够|不足|爆|溢出|炸|超|满)|超显存",
    re.I,
)
_RL = re.compile(
    r"\b(?:verl|slime|nemo[-_ ]?rl|grpo|ppo|rollout|vllm|sglang|actor|skyrl|roll|reward|policy|"
    r"between (?:the )?phases)\b",
    re.I,
)


@dataclass(frozen=True)
class Case:
    """One failure. `run` is the configuration with stand-ins where facts were not given (named in `run.missing`).

    `told` is what a person wrote, `from_words` the fields that only these words give, `told_bytes` the memory figures.
    """

    config: RunConfig
    run: Run
    facts: LogFacts
    told: str
    snapshot: SnapshotFacts | None
    findings: tuple[Finding, ...]
    from_words: frozenset[str] = frozenset()
    told_bytes: dict[str, float] = field(default_factory=dict)

    @cached_property
    def oom(self) -> OutOfMemory | None:
        """The failed allocation that says most: one with a known place, else the first."""
        events = self.facts.ooms
        return next((e for e in events if e.place), events[0] if events else None)

    @cached_property
    def memory(self) -> MemoryEstimate | None:
        """The estimate, None where model, length or every size is unknown, or the layout has no meaning."""
        if {"model", "seq_length"} & self.run.missing or not self.knows_sizes:
            return None
        try:
            return estimate(self.run)
        except MoeError:
            return None

    @property
    def died_of_memory(self) -> bool:
        """Whether a device allocation failed, or a person says so."""
        told = _OOM_TOLD.search(self.told)
        return bool(self.facts.ooms) or (bool(told) and "host-oom-killer" not in self.facts.hits)

    def stage_of(self, rank: str | None) -> int | None:
        """The pipeline stage of a global rank in Megatron's default order; None where it cannot be told."""
        if rank is None or not rank.isdigit() or not self.knows_sizes or "num_gpus" in self.run.missing:
            return None
        number = int(rank)
        legal = number < self.run.num_gpus and self.run.sizes.fits_attention
        return coordinates(number, self.run.sizes)["pp"] if legal else None

    @property
    def one_gpu(self) -> bool:
        """Whether the run is known to have one GPU, where every size is 1."""
        return self.config.num_gpus == 1

    @property
    def knows_model(self) -> bool:
        """Whether the model was given."""
        return "model" not in self.run.missing

    @property
    def knows_sizes(self) -> bool:
        """Whether the parallel sizes are known: by a configuration that gives any, or by words that give all four."""
        given = set(SIZE_FIELDS.values()) & set(self.config.written())
        return self.one_gpu or bool(given - self.from_words) or len(given) == len(SIZE_FIELDS)

    @property
    def is_rl(self) -> bool:
        """Whether a rollout engine may share the GPU."""
        return bool(_RL.search(self.told)) or any("rollout" in e.text.lower() for e in self.facts.ooms)


def _ep_crosses_nodes(case: Case) -> bool:
    """Whether the expert group is larger than the NVLink domain; an EP that was not given may be."""
    sizes = case.run.sizes
    unknown = case.config.expert_model_parallel_size is None and not case.one_gpu
    return unknown or sizes.ep * sizes.etp > case.run.gpu.nvlink_domain


PREDICATES: dict[str, Callable[[Case], bool]] = {
    "ep_crosses_nodes": _ep_crosses_nodes,
    "flex_across_nodes": lambda c: c.run.dispatcher in FLEX and _ep_crosses_nodes(c),
    "flex_with_varlen": lambda c: c.run.dispatcher in FLEX and (c.config.data.variable_length or c.config.data.packed),
    "packed_with_cp": lambda c: c.config.data.packed and c.run.sizes.cp > 1,
}
