"""From causes to fixes in order: each change is tried on the configuration, validated and estimated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.diagnosis import remedy_layout  # noqa: F401  (registers its fixes)
from moe_long_context.diagnosis.case import SIZE_FIELDS, Case
from moe_long_context.diagnosis.cause import Cause
from moe_long_context.diagnosis.checking import error_rules, repair_of
from moe_long_context.diagnosis.compare import flatten
from moe_long_context.diagnosis.remedy import REMEDIES, Change, Remedy
from moe_long_context.errors import MoeError
from moe_long_context.memory.capacity import Verdict, peak_interval, verdict
from moe_long_context.memory.estimate import estimate
from moe_long_context.speed import step_time
from moe_long_context.units import gib
from moe_long_context.yaml_safe import load_file

REFUSED = "config_refused:"
MAX_FIXES = 12
CAUSES_WITH_FIXES = 4
MIN_CONFIDENCE = 0.3
"""Causes below this are named but not acted on."""


class Fix(NamedTuple):
    """One change, what it buys and costs, and the configuration after it."""

    tag: str
    tags: tuple[str, ...]
    change: str
    cost: str
    cause: str
    saves_gib: float | None = None
    speed_ratio: float | None = None
    peak_gib: float | None = None
    fits: Verdict | None = None
    config: dict[str, Any] | None = None


class Trial(NamedTuple):
    """A changed configuration with its estimate; peak in bytes, None where it cannot be computed."""

    config: RunConfig
    change: Change
    peak: float | None
    fits: Verdict | None
    new_errors: frozenset[str]


def tags_for(cause: Cause) -> tuple[str, ...]:
    """The fixes of a cause: those its signatures name, then those of the table."""
    table = _remedies().get(cause.cause, ())
    return tuple(dict.fromkeys([*table, *cause.fixes]))


@lru_cache(maxsize=1)
def _remedies() -> dict[str, Any]:
    return dict(load_file(Path(__file__).parent / "remedies.yaml"))


@lru_cache(maxsize=1)
def _advice() -> dict[str, Any]:
    return dict(load_file(Path(__file__).parent / "advice.yaml"))


def fixes_for(case: Case, causes: list[Cause]) -> list[Fix]:
    """Fixes of the likeliest causes, those that make the run fit first, each tag once."""
    base = _Base.of(case)
    found: dict[str, Fix] = {}
    for rank, cause in enumerate(causes[:CAUSES_WITH_FIXES]):
        if rank and cause.confidence < MIN_CONFIDENCE:
            break
        for tag in tags_for(cause):
            if tag not in found and not any(tag in fix.tags for fix in found.values()):
                fix = _fix(base, tag, cause.cause)
                if fix:
                    found[tag] = fix
        for fix in _as_the_rule_says(base, cause.cause, found):
            found[fix.tag] = fix
    order = {tag: i for i, tag in enumerate(found)}
    ordered = sorted(found.values(), key=lambda f: (*_lead(f, causes), order[f.tag]))[:MAX_FIXES]
    both = list(_together(base, ordered))
    first = bool(both) and both[0].fits == "yes" and causes[0].cause in MEMORY_CAUSES
    return [*both, *ordered] if first else [*ordered, *both]


def _together(base: _Base, ordered: list[Fix]) -> Iterator[Fix]:
    """When no single change fits, the first changes that fit together, dropping those that then save nothing."""
    if base.peak is None or base.fits in (None, "yes") or not ordered or any(fix.fits == "yes" for fix in ordered):
        return
    config, peak, used = base.case.config, base.peak, list[Fix]()
    for fix in (f for f in ordered if f.saves_gib is not None and f.saves_gib > 0 and f.tag in REMEDIES):
        trial = _best_on(base, config, fix.tag)
        if trial is None or trial.peak is None or trial.peak > peak * NOT_WORTH_IT:
            continue
        config, peak = trial.config, trial.peak
        used.append(fix)
        if trial.fits == "yes":
            break
    if len(used) < 2:
        return
    run = resolve(config, partial=True)
    last = Trial(config, {}, peak, None, frozenset())
    yield Fix(
        tag="together", tags=tuple(dict.fromkeys(["together", *(t for f in used for t in f.tags)])),
        change="all of: " + _delta(base.case.config, config), cost="; ".join(fix.cost for fix in used),
        cause=used[0].cause, saves_gib=round(gib(base.peak - peak), 3), peak_gib=round(gib(peak), 3),
        fits=verdict(run, peak_interval(run, estimate(run).peak)), config=config.written(),
        speed_ratio=_speed_ratio(base, last),
    )  # fmt: skip


def _delta(before: RunConfig, after: RunConfig) -> str:
    old, new = flatten(before), flatten(after)
    changed = {name: new.get(name) for name in {**old, **new} if old.get(name) != new.get(name)}
    return ", ".join(
        f"{name}: {_show(value)}" if value is not None else f"drop {name}" for name, value in changed.items()
    )


def _best_on(base: _Base, config: RunConfig, tag: str) -> Trial | None:
    """The mildest change of one kind that fits on top of earlier ones, else the one with the lowest peak."""
    there = base._replace(case=replace(base.case, config=config), run=resolve(config, partial=True))
    trials = [t for t in _trials(there, REMEDIES[tag]) if not t.new_errors and t.peak is not None]
    return next((t for t in trials if t.fits == "yes"), None) or min(trials, key=_by_peak, default=None)


def _as_the_rule_says(base: _Base, cause: str, found: dict[str, Fix]) -> Iterator[Fix]:
    """The repair of the broken rule itself, where no change of a known kind repairs it; else its advice."""
    rule = cause.removeprefix(REFUSED)
    if rule == cause or any(fix.cause == cause and fix.config for fix in found.values()):
        return
    change = repair_of(rule, base.run)
    if change:
        remedy = Remedy(f"repair:{rule}", "see the rule", lambda run: iter((change,)))
        fix = _changed(base, remedy, cause)
        if fix is not None and fix.config:
            yield fix
            return
    for finding in base.case.findings:
        if finding.rule == rule and finding.fix:
            yield Fix(f"fix:{rule}", (f"fix:{rule}",), finding.fix, "see the rule", cause)
            return


def _lead(fix: Fix, causes: list[Cause]) -> tuple[int, float]:
    """Fixes of the first cause lead; of memory fixes those that fit, the least slow first, then those that help."""
    rank = 0 if fix.cause == causes[0].cause else 4
    if fix.cause not in MEMORY_CAUSES or fix.saves_gib is None:
        return rank, 0.0
    if fix.saves_gib < NOTHING_GIB:
        return rank + 3, 0.0
    slowdown = 0.0 if fix.speed_ratio is None else -round(fix.speed_ratio / SAME_SPEED) * SAME_SPEED
    return rank + {"yes": 0, "tight": 1}.get(fix.fits or "", 2), slowdown if fix.fits == "yes" else 0.0


NOTHING_GIB = 0.05
SAME_SPEED = 0.05
"""Modelled speeds within 5 % count as equal; the order of the table decides."""
NOT_WORTH_IT = 0.985
"""A change that lowers the peak by less than 1.5 % is left out of a combination."""

MEMORY_RULES = frozenset({"weights-exceed-memory"})
"""Rules about memory, which `fits` says already; a change is not illegal for leaving a run too large."""

MEMORY_CAUSES = frozenset({"logits_crossentropy_peak", "activations", "model_states", "optimizer_state_lazy_alloc"})


class _Base(NamedTuple):
    """The run as it was, its peak in bytes and the rules it already breaks."""

    case: Case
    run: Run
    peak: float | None
    fits: Verdict | None
    errors: frozenset[str]

    @classmethod
    def of(cls, case: Case) -> _Base:
        worst = case.memory.peak if case.memory else None
        known = worst is not None and "gpu" not in case.run.missing
        fits = verdict(case.run, peak_interval(case.run, worst)) if known and worst else None
        peak = worst.peak_bytes if worst else None
        return cls(case, case.run, peak, fits, frozenset(f.rule for f in case.findings if f.severity == "error"))


def _fix(base: _Base, tag: str, cause: str) -> Fix | None:
    if tag in REMEDIES:
        return _changed(base, REMEDIES[tag], cause)
    advice = _advice().get(tag)
    if not advice:
        return None
    return Fix(tag, (tag,), advice["change"].replace("FACTS", _flags(base.case)), advice["cost"], cause)


def _flags(case: Case) -> str:
    """What is known of the run as flags of the command line; a name in capitals where a fact is missing."""
    config = case.config
    count, gpu = config.num_gpus or "COUNT", config.gpu if isinstance(config.gpu, str) else "GPU"
    model = config.model if isinstance(config.model, str) else "MODEL"
    sizes = (f" --{short} {getattr(config, name)}" for short, name in SIZE_FIELDS.items() if getattr(config, name))
    return f"--model {model} --gpus {count}x{gpu} --seq-len {config.seq_length or 'LENGTH'}{''.join(sizes)}"


def _changed(base: _Base, found: Remedy, cause: str) -> Fix | None:
    """The mildest change of this kind that fits; else the one that saves most; else the first that is legal."""
    repairs = cause.removeprefix(REFUSED) if cause.startswith(REFUSED) else None
    trials = [t for t in _trials(base, found, repairs) if not t.new_errors]
    grown = base
    while not trials and found.tag in GROWING and grown.run.num_gpus < base.run.num_gpus * MAX_GROWTH:
        grown = _on_more_gpus(grown)
        trials = [t for t in _trials(grown, found, repairs) if not t.new_errors]
    if not trials:
        return _without_model(base, found, cause)
    best = _choose(base, trials)
    saves = None if base.peak is None or best.peak is None else round(gib(base.peak - best.peak), 3)
    return Fix(
        tag=found.tag,
        tags=tuple(dict.fromkeys([found.tag, *found.also, *_value_tags(best.change), *_alternatives(trials, cause)])),
        change=words(best.change) + _more_gpus(base, best),
        cost=found.cost,
        cause=cause,
        saves_gib=saves,
        speed_ratio=_speed_ratio(base, best),
        peak_gib=None if best.peak is None else round(gib(best.peak), 3),
        fits=best.fits,
        config=_without_stand_in(base, best.config).written(),
    )


def _without_stand_in(base: _Base, config: RunConfig) -> RunConfig:
    """The GPU count was only a stand-in when it was never given."""
    return config.replace(num_gpus=None) if "num_gpus" in base.run.missing else config


ENOUGH_SHARE = 0.1
"""Share of the device that a change should free when the estimate says that the run fits and it did not."""


def _choose(base: _Base, trials: list[Trial]) -> Trial:
    """The mildest trial that is enough: it fits, or frees a tenth of the device where the run seemed to fit before."""
    if base.peak is None:
        return trials[0]
    if base.fits != "yes":
        return next((t for t in trials if t.fits == "yes"), None) or min(trials, key=_by_peak)
    limit = base.peak - ENOUGH_SHARE * base.run.gpu.memory_bytes
    return next((t for t in trials if _by_peak(t) <= limit), None) or min(trials, key=_by_peak)


def _speed_ratio(base: _Base, trial: Trial) -> float | None:
    """Tokens per second and GPU after over before, None where it cannot be computed."""
    if base.peak is None or "gpu" in base.run.missing:
        return None
    try:
        before, after = step_time(base.case.run), step_time(resolve(trial.config))
    except MoeError:
        return None
    return round(after.tokens_per_s_per_gpu / before.tokens_per_s_per_gpu, 3)


GROWING = frozenset({"increase_ep", "increase_pp", "increase_cp"})
MAX_GROWTH = 4
"""Times the GPUs of the run up to which a change is looked for when it does not fit the run's own GPUs."""


