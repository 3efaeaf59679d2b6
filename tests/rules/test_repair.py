"""`validate --fix` on runs broken at random: what a rule can repair is repaired, and the tool around it."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "oracle"))

import config_cases

from moe_long_context.config.resolve import resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.rules.registry import all_rules, check
from moe_long_context.rules.repair import repair
from moe_long_context.tools import validate_config

TRIED = 300
BROKEN = {
    "model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_length": 131072, "cp": 32, "pp": 8, "ep": 32, "etp": 1,
    "layout": "Et|(tt|)*30mL", "gbs": 256, "recompute": ["up_proj", "norm", "moe"], "overlap": {"ep_a2a": True},
}  # fmt: skip


def test_nothing_repairable_is_left() -> None:
    """After the repairs no rule of severity error that has a repair fires, on any of the random runs."""
    repairable = {rule.id for rule in all_rules().values() if rule.repair}
    for index in range(TRIED):
        fixed, _ = repair(config_cases.case(index).written)
        errors = {f.rule for f in check(resolve(fixed, partial=True)) if f.severity == "error"}
        assert not errors & repairable, (index, errors & repairable)


def test_fix_lists_every_edit_and_writes_the_file(tmp_path: Path) -> None:
    """The mistakes of published guidance are repaired: `up_proj`, `norm`, and EP overlap beside `moe` recompute."""
    path = tmp_path / "fixed.yaml"
    answer = validate_config(BROKEN, fix=True, output=str(path))
    assert answer.exit_status == 1 and answer.result is not None
    assert {edit.rule for edit in answer.result.edits} >= {"recompute-modules-valid-names", "ep-overlap-recompute-moe"}
    assert validate_config(path).exit_status == 0
    again = RunConfig.read(answer.result.repaired or {})
    assert set(again.recompute.modules if again.recompute else ()) == {"mla_up_proj", "layernorm", "moe"}


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    """Without force the output is not overwritten: one clear error, exit 2."""
    path = tmp_path / "mine.yaml"
    path.write_text("precious", encoding="utf-8")
    assert validate_config(BROKEN, fix=True, output=str(path)).exit_status == 2
    assert path.read_text(encoding="utf-8") == "precious"


def test_explain_returns_the_page_of_a_rule() -> None:
    """--explain prints one rule with its source; an unknown id names near ones."""
    answer = validate_config({}, explain="world-size-expert-mesh")
    assert answer.result is not None and "initialize_model_parallel" in answer.result.page
    unknown = validate_config({}, explain="world-size-expert")
    assert unknown.error is not None and "world-size-expert-mesh" in str(unknown.error)


def test_sarif_annotates_every_finding() -> None:
    """SARIF 2.1.0: one result for each finding, levels error, warning and note, every rule described once."""
    answer = validate_config(BROKEN, format="sarif")
    assert answer.result is not None and answer.result.sarif is not None
    log = answer.result.sarif
    run = log["runs"][0]
    assert log["version"] == "2.1.0" and [r["ruleId"] for r in run["results"]] == [f.rule for f in answer.findings]
    assert {r["level"] for r in run["results"]} <= {"error", "warning", "note"}
    assert {r["id"] for r in run["tool"]["driver"]["rules"]} == {f.rule for f in answer.findings}


@pytest.mark.parametrize("config", [{}, {"model": "dsv3"}, {"pp": 5}, {"tp": 3, "num_gpus": 8}, {"vpp": 7, "pp": 2}])
def test_facts_not_given_are_no_fault(config: dict[str, object]) -> None:
    """A partial configuration names what it lacks, and no error rests on a stand-in."""
    answer = validate_config(config)
    assert answer.result is not None and answer.result.missing
    assert {f.rule for f in answer.findings if f.severity == "error"} <= {
        "world-size-dense-mesh",
        "world-size-expert-mesh",
    }
