"""card.yaml against its schema and against the program's own limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from moe_long_context.units import MAX_COUNT, MAX_SEQ_LENGTH
from moe_long_context.yaml_safe import MAX_CONFIG_BYTES

ROOT = Path(__file__).resolve().parents[2]
CARD: dict[str, Any] = yaml.safe_load((ROOT / "card.yaml").read_text(encoding="utf-8"))
SCHEMA = json.loads((ROOT / "skill" / "schemas" / "card.schema.json").read_text(encoding="utf-8"))


def test_the_card_is_valid() -> None:
    """The shipped schema is itself valid and accepts the shipped card."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(CARD)


def test_the_schema_refuses_a_number_written_as_text() -> None:
    """The publisher's own card has "~300" where a number belongs; that is what the schema is for."""
    wrong = CARD | {"measured_runs": [CARD["measured_runs"][0] | {"tflops_per_gpu": "~300"}]}
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(wrong)


def test_every_number_names_evidence_that_exists() -> None:
    """Each run's `evidence` is an id of the evidence list."""
    ids = {row["id"] for row in CARD["evidence"]}
    assert {row["evidence"] for row in CARD["measured_runs"] + CARD["computed_runs"]} <= ids


def test_the_limits_are_those_of_the_program() -> None:
    """units.py and yaml_safe.py own the limits."""
    limits = {name: row["maximum"] for name, row in CARD["input_limits"].items()}
    assert limits == {"seq_length": MAX_SEQ_LENGTH, "num_gpus": MAX_COUNT, "config_file": MAX_CONFIG_BYTES}


def test_published_runs_obey_the_mesh() -> None:
    """DP * CP divides the GPUs in every published DeepSeek-V3 row (PP8 TP1)."""
    rows = [row for row in CARD["measured_runs"] if row["model"] == "deepseek-v3"]
    assert [row["num_gpus"] // (8 * row["cp"]) for row in rows] == [row["dp"] for row in rows]