def _on_more_gpus(base: _Base) -> _Base:
    """The same run on twice the GPUs; the change then says how many it needs."""
    config = base.case.config.replace(num_gpus=base.run.num_gpus * 2)
    run = resolve(config, partial=True)
    return base._replace(case=replace(base.case, config=config, run=run), run=run)


def _more_gpus(base: _Base, trial: Trial) -> str:
    count = trial.config.num_gpus if "num_gpus" not in base.run.missing else None
    grown = count is not None and count > base.run.num_gpus
    return f" (on {count} GPUs: the {base.run.num_gpus} of this run cannot hold it)" if grown else ""


def _alternatives(trials: list[Trial], cause: str) -> list[str]:
    """The other legal values of a change that is not about memory: any of them repairs the run."""
    if cause in MEMORY_CAUSES:
        return []
    return [tag for trial in trials[:8] for tag in _value_tags(trial.change)]


def _by_peak(trial: Trial) -> float:
    return trial.peak if trial.peak is not None else float("inf")


def _trials(base: _Base, found: Remedy, repairs: str | None = None) -> Iterator[Trial]:
    """Each candidate change, applied. `repairs` is the rule that the change must satisfy afterwards."""
    for change in _changes(found, base.run):
        try:
            config = base.case.config.replace(**change)
            run = resolve(config, partial=True)
        except MoeError:
            continue
        if base.case.knows_model or not _needs_shape(change):
            yield _estimated(base, config, run, change, repairs)


