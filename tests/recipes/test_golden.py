"""The emitted texts do not change unnoticed, and the frameworks accepted them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden"
ETP_WITH_BIAS = "published for a later Bridge; Megatron-Core 0.19.2 has expert biases only with ETP 1"
KNOWN_REFUSALS = {
    "mvc_gpt_oss_120b_sft_h100": ETP_WITH_BIAS,
    "mvc_gpt_oss_20b_sft_long_context_h100": ETP_WITH_BIAS,
}


def golden_module() -> Any:
    spec = importlib.util.spec_from_file_location("golden_recipes", HERE / "golden_recipes.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_texts_of_the_shipped_configurations_are_the_golden_ones() -> None:
    """`python tests/recipes/golden_recipes.py` rewrites them; the diff is what users get."""
    now = golden_module().texts()
    held = {p.name: p.read_text(encoding="utf-8") for p in (GOLDEN / "recipes").glob("*.txt")}
    assert sorted(now) == sorted(held)
    assert [name for name in now if now[name] != held[name]] == []


def test_the_frameworks_accepted_every_recorded_recipe() -> None:
    """Recorded by tests/oracle/part_recipes.py with Bridge 0.6.2 and Megatron-Core 0.19.2."""
    recorded = json.loads((GOLDEN / "recipes_bridge-0.6.2.json").read_text(encoding="utf-8"))
    refused = {name: case for name, case in recorded["outcomes"].items() if set(case.values()) != {"ok"}}
    assert recorded["cases"] >= 200
    assert sorted(refused) == sorted(KNOWN_REFUSALS)


def test_twins_that_stop_on_a_cpu_say_that_they_need_a_gpu() -> None:
    """Recorded by tests/oracle/part_smoke.py: every other twin trained one step, loss near ln(512) = 6.24."""
    steps = json.loads((GOLDEN / "smoke_core-0.19.2.json").read_text(encoding="utf-8"))["steps"]
    for model, said in steps.items():
        assert "run this on one GPU" in said or 6.1 < float(said.rpartition(" ")[2]) < 6.5, model
