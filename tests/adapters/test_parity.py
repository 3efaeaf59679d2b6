"""For each of the ten tools the Python call, `--json`, the LangChain artifact and the MCP content are one object."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from moe_long_context.adapters import schemas
from moe_long_context.adapters.cli import cli
from moe_long_context.adapters.langchain import get_tools
from moe_long_context.adapters.mcp import call_result
from moe_long_context.tools import MODULES

CONFIGS = Path(__file__).resolve().parents[2] / "skill" / "configs"
ONE, TWO = str(CONFIGS / "dsv3-128k-h100.yaml"), str(CONFIGS / "dsv3-256k-h100.yaml")
FACTS = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 8, "seq_len": 32768}
LOG = str(Path(__file__).with_name("oom.log"))
GIVEN: dict[str, dict[str, Any]] = {
    "check_pitfalls": {"config": ONE},
    "compare_configs": {"config_a": ONE, "config_b": TWO},
    "diagnose_failure": {"config": ONE, "log": LOG},
    "emit_recipe": {"config": ONE, "format": "bridge-overrides"},
    "estimate_memory": {**FACTS, "ep": 8, "sweep": "cp=1,2"},
    "estimate_throughput": {"config": TWO},
    "find_evidence": {"config": ONE},
    "plan_layout": {**FACTS, "top": 2},
    "recommend_recompute": {**FACTS, "ep": 8, "cp": 8},
    "validate_config": {**FACTS, "tp": 4, "ep": 8, "etp": 4},
}


def _python(name: str, given: dict[str, Any]) -> Any:
    tool = next(tool for tool in schemas.tools() if tool.name == name)
    held = dict(given)
    sources = [held.pop(key) for key in ("config", "config_a", "config_b") if key in held]
    return tool.call(*sources, **held).model_dump(mode="json")


def _command(name: str, given: dict[str, Any]) -> Any:
    held = dict(given)
    words = [MODULES[name], *(held.pop(key) for key in ("config_a", "config_b") if key in held)]
    words += [f"--{key.replace('_', '-')}={value}" for key, value in held.items()]
    outcome = CliRunner().invoke(cli, [*words, "--json"])
    assert outcome.exit_code in (0, 1), outcome.output[-300:]
    return json.loads(outcome.stdout)


def _langchain(name: str, given: dict[str, Any]) -> Any:
    tool = next(tool for tool in get_tools() if tool.name == name)
    return tool.invoke({"type": "tool_call", "id": "1", "name": name, "args": given}).artifact


def _mcp(name: str, given: dict[str, Any]) -> Any:
    return json.loads(json.dumps(call_result(name, given)))["structuredContent"]


@pytest.mark.parametrize("name", sorted(MODULES))
def test_every_door_gives_the_same_object(name: str) -> None:
    """A good call: the same tool, result, findings, assumptions and evidence."""
    expected = _python(name, GIVEN[name])
    assert expected["ok"] is True
    for door in (_command, _langchain, _mcp):
        assert door(name, GIVEN[name]) == expected, door.__name__
