"""The whole diagnosis: ranking, explained allocations, and fixes that are checked."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import yaml

from moe_long_context.config.resolve import resolve
from moe_long_context.diagnosis.cause import Cause, ranked
from moe_long_context.diagnosis.checking import error_rules
from moe_long_context.diagnosis.fixes import _advice, _remedies
from moe_long_context.diagnosis.questions import HOW
from moe_long_context.diagnosis.remedy import REMEDIES, even_layout
from moe_long_context.diagnosis.signature import signatures
from moe_long_context.diagnosis.tensors import matches
from moe_long_context.mesh.layout_string import layout_problems, stages_of
from moe_long_context.rules import all_rules
from moe_long_context.tools import diagnose_failure, estimate_memory
from moe_long_context.units import GIB

from . import make_log

RUN = {
    "model": "qwen3.5-35b-a3b", "gpu": "H20", "num_gpus": 16, "seq_length": 63488, "tp": 2, "ep": 8, "sp": True,
    "gbs": 16,
}  # fmt: skip


def test_the_failed_allocation_is_explained_by_a_tensor() -> None:
    """63,488 tokens x 248,320 / 2 vocabulary x 4 bytes = 29.37 GiB: one copy of the logits in fp32."""
    answer = diagnose_failure(RUN, log="\n".join(make_log.oom("loss", 29.37, 60.0, total=95.1)))
    assert answer.result.failed_allocation.explained[0].startswith("one copy of the logits in fp32: 63,488 tokens")
    assert answer.result.causes[0].cause == "logits_crossentropy_peak"


def test_a_size_that_no_tensor_has_is_not_explained() -> None:
    """No story is told about a number that fits nothing."""
    assert matches(resolve(RUN), 7.77 * GIB, "loss") == []


def test_the_rank_that_failed_is_placed_in_the_pipeline() -> None:
    """Megatron's default order: pipeline stage = rank // (GPUs / PP); rank 13 of 16 at PP 4 is on stage 3."""
    config = {**RUN, "model": "qwen3-30b-a3b", "pp": 4, "ep": 2}
    answer = diagnose_failure(config, log="\n".join(make_log.oom("experts", 2.0, 80.0, rank=13)))
    failed = answer.result.failed_allocation
    assert (failed.rank, failed.pipeline_stage) == ("13", 3)
    assert failed.stage_holds == "ttttttttttttL: 12 gqa+moe"


def test_what_a_fix_saves_is_the_difference_of_two_estimates() -> None:
    """Every figure can be reproduced with `estimate_memory` on the fix's own configuration."""
    answer = diagnose_failure(RUN, log="\n".join(make_log.oom("loss", 29.37, 60.0)))
    before = estimate_memory(RUN).result.peak_gib
    fixes = [fix for fix in answer.result.fixes if fix.saves_gib is not None and fix.config]
    assert len(fixes) >= 3
    for fix in fixes:
        assert fix.peak_gib == pytest.approx(estimate_memory(fix.config).result.peak_gib, abs=0.002)
        assert fix.saves_gib == pytest.approx(before - fix.peak_gib, abs=0.003)


def test_no_fix_breaks_a_rule_that_held_before() -> None:
    """A fix that the framework refuses is no fix."""
    answer = diagnose_failure(RUN, log="\n".join(make_log.oom("experts", 2.0, 80.0)))
    before = error_rules(resolve(RUN))
    assert [f.tag for f in answer.result.fixes if f.config and error_rules(resolve(f.config)) - before] == []


def test_fixes_that_make_the_run_fit_come_before_those_that_do_not() -> None:
    """A person reads from the top."""
    answer = diagnose_failure(RUN, log="\n".join(make_log.oom("experts", 2.0, 80.0)))
    first = answer.result.causes[0].cause
    order = [f.fits for f in answer.result.fixes if f.for_cause == first and f.saves_gib and f.tag != "together"]
    assert order == sorted(order, key=["yes", "tight", "no"].index)


def test_reserved_but_unused_memory_above_the_request_is_fragmentation() -> None:
    """9 GiB in pieces while 2.4 GiB could not be had."""
    answer = diagnose_failure(RUN, log="\n".join(make_log.oom("experts", 2.4, 70.0, unused=9.0)))
    assert answer.result.causes[0].cause == "fragmentation"
    assert answer.result.fixes[0].tag == "expandable_segments"


