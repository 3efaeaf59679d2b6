"""The eval of the evals: tools made wrong on purpose. Every mutant must make cases fail."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from moe_long_context.evaluation.cases import Case
from moe_long_context.evaluation.tool_layer import grade_tools


class Mutant(NamedTuple):
    """One wrong tool: which attribute is replaced, and how the wrong one is made from the right one."""

    name: str
    what: str
    target: str
    attribute: str
    make: Callable[[Any], Any]


def _product_mesh(_: Any) -> Any:
    return property(lambda s: s.num_gpus % (s.tp * s.cp * s.pp * s.ep * s.etp) == 0)


def _no_optimizer(right: Any) -> Any:
    return lambda *args: right(*args)._replace(moments=0.0, masters=0.0, host=0.0)


def _forgets_what_offload_frees(right: Any) -> Any:
    def states(*args: Any) -> Any:
        held = right(*args)
        return held._replace(moments=held.moments + held.host / 2, host=0.0)

    return states


MUTANTS = (
    Mutant("mesh-product", "legal only if CP*EP*TP*PP*ETP divides the GPUs", "mesh.sizes:Sizes", "fits_expert",
           _product_mesh),
    Mutant("mesh-expert-unchecked", "the expert mesh is never checked", "mesh.sizes:Sizes", "fits_expert",
           lambda _: property(lambda s: True)),
    Mutant("unit-swapped", "bytes divided by 10**9 and called GiB", "tools.memory", "gib", lambda _: lambda n: n / 1e9),
    Mutant("offload-lost", "offloaded states stay on the GPU", "memory.estimate", "stage_states",
           _forgets_what_offload_frees),
    Mutant("optimizer-forgotten", "no optimizer state at all", "memory.estimate", "stage_states", _no_optimizer),
    Mutant("validator-accepts-all", "the validator finds nothing", "tools.validate", "check", lambda _: lambda run: ()),
    Mutant("pitfalls-silent", "the pitfall checker finds nothing", "tools.pitfalls", "check", lambda _: lambda run: ()),
    Mutant("ring-free", "the ring keeps no buffers", "memory.working", "_CP",
           lambda right: {**right, "p2p": right["a2a"]}),
    Mutant("names-accepted", "the reader takes any key", "config.names", "canonical",
           lambda right: lambda source, **keys: right(
               {k: v for k, v in source.items() if k != "expert_parallel_degree"}, **keys)),
)  # fmt: skip


@contextmanager
def applied(mutant: Mutant) -> Iterator[None]:
    """The mutant in place of the right code, undone at the end."""
    module, _, owner = mutant.target.partition(":")
    place = import_module(f"moe_long_context.{module}")
    target = getattr(place, owner) if owner else place
    right = target.__dict__[mutant.attribute]
    setattr(target, mutant.attribute, mutant.make(right))
    _forget_cached_results()
    try:
        yield
    finally:
        setattr(target, mutant.attribute, right)
        _forget_cached_results()


def _forget_cached_results() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(("moe_long_context.memory", "moe_long_context.speed", "moe_long_context.planning")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def caught(mutant: Mutant, cases: tuple[Case, ...]) -> list[str]:
    """Ids of the cases that fail under the mutant."""
    with applied(mutant):
        return [case.id for case in cases if not all(grade.passed for grade in grade_tools(case))]
