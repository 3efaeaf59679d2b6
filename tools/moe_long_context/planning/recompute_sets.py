"""Every distinct recompute choice of a run: legal module sets, full uniform and block, less those that another beats.

Two sets that free the same bytes in every layer kind of the model are one choice; the smaller set stands for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

from moe_long_context.catalog.architecture import Architecture, LayerKind
from moe_long_context.config.resolve import Run
from moe_long_context.config.sections import Recompute
from moe_long_context.memory.activations import layer_tensors, saved_under
from moe_long_context.memory.activations.facts import facts_of as activation_facts
from moe_long_context.memory.working import facts_of
from moe_long_context.speed.facts import facts_of as speed_facts
from moe_long_context.speed.layers import layer_time

FREEABLE = ("core_attn", "mla_up_proj", "layernorm", "moe_act", "mlp", "shared_experts", "moe", "gdn_norm_out")


class RecomputeChoice(NamedTuple):
    """One way to recompute. `modules` is empty for none and for full."""

    granularity: str | None
    method: str | None
    num_layers: int | None
    modules: tuple[str, ...]

    @property
    def fields(self) -> dict[str, object]:
        """The `recompute` section of a run configuration."""
        if self.granularity is None:
            return {"granularity": None, "method": None, "num_layers": None, "modules": None}
        modules = list(self.modules) if self.granularity == "selective" else None
        return {
            "granularity": self.granularity,
            "method": self.method,
            "num_layers": self.num_layers,
            "modules": modules,
        }

    @property
    def label(self) -> str:
        """The choice in words."""
        if self.granularity is None:
            return "none"
        return "+".join(self.modules) if self.modules else f"full {self.method} {self.num_layers}"


NONE = RecomputeChoice(None, None, None, ())
FULL = RecomputeChoice("full", "uniform", 1, ())


@lru_cache(maxsize=1024)
def freed_names(arch: Architecture) -> tuple[str, ...]:
    """Modules that exist in this model's layers."""
    kinds = set(arch.layer_kinds)
    names = {"core_attn"} if any(k.attention in ("gqa", "mla") for k in kinds) else set()
    names |= {"mla_up_proj"} if any(k.attention == "mla" for k in kinds) else set()
    names |= {"layernorm"} if any(k.ffn == "moe" for k in kinds) or arch.multi_latent_attention else set()
    names |= {"moe_act", "moe"} if any(k.ffn == "moe" for k in kinds) else set()
    names |= {"mlp"} if any(k.ffn == "dense" for k in kinds) else set()
    names |= {"shared_experts"} if arch.moe_shared_expert_intermediate_size else set()
    names |= {"gdn_norm_out"} if any(k.attention == "gdn" for k in kinds) else set()
    return tuple(n for n in FREEABLE if n in names)


def module_sets(run: Run) -> tuple[tuple[str, ...], ...]:
    """Distinct legal module sets, smallest first; `moe` already holds moe_act and shared_experts."""
    names = tuple(n for n in freed_names(run.arch) if not _forbidden(run, n))
    tables = (layer_tensors(run, kind) for kind in _kinds(run.arch))
    return _distinct(names, tuple(tuple((row.name, row.freed_by) for row in table) for table in tables))


@lru_cache(maxsize=1024)
def _distinct(
    names: tuple[str, ...], tables: tuple[tuple[tuple[str, frozenset[str]], ...], ...]
) -> tuple[tuple[str, ...], ...]:
    """Sets that free different tensors. `tables`: (tensor, what frees it) of each layer kind."""
    seen: set[tuple[frozenset[str], ...]] = set()
    sets: list[tuple[str, ...]] = []
    for size in range(1, len(names) + 1):
        for chosen in combinations(names, size):
            modules = frozenset(chosen)
            effect = tuple(frozenset(name for name, freed_by in table if freed_by & modules) for table in tables)
            if effect not in seen and any(effect):
                seen.add(effect)
                sets.append(chosen)
    return tuple(sets)


