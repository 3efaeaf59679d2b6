"""Puts a diagnosis together: log, snapshot and configuration in, causes, fixes and open questions out."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from moe_long_context.config.resolve import resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.diagnosis.case import Case
from moe_long_context.diagnosis.cause import Cause
from moe_long_context.diagnosis.causes import causes_of
from moe_long_context.diagnosis.checking import findings_of
from moe_long_context.diagnosis.events import LogFacts
from moe_long_context.diagnosis.fixes import Fix, fixes_for
from moe_long_context.diagnosis.questions import missing_facts
from moe_long_context.diagnosis.scan import scan
from moe_long_context.diagnosis.snapshot import read_snapshot
from moe_long_context.diagnosis.words import SIZES, facts_told, memory_told
from moe_long_context.errors import BadValueError, MoeError

FIELD_OF_ARGUMENT = {
    "world_size": "num_gpus", "overlap_moe_expert_parallel_comm": "overlap_moe_expert_parallel_comm",
}  # fmt: skip
NOT_TAKEN = frozenset({"num_layers", "cross_entropy_loss_fusion", "moe_token_dispatcher_type", "recompute_modules"})
"""Printed arguments that belong to the model, or whose printed form is not the configuration's."""


class Diagnosis(NamedTuple):
    """Everything a diagnosis says."""

    case: Case
    causes: list[Cause]
    fixes: list[Fix]
    missing: tuple[str, ...]
    taken_from_log: tuple[str, ...]


def diagnose(
    config: RunConfig, log: str | Path | None, snapshot: str | Path | None = None, symptom: str = ""
) -> Diagnosis:
    """Causes, fixes and open questions of one failure.

    Raises:
        InputError: nothing to go by, an unreadable file, or a configuration that cannot be read.
    """
    if log is None and snapshot is None and not symptom and not config.written():
        raise BadValueError(
            "There is nothing to diagnose.",
            fix="pass a configuration, a log (path or text), a memory snapshot, or the symptom in words",
        )
    facts = scan(log) if log is not None else LogFacts()
    told = _told(symptom, facts)
    config, printed = _with_facts(config, facts.config_facts, "printed in the log")
    config, said = _with_facts(config, _facts_said(config, told), "from the words")
    taken = (*printed.values(), *said.values())
    run = resolve(config, partial=True)
    memory = read_snapshot(snapshot) if snapshot is not None else None
    case = Case(config, run, facts, told, memory, findings_of(run), frozenset(said), memory_told(told))
    causes = causes_of(case)
    return Diagnosis(case, causes, fixes_for(case, causes), missing_facts(case, causes), taken)


def _told(symptom: str, facts: LogFacts) -> str:
    """What a person wrote: the symptom, and a short "log" in which nothing that a program prints was found."""
    return f"{symptom}\n{'' if facts.is_a_log else facts.short_text}"[:20_000]


def _facts_said(config: RunConfig, told: str) -> dict[str, Any]:
    """What the words say; beside a configuration with sizes, another size in the words is of another run."""
    has_sizes = bool(set(SIZES.values()) & set(config.written()))
    return {name: v for name, v in facts_told(told).items() if not (has_sizes and name in SIZES.values())}


def _with_facts(config: RunConfig, facts: dict[str, Any], where: str) -> tuple[RunConfig, dict[str, str]]:
    """The configuration with what the log or the person states and the configuration does not; field to note."""
    given = config.written()
    taken = {}
    for name, value in facts.items():
        field = FIELD_OF_ARGUMENT.get(name, name)
        if name in NOT_TAKEN or value is None or field in given:
            continue
        try:
            config = config.replace(**{field: value})
        except MoeError:
            continue
        taken[field] = f"{field} = {value} ({where})"
    return config, taken
