"""The doors of the tools give the same object, refuse the same input, and load nothing they need not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moe_long_context.adapters import schemas
from moe_long_context.adapters.langchain import get_tools, read_skill_file
from moe_long_context.tools import MODULES

FACTS = {"model": "qwen3-235b-a22b", "gpu": "h100", "num_gpus": 256, "seq_len": "131072"}
ONE_CONFIG = ["estimate_memory", "estimate_throughput", "validate_config", "check_pitfalls"]


def test_every_tool_is_there():
    """All ten tools of the contract are LangChain tools."""
    assert sorted(t.name for t in get_tools()) == sorted(MODULES)


@pytest.mark.parametrize("name", ONE_CONFIG)
def test_langchain_artifact_is_the_command_json(name):
    """The artifact equals what --json prints."""
    tool = next(t for t in get_tools() if t.name == name)
    message = tool.invoke({"type": "tool_call", "id": "1", "name": name, "args": FACTS})
    flags = [f"--{k.replace('_', '-')}={v}" for k, v in FACTS.items()]
    code = "from moe_long_context.adapters.cli import main; main()"
    out = subprocess.run([sys.executable, "-c", code, MODULES[name], *flags, "--json"], capture_output=True, text=True,
                         env={"PYTHONPATH": str(Path(__file__).parents[2] / "tools")})  # fmt: skip
    assert message.artifact == json.loads(out.stdout)


BAD = [{"modle": "x"}, {"num_gpus": "many"}, {"config": "a: &a [*a]\nb: 1"}, {"config": "/"}]


@pytest.mark.parametrize("args", BAD)
def test_bad_input_is_data(args):
    """A wrong key, type, alias or folder comes back as an error object."""
    tool = next(t for t in get_tools() if t.name == "estimate_memory")
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": args})
    assert message.artifact["ok"] is False and message.content.startswith("error")


@pytest.mark.parametrize("name", sorted(MODULES))
def test_schema_is_portable(name):
    """Flat, no references or unions, every property described, unknown keys refused."""
    schema = schemas.input_schema(next(t for t in schemas.tools() if t.name == name))
    text = json.dumps(schema)
    assert not any(f'"{word}"' in text for word in ("$ref", "$defs", "anyOf", "oneOf", "exclusiveMinimum"))
    assert schema["additionalProperties"] is False
    assert all(row["description"] and row["type"] for row in schema["properties"].values())


def test_exported_schemas_are_current():
    """The files in skill/schemas are what the code makes."""
    assert schemas.main(["--check", str(Path(__file__).parents[2] / "skill" / "schemas")]) == 0


@pytest.mark.parametrize("path", ["../etc/passwd", "/etc/passwd", "pyproject.toml", "skill/../pyproject.toml"])
def test_read_skill_stays_inside(path):
    """Only the skill's own files can be read."""
    assert read_skill_file(path).startswith("error")
