"""Comparing two runs: fields, effects, defaults, memory, versions and the bisect plan."""

from __future__ import annotations

import pytest

from moe_long_context.config.framework_fields import by_path
from moe_long_context.diagnosis.compare import effect_of, version_key
from moe_long_context.tools import compare_configs

BASE = {
    "model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 16, "seq_length": "32k", "tp": 2, "cp": 2, "ep": 8, "sp": True,
    "gbs": 64,
}  # fmt: skip


def test_equal_runs_are_the_same_in_any_spelling() -> None:
    """Aliases are one field."""
    spelled = {**BASE, "seq_length": 32768, "tensor_model_parallel_size": 2}
    del spelled["tp"]
    result = compare_configs(BASE, spelled).result
    assert result.same
    assert result.differences == ()


def test_execution_and_training_changes_are_told_apart() -> None:
    """CP and recompute change only the execution; the learning rate and the global batch change the training."""
    changed = {**BASE, "cp": 4, "gbs": 128, "recompute": ["moe_act"], "megatron": {"optimizer.lr": 1e-4}}
    result = compare_configs(BASE, changed).result
    effects = {d.field: d.effect for d in result.differences}
    assert effects == {
        "context_parallel_size": "execution", "global_batch_size": "training", "recompute.granularity": "execution",
        "recompute.modules": "execution", "optimizer.lr": "training",
    }  # fmt: skip
    assert set(result.changes_training) == {"global_batch_size", "optimizer.lr"}


def test_number_formats_are_rounding() -> None:
    """BF16 against FP8 is the same algorithm in other numbers."""
    assert effect_of("precision")[0] == effect_of("optimizer.moment_dtype")[0] == "rounding"


def test_defaults_that_differ_between_front_ends_are_found() -> None:
    """megatron-bridge 0.6.2: ETP 1, fused loss, distributed optimizer; Megatron-LM: ETP = TP, eager loss, none."""
    result = compare_configs(BASE, {**BASE, "frontend": "megatron_lm"}).result
    defaulted = {d.field: (d.a, d.b) for d in result.differences if d.defaulted}
    assert defaulted["expert_tensor_parallel_size"] == (1, 2)
    assert defaulted["optimizer.distributed"] == (True, False)
    assert defaulted["loss"] == ("fused", "eager")


def test_memory_by_component_adds_up() -> None:
    """The components of both peaks differ by the difference of the peaks when the stage is the same."""
    memory = compare_configs(BASE, {**BASE, "cp": 4}).result.memory
    assert memory.a_peak_stage == memory.b_peak_stage == 0
    assert memory.delta_gib == pytest.approx(sum(memory.components.values()), abs=0.01)
    assert memory.components["logits"] < 0 or memory.components["activations"] < 0


def test_each_difference_is_weighed_alone() -> None:
    """Doubling CP lowers the peak, dropping sequence parallelism raises it."""
    result = compare_configs(BASE, {**BASE, "cp": 4, "recompute": ["moe"]}).result
    alone = {d.field: d.peak_gib_alone for d in result.differences}
    assert alone["context_parallel_size"] < 0
    assert alone["recompute.granularity"] is not None


def test_what_lies_between_two_versions_is_listed() -> None:
    """megatron-core 0.18 is the first with context parallelism for gated-delta-net layers."""
    old = {**BASE, "versions": {"megatron_core": "0.17.0"}}
    new = {**BASE, "versions": {"megatron_core": "0.18.1"}}
    topics = [c["topic"] for c in compare_configs(old, new).result.version_changes]
    assert "gated-delta-net layers run with context parallelism and packing" in topics
    assert not any("KV heads" in topic for topic in topics)


def test_a_rule_that_ends_between_two_versions_is_listed() -> None:
    """Core 0.17 refuses gated-delta-net layers under context parallelism, 0.18 does not: the rule ends."""
    old, new = ({**BASE, "versions": {"megatron_core": v}} for v in ("0.17", "0.18"))
    ends = [c["topic"] for c in compare_configs(old, new).result.version_changes if c["kind"] == "refusal ends"]
    assert any(topic.startswith("gdn-cp-unsupported-old") for topic in ends)


def test_the_plan_separates_container_source_and_defaults() -> None:
    """Every axis is one run, and what the configurations differ in is to be halved."""
    plan = compare_configs(BASE, {**BASE, "cp": 4}).result.bisect_plan
    assert [step["axis"] for step in plan] == ["reproduce", "container", "source", "defaults", "defaults"]
    assert "context_parallel_size" in plan[-1]["run"]


def test_less_than_a_run_is_compared_and_says_what_it_lacks() -> None:
    """A diff of two fragments answers and names the missing facts."""
    answer = compare_configs({"tp": 2}, {"tp": 4})
    assert answer.ok
    assert [d.field for d in answer.result.differences if not d.defaulted] == ["tensor_model_parallel_size"]
    assert "a.model" in answer.result.missing
    assert answer.result.memory.delta_gib is None


def test_versions_are_ordered_by_number() -> None:
    """0.9 is older than 0.19, and a version that is not given counts as the newest."""
    assert version_key("0.9.0") < version_key("0.19") < version_key("0.19.2") < version_key(None)


def test_every_framework_field_has_an_effect() -> None:
    """A field of the released framework is never left without a class."""
    assert {effect_of(path)[0] for path in by_path()} == {"execution", "rounding", "training"}
