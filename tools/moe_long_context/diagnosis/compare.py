"""What differs between two runs, what kind of change each difference is, and what it does alone to the peak."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from moe_long_context.config.framework_fields import default_of
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import MoeError, UnknownNameError
from moe_long_context.memory.estimate import StageEstimate, estimate
from moe_long_context.rules import all_rules
from moe_long_context.rules.versions import core_of, within
from moe_long_context.speed import StepTime, step_time
from moe_long_context.yaml_safe import load_file

Effect = Literal["execution", "rounding", "training"]
UNSET = "not given"
MAX_ATTRIBUTED = 40

RESOLVED = {
    "tensor_model_parallel_size": "sizes.tp", "context_parallel_size": "sizes.cp",
    "pipeline_model_parallel_size": "sizes.pp", "virtual_pipeline_model_parallel_size": "sizes.vpp",
    "expert_model_parallel_size": "sizes.ep", "expert_tensor_parallel_size": "sizes.etp",
    "sequence_parallel": "sequence_parallel", "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size", "precision": "precision", "dispatcher": "dispatcher", "loss": "loss",
    "optimizer.distributed": "distributed_optimizer", "optimizer.cpu_offload_fraction": "cpu_offload_fraction",
    "vocab.padded_size": "padded_vocab_size", "cp_comm_type": "cp_comm_type", "num_gpus": "num_gpus",
    "seq_length": "seq_length",
}  # fmt: skip
"""Configuration field -> attribute of the resolved run, where the default depends on front end or other fields."""


class Difference(NamedTuple):
    """One field. `defaulted` = neither side wrote it and their defaults differ."""

    field: str
    before: Any
    after: Any
    effect: Effect
    why: str
    defaulted: bool = False


class VersionChange(NamedTuple):
    """One behaviour that lies between the versions of the two runs."""

    component: str
    since: str
    topic: str
    kind: str


def flatten(config: RunConfig) -> dict[str, Any]:
    """Written fields as `section.field`; fields of `megatron` by their dotted path."""
    out: dict[str, Any] = {}
    for key, value in config.written().items():
        if key == "megatron":
            out.update(value)
        elif isinstance(value, dict) and key not in ("model", "gpu"):
            out.update({f"{key}.{name}": item for name, item in value.items()})
        else:
            out[key] = value
    return out


def differences(a: RunConfig, b: RunConfig) -> list[Difference]:
    """Every field whose value differs, written ones first, then defaults that differ."""
    left, right = flatten(a), flatten(b)
    run_a, run_b = resolve(a, partial=True), resolve(b, partial=True)
    found = []
    for name in sorted({*left, *right}):
        before, after = _value(name, left, run_a), _value(name, right, run_b)
        if before != after:
            found.append(Difference(name, before, after, *effect_of(name)))
    missing = run_a.missing | run_b.missing
    for name, attribute in RESOLVED.items():
        if name in left or name in right or name in missing:
            continue
        before, after = _attribute(run_a, attribute), _attribute(run_b, attribute)
        if before != after:
            found.append(Difference(name, before, after, *effect_of(name), defaulted=True))
    return found


def _value(name: str, written: dict[str, Any], run: Run) -> Any:
    if name in written:
        return written[name]
    if name in RESOLVED and name not in run.missing:
        return _attribute(run, RESOLVED[name])
    default = default_of(name)
    return UNSET if default is None else default


def _attribute(run: Run, path: str) -> Any:
    value: Any = run
    for part in path.split("."):
        value = getattr(value, part)
    return value


@lru_cache(maxsize=1)
def _effects() -> tuple[tuple[re.Pattern[str], Effect, str], ...]:
    rows = load_file(Path(__file__).parent / "field_effects.yaml")
    return tuple((re.compile(row["path"]), row["effect"], row.get("why", "")) for row in rows)


def effect_of(name: str) -> tuple[Effect, str]:
    """Whether changing a field changes the execution, the rounding or the training; unknown counts as training."""
    for pattern, effect, why in _effects():
        if pattern.search(name):
            return effect, why
    return "training", ""


def worst_stage(config: RunConfig) -> StageEstimate | None:
    """The stage that peaks, None where nothing can be computed."""
    try:
        return estimate(resolve(config)).peak
    except MoeError:
        return None


def timing(config: RunConfig) -> StepTime | None:
    """The modelled step, None where nothing can be computed."""
    try:
        run = resolve(config)
        run.require_mesh()
        return step_time(run)
    except MoeError:
        return None


def alone(a: RunConfig, found: list[Difference]) -> dict[str, float]:
    """Field -> change of the peak in bytes when only this field is changed in `a`; absent where that is no run."""
    base = worst_stage(a)
    if base is None:
        return {}
    out = {}
    for difference in [d for d in found if not d.defaulted][:MAX_ATTRIBUTED]:
        peak = _peak_with(a, difference)
        if peak is not None:
            out[difference.field] = peak - base.peak_bytes
    return out


def _peak_with(a: RunConfig, difference: Difference) -> float | None:
    value = None if difference.after == UNSET else difference.after
    try:
        changed = a.replace(**{difference.field: value})
    except MoeError:
        return None
    stage = worst_stage(changed)
    return stage.peak_bytes if stage else None


def version_changes(a: RunConfig, b: RunConfig) -> list[VersionChange]:
    """Behaviours that changed between the versions of two runs; a version that is not given counts as the newest."""
    rows = load_file(Path(__file__).parent / "version_changes.yaml")
    return [*(VersionChange(**row) for row in rows if _between(row, a, b)), *_rules_between(a, b)]


def _rules_between(a: RunConfig, b: RunConfig) -> Iterator[VersionChange]:
    """Rules that hold for the core of one side only; none where a version is one that the rules were not read from."""
    try:
        left, right = core_of(a), core_of(b)
    except UnknownNameError:
        return
    for rule in all_rules().values():
        before, after = within(left, rule.since, rule.until), within(right, rule.since, rule.until)
        if before != after:
            kind = "refusal begins" if after else "refusal ends"
            yield VersionChange("megatron_core", rule.since or rule.until or "", f"{rule.id}: {rule.title}", kind)


def _between(row: dict[str, str], a: RunConfig, b: RunConfig) -> bool:
    left = getattr(a.versions, row["component"])
    right = getattr(b.versions, row["component"])
    if left is None and right is None:
        return False
    since = version_key(row["since"])
    return (version_key(left) >= since) != (version_key(right) >= since)


def version_key(text: str | None) -> tuple[int, ...]:
    """("0.19.2") -> (0, 19, 2); None = newer than any."""
    if text is None:
        return (1 << 30,)
    return tuple(int(part) for part in re.findall(r"\d+", text)[:4])


def unknown_sides(a: RunConfig, b: RunConfig) -> Iterator[str]:
    """Facts that either side lacks for an estimate."""
    for label, config in (("a", a), ("b", b)):
        for name in ("model", "gpu", "num_gpus", "seq_length"):
            if getattr(config, name) is None:
                yield f"{label}.{name}"
