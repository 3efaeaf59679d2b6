"""The rules against the recorded verdicts of the real config classes, megatron-core 0.14.0 to 0.19.2, without torch."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "oracle"))

import config_cases  # noqa: E402

from moe_long_context.rules.registry import all_rules  # noqa: E402

ALL = all_rules()
NEWEST_REPLAYED, OLDER_REPLAYED = 600, 120


def golden(name: str) -> dict[str, Any]:
    return json.loads((TESTS / "golden" / name).read_text(encoding="utf-8"))


NEWEST = golden("configs_core-0.19.2.json")
OLDER = golden("configs_older_cores.json")["releases"]


def replayed(accepted: str, count: int, older: str | None = None) -> list[int]:
    """Indices of cases that the rules judge otherwise than the framework did."""
    judged = ((index, config_cases.refused_by(config_cases.case(index, older))) for index in range(count))
    return [index for index, rules in judged if bool(rules) == (accepted[index] == "1")]


def test_recorded_without_disagreement() -> None:
    """Both records are complete, with many refusals and acceptances, and the rules judge every case alike."""
    assert NEWEST["seed"] == config_cases.SEED and NEWEST["tried"] == config_cases.CASES == len(NEWEST["accepted"])
    assert [record["disagreements"] for record in (NEWEST, *OLDER.values())] == [0] * 6
    for record in (NEWEST, *OLDER.values()):
        assert record["accepted"].count("1") > 1500 and record["refused"] > 1500


def test_newest_core_and_bridge() -> None:
    """Core 0.19.2 and Bridge 0.6.2 `finalize()`: accepted exactly where no rule of the config class fires."""
    assert replayed(NEWEST["accepted"], NEWEST_REPLAYED) == []


@pytest.mark.parametrize("release", OLDER)
def test_older_cores(release: str) -> None:
    """The same configurations by the older config classes."""
    assert replayed(OLDER[release]["accepted"], OLDER_REPLAYED, release) == []


def test_every_class_rule_is_met() -> None:
    """Each rule of the newest config class is broken by a recorded case; TransformerEngine's version is not drawn."""
    newest = {name for name in config_cases.class_rules() if ALL[name].until is None} - {"permute-fusion-te"}
    met: set[str] = set()
    for index in range(NEWEST["tried"]):
        met.update(config_cases.refused_by(config_cases.case(index)))
        if newest <= met:
            return
    raise AssertionError(f"no random case breaks {sorted(newest - met)}")