def test_changes_that_only_fit_together_lead() -> None:
    """364 GiB are far from a 95 GiB card: no single change fits, the combination does and comes first."""
    first = diagnose_failure(RUN, log="\n".join(make_log.oom("loss", 29.37, 60.0))).result.fixes[0]
    assert (first.tag, first.fits) == ("together", "yes")
    assert estimate_memory(first.config).result.fits == "yes"


def test_a_log_that_cannot_be_of_this_configuration_is_doubted() -> None:
    """8 GiB allocated where the estimate needs hundreds: the answer says that the two do not belong together."""
    answer = diagnose_failure(RUN, log="\n".join(make_log.oom("experts", 1.0, 8.0)))
    assert any("check that it is the configuration that ran" in text for text in answer.assumptions)


def test_memory_of_other_processes_is_named() -> None:
    """A colocated rollout engine or a leftover process."""
    answer = diagnose_failure(RUN, log="\n".join(make_log.oom("experts", 2.4, 40.0, others=35.0, total=95.1)))
    assert "other_process_on_gpu" in [c.cause for c in answer.result.causes]
    assert "rollout_memory_share" in answer.result.missing


def test_an_earlier_out_of_memory_outranks_the_timeouts_that_follow() -> None:
    """Every other rank times out when one dies."""
    log = [*make_log.oom("loss", 29.37, 60.0, rank=3), *[make_log.nccl_timeout(rank) for rank in range(4, 16)]]
    assert diagnose_failure(RUN, log="\n".join(log)).result.causes[0].cause == "logits_crossentropy_peak"


def test_a_driver_out_of_memory_is_not_host_memory() -> None:
    """cuMemCreate reports CUDA_ERROR_OUT_OF_MEMORY; Slurm's OUT_OF_MEMORY state is the host's."""
    device = diagnose_failure(RUN, log="RuntimeError: CUDA driver error: CUDA_ERROR_OUT_OF_MEMORY\n")
    host = diagnose_failure(RUN, log="slurmstepd: error: *** STEP 7.0 ON n1 OUT_OF_MEMORY ***\n")
    assert "host_memory" not in [c.cause for c in device.result.causes]
    assert host.result.causes[0].cause == "host_memory"


def test_ranks_killed_after_an_exception_are_not_host_memory() -> None:
    """torchrun kills the other ranks with signal 9 once one has failed."""
    lines = make_log.traceback("config", "ValueError: Invalid choices for recompute_modules: {'norm'}. Must be one of")
    lines += [
        "[0]: exitcode  : -9 (pid: 11)",
        "torch.distributed.elastic: traceback : Signal 9 (SIGKILL) received by PID 11",
    ]
    assert diagnose_failure(RUN, log="\n".join(lines)).result.causes[0].cause == (
        "config_refused:recompute-modules-valid-names"
    )


def test_gradients_that_are_not_finite_are_named() -> None:
    """`grad norm: nan` in Megatron's line of a step."""
    steps = "\n".join(make_log.step(n, tflops=60.0, grad_norm=float("nan")) for n in range(1, 5))
    assert diagnose_failure(RUN, log=steps).result.causes[0].cause == "nan_gradients"


HEALTHY = """\
NCCL INFO NET/IB : Using [0]mlx5_0:1/IB, NVSHMEM_IB_ENABLE_IBGDA=true, NCCL_IB_TIMEOUT=22
INFO:megatron: sequence_parallel: true, recompute_modules: [moe_act], cuda_graph_impl: none, te_rng_tracker: false
  num_layers_in_first_pipeline_stage .............. None
  virtual_pipeline_model_parallel_size ............ 4
UserWarning: MTP with GDN layers and optimizer_cpu_offload; global_batch_size is divisible by everything
"""


def test_a_healthy_log_full_of_names_accuses_nobody() -> None:
    """Printed arguments and library chatter hold every word that an error could hold."""
    config = {key: value for key, value in RUN.items() if key not in ("gpu", "seq_length")}
    answer = diagnose_failure(config, log=HEALTHY + make_log.step(1) + "\n" + make_log.step(2) + "\n")
    assert [c.cause for c in answer.result.causes] == ["log_ends_without_error"]


def test_a_log_without_an_error_says_so() -> None:
    """Cut off or killed from outside: nothing is invented."""
    steps = "\n".join(make_log.step(n, tflops=60.0) for n in range(1, 9))
    answer = diagnose_failure(RUN, log=steps + "\n")
    assert answer.result.causes[0].cause == "log_ends_without_error"
    assert answer.result.causes[0].confidence <= 0.4