def _changes(found: Remedy, run: Run) -> Iterator[Change]:
    """The candidate changes; a run too broken to derive them from has none."""
    try:
        yield from found.options(run)
    except MoeError:
        return


SHAPE_FIELDS = ("pipeline_model_parallel_size", "pipeline_model_parallel_layout")


def _needs_shape(change: Change) -> bool:
    """Whether a change was computed from the model's shape, which may be a stand-in."""
    return any(name in change for name in SHAPE_FIELDS)


def _estimated(base: _Base, config: RunConfig, run: Run, change: Change, repairs: str | None) -> Trial:
    broken = error_rules(run) if base.case.knows_sizes or repairs else frozenset()
    errors = broken - (base.errors - {repairs}) - MEMORY_RULES
    if base.peak is None and not base.case.knows_model:
        return Trial(config, change, None, None, frozenset())
    try:
        worst = estimate(run).peak
    except MoeError as error:
        still_bad = frozenset({error.code}) if base.peak is not None or repairs else frozenset()
        return Trial(config, change, None, None, errors | still_bad)
    if not base.case.knows_sizes:
        return Trial(config, change, None, None, errors)
    fits = None if "gpu" in run.missing else verdict(run, peak_interval(run, worst))
    return Trial(config, change, worst.peak_bytes, fits, errors)


