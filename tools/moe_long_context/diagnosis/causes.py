"""Finds the causes of a failure: signatures in the log, what a person tells, refused configurations, odd numbers.

Device memory has its own module, `memory_causes`.
"""

from __future__ import annotations

from collections.abc import Iterator

from moe_long_context.diagnosis.case import PREDICATES, Case
from moe_long_context.diagnosis.cause import Cause, ranked
from moe_long_context.diagnosis.memory_causes import memory_causes
from moe_long_context.diagnosis.signature import Signature, signatures
from moe_long_context.units import gib

UNMET = 0.35
"""Factor on a suspect whose condition on the configuration is not met."""
TOLD = 0.92
"""Factor on a suspect that only a person's words point to."""
ASKED_TOO = 0.34
"""Factor on a question beside a failure: a person who asks for a layout after an OOM wants the cause first."""
GRAD_NORM_EXPLODES = 50.0
"""Largest over first gradient norm that counts as an explosion."""
CONSEQUENCES = frozenset({"DistBackendError", "ChildFailedError", "DistNetworkError", "DistStoreError", "RayTaskError",
                          "ActorDiedError", "BrokenPipeError", "KeyboardInterrupt", "SystemExit"})  # fmt: skip
"""Exceptions that a rank raises because another rank is gone."""
ABOVE_PEAK = 1.0
"""Model TFLOP/s over the device's dense peak: more is impossible."""


def causes_of(case: Case) -> list[Cause]:
    """All causes worth naming, likeliest first; at least one."""
    hints = [*_signature_causes(case), *memory_causes(case), *_refused(case), *_above_peak(case), *_gradients(case)]
    if any(hint.cause == "host_memory" for hint in hints):
        hints += _host_share(case)
    hints += _questions(case, failed=bool(hints) or case.facts.is_a_log)
    if not hints:
        hints = list(_unexplained(case))
    return ranked(hints)[:8]


def _host_share(case: Case) -> list[Cause]:
    """What the offloaded optimizer needs of a node's memory, beside everything that the estimate does not know."""
    if case.memory is None:
        return []
    need = gib(max(stage.states.host for stage in case.memory.stages) * case.run.gpus_per_node)
    if not need:
        return []
    have = case.run.gpu.host_gib_per_node
    text = f"the offloaded optimizer state alone is estimated at {need:.0f} GiB per node"
    text += f" of {have:.0f}" if have else ""
    return [Cause("host_memory", 0.5, f"{text}; rollout weights, reference copies and pinned buffers come on top")]


def _signature_causes(case: Case) -> Iterator[Cause]:
    root = _has_root(case)
    for signature in (s for s in signatures() if not s.question):
        hit = case.facts.hits.get(signature.id)
        if hit is None and not signature.is_told(case.told):
            continue
        seen = f'the log says "{hit.first[:140]}"' if hit else "as told"
        weight = 1.0 if hit else TOLD
        if signature.follows_others and root:
            weight *= 0.5
        yield from _suspects(case, signature, seen, weight)


def _questions(case: Case, failed: bool) -> Iterator[Cause]:
    """What a person asks that another tool answers; it leads only where no failure is told."""
    for signature in (s for s in signatures() if s.question and s.is_told(case.told)):
        yield from _suspects(case, signature, "as told", ASKED_TOO if failed else 1.0)


def _has_root(case: Case) -> bool:
    """Whether the log holds a failure that is not itself likely a consequence of another rank's."""
    own = any(not f.follower and f.kind not in CONSEQUENCES for f in case.facts.failures)
    return own or bool(case.facts.ooms) or "host-oom-killer" in case.facts.hits


def _suspects(case: Case, signature: Signature, seen: str, weight: float) -> Iterator[Cause]:
    for suspect in signature.suspects:
        met = not suspect.needs or PREDICATES[suspect.needs](case)
        confidence = suspect.confidence * weight * (1.0 if met else UNMET)
        yield Cause(suspect.cause, confidence, f"{suspect.because} ({seen})", signature.fixes, signature.missing)


def _refused(case: Case) -> Iterator[Cause]:
    """Rules that the configuration breaks; a run that printed steps was not refused."""
    if case.facts.iteration_count:
        return
    base = 0.35 if _reached_a_step(case) else 0.9 if case.facts.failures else 0.8
    if not case.facts.is_a_log and any(s.is_told(case.told) for s in signatures()):
        base = min(base, 0.45)
    for finding in case.findings:
        if finding.rule == "weights-exceed-memory" and not case.knows_sizes:
            continue
        if finding.rule == "weights-exceed-memory":
            yield Cause("model_states", 0.3 if case.died_of_memory else 0.8, finding.message)
        elif finding.severity == "error":
            yield Cause(f"config_refused:{finding.rule}", base, finding.message)


def _reached_a_step(case: Case) -> bool:
    """Whether the log shows something that only a started run can show."""
    runtime = {s.id for s in signatures() if not s.only_errors}
    return case.died_of_memory or bool(runtime & set(case.facts.hits))


def _above_peak(case: Case) -> Iterator[Cause]:
    """Faster than the hardware can be means that attention did less than the model asks for."""
    run, tflops = case.run, case.facts.best_tflops
    hollow = run.cp_comm_type == "a2a+p2p" and not run.written.hierarchical_context_parallel_sizes and run.sizes.cp > 1
    if hollow:
        text = (
            "cp_comm_type a2a+p2p without hierarchical sizes: every rank attends only to its own part of the sequence"
        )
        yield Cause("cp_communication_disabled", 0.85, text)
    peak = run.gpu.bf16_tflops if run.precision == "bf16" else (run.gpu.fp8_tflops or run.gpu.bf16_tflops)
    if tflops is None or "gpu" in run.missing or tflops <= peak * ABOVE_PEAK:
        return
    text = f"{tflops:,.0f} TFLOP/s per GPU is above the device's peak of {peak:,.0f}; the work was not done"
    yield Cause("cp_communication_disabled", 0.9 if hollow or run.sizes.cp > 1 else 0.5, text)


def _gradients(case: Case) -> Iterator[Cause]:
    if case.facts.nan_steps:
        yield Cause("nan_gradients", 0.55, f"{case.facts.nan_steps} printed steps have no finite gradient norm")
    first, worst = case.facts.first_grad_norm, case.facts.worst_grad_norm
    if not first or worst is None or worst < first * GRAD_NORM_EXPLODES:
        return
    text = f"the gradient norm went from {first:g} to {worst:g}"
    if case.run.sizes.cp > 1:
        yield Cause("loss_normalisation_contract", 0.72, f"{text} with CP > 1, where the loss must return token counts")
    yield Cause("diverging_training", 0.4, text)


def _unexplained(case: Case) -> Iterator[Cause]:
    facts = case.facts
    if facts.failures:
        failure = facts.failures[0]
        yield Cause(f"exception:{failure.kind}", 0.3, f"the first exception says: {failure.message}")
    elif facts.n_bytes and facts.printable_share < 0.7:
        yield Cause("log_is_not_text", 0.9, "most of the file is not text; pass the text log of the rank that failed")
    elif facts.iteration_count:
        last = facts.last_iteration
        number = last.number if last else 0
        text = f"steps up to {number} are printed and no error follows: cut off, or killed from outside"
        yield Cause("log_ends_without_error", 0.4, text, missing=("first_failing_rank",))
    else:
        yield Cause("nothing_recognised", 0.1, "the log holds no error that is known here", missing=("error_text",))
