"""Every released Bridge recipe of the catalog's models: no error where it can run, one where it cannot.

Recorded by tests/oracle/part_released.py: Bridge 0.6.2's own verdict beside its dump as this package reads it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from moe_long_context.config.resolve import resolve
from moe_long_context.rules.registry import check

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "released_bridge-0.6.2.json"
RECIPES = json.loads(GOLDEN.read_text(encoding="utf-8"))["recipes"]
CANNOT_RUN = {
    "world-size-expert-mesh": (
        "process groups: the GPUs in the name are fewer than EP x PP",
        "deepseek_v3_pretrain_128gpu_vr200 deepseek_v3_pretrain_64gpu_h100_bf16 deepseek_v3_pretrain_64gpu_h100_fp8cs "
        "qwen3_235b_a22b_pretrain_64gpu_gb200_fp8 qwen3_235b_a22b_pretrain_64gpu_gb200_nvfp4 "
        "qwen3_235b_a22b_pretrain_64gpu_gb300_bf16_config qwen3_235b_a22b_pretrain_64gpu_gb300_fp8 "
        "qwen3_235b_a22b_pretrain_64gpu_gb300_nvfp4",
    ),
    "layers-div-pp": (
        "model build: 92 and 46 layers on PP 8 and 4 with no way of splitting them",
        "glm45_355b_pretrain glm45_355b_sft glm45_air_106b_pretrain glm45_air_106b_sft",
    ),
    "fp8-arch": (
        "first forward: MXFP8 on Hopper",
        "gpt_oss_20b_peft_1gpu_h100_fp8mx gpt_oss_20b_pretrain_16gpu_h100_fp8mx gpt_oss_20b_sft_8gpu_h100_fp8mx",
    ),
    "layout-stage-count": (
        "config: VPP 2 beside a layout of 16 stages on PP 4",
        "deepseek_v3_pretrain_256gpu_gb200_fp8mx_partial deepseek_v3_pretrain_256gpu_gb300_fp8mx_partial",
    ),
    "weights-exceed-memory": ("model build: 120 billion parameters on one GPU", "nemotron_3_super_peft_1gpu"),
}  # fmt: skip
NOT_RULES = ("--data-cache-path", "Please ensure sequence length", "Conflicting deprecated SM-count")
"""Refusals of Bridge about data files, and about spellings that reading brings together before any rule looks."""


def errors(config: dict[str, Any]) -> set[str]:
    return {finding.rule for finding in check(resolve(config, partial=True)) if finding.severity == "error"}


def wanted(name: str) -> set[str]:
    return {rule for rule, (_, names) in CANNOT_RUN.items() if any(name.startswith(word) for word in names.split())}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name: str) -> None:
    """Exactly the errors that stop it on a cluster of the size and kind in its name."""
    assert errors(RECIPES[name][1]) == wanted(name)


def test_bridge_says_the_same() -> None:
    """Each recipe that Bridge's validation refuses has an error here, or is refused for what no rule judges."""
    refused = {
        name: said for name, (said, _) in RECIPES.items() if said != "ok" and not any(n in said for n in NOT_RULES)
    }
    assert len(RECIPES) > 260 and refused and all(errors(RECIPES[name][1]) for name in refused)
