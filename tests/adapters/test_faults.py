"""A defect inside a tool is data through every door, and its traceback is shown only when asked for."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from moe_long_context.adapters import cli, schemas
from moe_long_context.adapters.langchain import get_tools
from moe_long_context.tools import estimate_memory
from moe_long_context.tools import memory as module

FACTS = {"model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_length": 131072}
FLAGS = ["--model", "deepseek-v3", "--gpus", "256xH100", "--seq-len", "128k"]


@pytest.fixture(autouse=True)
def _broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Any) -> Any:
        raise ZeroDivisionError("broken on purpose")

    monkeypatch.setattr(module, "resolve", fail)
    monkeypatch.delenv("MOE_LONG_CONTEXT_DEBUG", raising=False)


def test_python_and_flat_call_return_the_fault() -> None:
    """Both give `internal_error` with exit status 3, and raise only on request."""
    tool = next(t for t in schemas.tools() if t.name == "estimate_memory")
    flat = {"model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_len": 131072}
    for answer in (estimate_memory(FACTS), schemas.call(tool, flat)):
        assert answer.error is not None and answer.error.code == "internal_error"
        assert "broken on purpose" in answer.error.message and answer.exit_status == 3


def test_langchain_returns_the_fault_as_artifact() -> None:
    """The agent reads one line and goes on."""
    tool = next(t for t in get_tools() if t.name == "estimate_memory")
    message = tool.invoke({"type": "tool_call", "id": "1", "name": tool.name, "args": {"model": "deepseek-v3"}})
    assert message.artifact["error"]["code"] == "internal_error" and message.content.startswith("error")


@pytest.mark.parametrize("as_json", [True, False])
def test_command_exits_3_with_one_document_or_line(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` prints the document; a person gets one line; no traceback either way."""
    monkeypatch.setattr(sys, "argv", ["moe-long-context", "memory", *FLAGS, *(["--json"] if as_json else [])])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 3 and "Traceback" not in out + err
    if as_json:
        assert json.loads(out)["error"]["code"] == "internal_error"
    else:
        assert out == "" and len(err.splitlines()) == 1


def test_traceback_is_shown_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With the debug variable the traceback goes to standard error and the answer stays data."""
    monkeypatch.setenv("MOE_LONG_CONTEXT_DEBUG", "1")
    answer = estimate_memory(FACTS)
    out, err = capsys.readouterr()
    assert answer.exit_status == 3 and out == "" and "ZeroDivisionError: broken on purpose" in err