@lru_cache(maxsize=1024)
def _kinds(arch: Architecture) -> tuple[LayerKind, ...]:
    return tuple(sorted(set(arch.layer_kinds)))


def _forbidden(run: Run, module: str) -> bool:
    """What forbids one module here: EP overlap, shared-expert overlap, delayed FP8, router graphs, grouped GEMM off."""
    c = run.written
    graph = set(c.cuda_graph.modules) if c.cuda_graph.impl == "transformer_engine" else set()
    reasons = {
        "moe": bool(c.overlap.ep_a2a) or "moe_router" in graph or bool({"expert_fc1", "moe_act"} & run.offload_modules),
        "shared_experts": bool(c.overlap.shared_expert),
        "moe_act": run.precision == "fp8_delayed" or c.megatron.get("model.moe_grouped_gemm") is False,
        "layernorm": run.precision == "fp8_delayed" or ("moe_router" in graph and run.dispatcher != "alltoall"),
    }
    return reasons.get(module, False)


def choices(run: Run) -> tuple[RecomputeChoice, ...]:
    """None, every distinct module set, and full recompute where nothing forbids it."""
    selective = [RecomputeChoice("selective", None, None, chosen) for chosen in module_sets(run)]
    c = run.written
    full = [] if c.overlap.ep_a2a or c.cuda_graph.impl in ("local", "transformer_engine") else [FULL]
    return (NONE, *selective, *full)


def worthwhile(run: Run) -> tuple[RecomputeChoice, ...]:
    """Choices that no other one beats in both kept bytes and replay time, cheapest first."""
    return _worthwhile(_Key(run))


class _Key:
    """A run as a cache key: only what layers' bytes and times depend on."""

    def __init__(self, run: Run) -> None:
        self.run = run
        c = run.written
        forbids = tuple(_forbidden(run, name) for name in FREEABLE)
        self.facts = (facts_of(run), run.precision, run.dispatcher, forbids, c.overlap, run.offload_modules, run.loss)
        self.hash = hash(self.facts)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self.facts == other.facts


@lru_cache(maxsize=8192)
def _worthwhile(key: _Key) -> tuple[RecomputeChoice, ...]:
    run = key.run
    costed = [(seconds, kept, choice) for choice, seconds, kept in _costs(run)]
    costed.sort(key=lambda item: (item[0], item[1]))
    front: list[RecomputeChoice] = []
    least = float("inf")
    for _, kept, choice in costed:
        if kept < least * (1 - SAME):
            front.append(choice)
            least = kept
    return tuple(front)


SAME = 0.02
"""Relative difference of kept bytes below which a dearer choice is not worth showing."""


def _costs(run: Run) -> Iterator[tuple[RecomputeChoice, float, float]]:
    """(choice, replay seconds, kept bytes) of one microbatch over all layers. Only the modules differ between choices,
    so the facts of the run are taken once."""
    kinds = [(kind, run.arch.layer_kinds.count(kind)) for kind in _kinds(run.arch)]
    speed, memory = speed_facts(with_choice(run, NONE)), activation_facts(run)
    for choice in choices(run):
        modules, full = frozenset(choice.modules), choice.granularity == "full"
        facts = speed._replace(recompute=modules, full_recompute=float(full))
        saved = [(saved_under(memory, kind, modules, run.offload_modules), count) for kind, count in kinds]
        kept = sum((of_layer.layer_input if full else of_layer.kept) * count for of_layer, count in saved)
        yield choice, sum(layer_time(facts, kind).recompute * count for kind, count in kinds), kept


def replay_seconds(run: Run) -> float:
    """Seconds that recompute adds to one microbatch over all layers."""
    facts = speed_facts(run)
    return sum(layer_time(facts, kind).recompute * run.arch.layer_kinds.count(kind) for kind in _kinds(run.arch))


def with_choice(run: Run, choice: RecomputeChoice) -> Run:
    """The run with another recompute choice."""
    section = Recompute.model_validate({k: v for k, v in choice.fields.items() if v is not None})
    return Run(run.written.model_copy(update={"recompute": section}))