def test_nothing_at_all_is_refused() -> None:
    """Neither configuration nor log."""
    assert diagnose_failure().error.code == "bad_value"


def test_hints_add_up_but_never_to_certainty() -> None:
    """Ten hints for one cause stay below certainty; the strongest leads."""
    hints = [Cause("a", 0.9, f"reason {n}") for n in range(10)] + [Cause("b", 0.5, "other")]
    first = ranked(hints)[0]
    assert (first.cause, first.confidence) == ("a", 0.97)


@pytest.mark.parametrize(("layers", "stages", "mtp"), [(61, 8, 1), (61, 4, 0), (94, 4, 0), (46, 4, 1), (48, 32, 0)])
def test_an_even_layout_is_accepted_by_the_framework(layers: int, stages: int, mtp: int) -> None:
    """Megatron-Core's validate_layer_layout: every layer once, E first, L last, MTP before the loss."""
    assert layout_problems(stages_of(even_layout(layers, stages, mtp)), layers, mtp, stages) == []


def test_every_refusal_is_named_with_a_fix() -> None:
    """Each error rule's failing example: the rule, or the one that speaks for it, is a cause, and a fix is advised."""
    for rule in (r for r in all_rules().values() if r.severity == "error" and r.id != "weights-exceed-memory"):
        family = import_module(f"moe_long_context.rules.families.{rule.family.replace('-', '_')}")
        example = {**rule.fails.get("base", family.BASE), **{k: v for k, v in rule.fails.items() if k != "base"}}
        result = diagnose_failure(example).result
        named = {c.cause.removeprefix("config_refused:") for c in result.causes}
        assert named & {rule.id, *rule.silenced_by}, rule.id
        assert result.fixes, rule.id


TOLD = {
    "the host was killed at step 2, the node is full at 1 TB": "host_memory",
    "training hangs after ten minutes in DeepEP on four nodes": "deepep_internode_transport",
    "OOM on the last pipeline stage only": "logits_crossentropy_peak",
    "OOM on pipeline stage 0 with PP 8": "activations",
    "the loss is NaN from the first step": "nan_gradients",
    "a checkpoint cannot be resumed with a different TP": "optimizer_state_not_reshardable",
    "CUDA error: an illegal memory access was encountered": "other_rank_died_first",
    "ValueError: num_query_groups (2) must be a multiple of tensor_model_parallel_size (8).": (
        "config_refused:kv-groups-vs-tp"
    ),
}


@pytest.mark.parametrize("symptom", TOLD, ids=range(len(TOLD)))
def test_a_symptom_in_words_is_enough_to_start(symptom: str) -> None:
    """People tell or paste one line before they look for the log; either door takes it."""
    for answer in (diagnose_failure(symptom=symptom), diagnose_failure(log=symptom)):
        assert answer.result.causes[0].cause == TOLD[symptom]
        assert answer.result.missing


def test_every_signature_is_whole() -> None:
    """A signature has texts or words, suspects, a source; its fixes and questions exist."""
    known = set(REMEDIES) | set(_advice())
    also = {tag for remedy in REMEDIES.values() for tag in remedy.also}
    for signature in signatures():
        assert signature.texts or signature.words, signature.id
        assert signature.suspects and signature.source, signature.id
        assert not [t for t in signature.fixes if t not in known | also], (signature.id, signature.fixes)
        assert not [m for m in signature.missing if m not in HOW], signature.id


def test_every_fix_of_the_table_exists() -> None:
    """No cause points to a fix that nobody wrote."""
    known = set(REMEDIES) | set(_advice())
    assert [tag for tags in _remedies().values() for tag in tags if tag not in known] == []


def test_every_signature_text_is_found_in_a_log_line() -> None:
    """The search for literals does not lose a signature: each is hit by a line made of its own text."""
    from moe_long_context.diagnosis.scan import scan

    for signature in (s for s in signatures() if s.texts and not s.pattern):
        for text in signature.texts:
            line = f"noise\nRuntimeError: {text}\nnoise\n"
            assert signature.id in scan(line).hits, (signature.id, text)


def test_answers_are_plain_json() -> None:
    """What `--json` prints is what Python returns."""
    answer: dict[str, Any] = diagnose_failure(RUN, log="\n".join(make_log.oom("loss", 29.37, 60.0))).model_dump(
        mode="json"
    )
    assert yaml.safe_load(yaml.safe_dump(answer)) == answer