def _without_model(base: _Base, found: Remedy, cause: str) -> Fix | None:
    """The same advice without figures, when too little is known to compute a configuration."""
    if base.case.knows_model and base.case.knows_sizes:
        return None
    text = found.tag.replace("_", " ")
    return Fix(found.tag, (found.tag, *found.also), text, found.cost, cause)


def _value_tags(change: Change) -> list[str]:
    """Tags that name the new value, for changes of one size: `pp=2`, `vpp=2`, `num_layers_in_last_stage=10`."""
    short = {
        "pipeline_model_parallel_size": "pp", "virtual_pipeline_model_parallel_size": "vpp",
        "num_layers_in_last_pipeline_stage": "num_layers_in_last_stage",
        "num_layers_in_first_pipeline_stage": "num_layers_in_first_stage", "micro_batch_size": "mbs",
        "hierarchical_context_parallel_sizes": "hierarchical_context_parallel_sizes",
        "context_parallel_size": "cp", "tensor_model_parallel_size": "tp", "expert_model_parallel_size": "ep",
    }  # fmt: skip
    return [f"{short[k]}={v}".replace(" ", "") for k, v in change.items() if k in short and v is not None]


def words(change: Change) -> str:
    """A change as text: the fields that are set, then those that are dropped."""
    flat: dict[str, Any] = {}
    for key, value in change.items():
        flat.update({f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value})
    return ", ".join(
        f"{key}: {_show(value)}" for key, value in flat.items() if value is not None
    ) or "drop " + ", ".join(flat)


def _show(value: Any) -> str:
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
