"""Facts about every rule: it fires on its failing example, is quiet on its passing one, and is complete."""

import re
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import moe_long_context.rules as rules
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import UnknownNameError
from moe_long_context.rules.repair import repair
from moe_long_context.rules.rule import Rule

ALL = rules.all_rules()
EACH = pytest.mark.parametrize("rule", ALL.values(), ids=list(ALL))


def example(rule: Rule, changes: dict[str, object]) -> dict[str, object]:
    """A rule's example over its family's base."""
    family = import_module(f"moe_long_context.rules.families.{rule.family.replace('-', '_')}")
    base = changes.get("base", family.BASE)
    assert isinstance(base, dict)
    return {**base, **{k: v for k, v in changes.items() if k != "base"}}


def run(rule: Rule, changes: dict[str, object]) -> Run:
    """The resolved example."""
    return resolve(example(rule, changes), partial=True)


@EACH
def test_fires_on_its_failing_example(rule: Rule) -> None:
    """The predicate returns a message on `fails`."""
    assert rule.check(run(rule, rule.fails))


@EACH
def test_is_quiet_on_its_passing_example(rule: Rule) -> None:
    """The predicate returns None on `passes`."""
    assert rule.check(run(rule, rule.passes)) is None


@EACH
def test_is_complete(rule: Rule) -> None:
    """Every part that a person reads is there, and the name states a fault, not advice."""
    assert all((rule.title, rule.why, rule.fix, rule.source, rule.fields))
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.id)
    assert not re.match(r"(use|avoid|prefer|no|disallow|must|should)-", rule.id)
    assert all(other in ALL for other in rule.silenced_by)


@pytest.mark.parametrize("rule", [r for r in ALL.values() if r.repair], ids=lambda r: r.id)
def test_repair_removes_the_finding(rule: Rule) -> None:
    """What `validate --fix` changes makes the rule quiet, and each edit names its rule and its effect."""
    config = RunConfig.read(example(rule, rule.fails))
    fixed, edits = repair(config)
    assert rule.check(resolve(fixed, partial=True)) is None
    assert edits and all(edit.effect in ("execution-only", "changes memory", "convergence-changing") for edit in edits)


def test_every_collected_rule_is_implemented_or_listed() -> None:
    """rules/not_implemented.yaml names what is left out, with a reason, and nothing that exists."""
    listed = yaml.safe_load((Path(rules.__file__).parent / "not_implemented.yaml").read_text(encoding="utf-8"))
    assert all(isinstance(reason, str) and reason for reason in listed.values())
    assert not set(listed) & set(ALL)


def test_one_cause_one_finding() -> None:
    """A rule that another one explains stays silent."""
    found = [
        f.rule
        for f in rules.check(resolve({"model": "gpt-oss-20b", "num_gpus": 16, "ep": 16, "gpu": "H100"}, partial=True))
    ]
    assert len(found) == len(set(found))
    assert "ep-cross-domain" in found and "deepep-internode" not in found


def test_most_severe_first() -> None:
    """Errors stand before warnings and notes."""
    order = [
        f.severity for f in rules.check(resolve({"tp": 3, "num_gpus": 7, "dispatcher": "allgather"}, partial=True))
    ]
    assert order == sorted(order, key=["error", "warning", "info"].index) and "error" in order


@pytest.mark.parametrize("version", ["0.13.0", "9.9", "latest please"])
def test_unknown_versions_are_refused(version: str) -> None:
    """A release that the rules were not read from is named with the known ones."""
    with pytest.raises(UnknownNameError) as caught:
        rules.check(resolve({"versions": {"megatron_core": version}}, partial=True))
    assert "0.19.2" in caught.value.fix


def test_versions_change_the_answer() -> None:
    """Gated delta net under CP: refused in 0.17, accepted in 0.19 with heads that divide."""
    base = {
        "model": "qwen3-next-80b-a3b",
        "gpu": "H100",
        "num_gpus": 64,
        "seq_length": 32768,
        "cp": 4,
        "ep": 8,
        "pp": 2,
    }
    old = rules.check(resolve({**base, "versions": {"megatron_core": "0.17.0"}}))
    new = rules.check(resolve({**base, "versions": {"megatron_core": "0.19.2"}}))
    assert "gdn-cp-unsupported-old" in {f.rule for f in old}
    assert not [f for f in new if f.severity == "error"]


def test_missing_facts_keep_their_rules_silent() -> None:
    """Rules about a GPU count that was not given say nothing."""
    assert not {f.rule for f in rules.check(resolve({"model": "dsv3", "tp": 3}, partial=True))} & {
        "world-size-dense-mesh"
    }


@pytest.mark.parametrize("name", ["dsv3-128k-h100", "dsv3-256k-h100", "qwen3-235b-128k-gb200"])
def test_the_shipped_configurations_have_no_error(name: str) -> None:
    """The three config families of the seed pass."""
    from moe_long_context.config.reading import read_file

    path = Path(__file__).parents[2] / "skill" / "configs" / f"{name}.yaml"
    assert [f for f in rules.check(resolve(read_file(path))) if f.severity == "error"] == []


def test_pages_are_current() -> None:
    """skill/references/rules is what the code says; `make docs` writes it."""
    from moe_long_context.rules.pages import main

    assert main(["--check", str(Path(__file__).parents[2] / "skill" / "references" / "rules")]) == 0
