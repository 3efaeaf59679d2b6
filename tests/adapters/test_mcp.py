"""The MCP server against a real client over a real pipe and real HTTP, on both majors of the official SDK."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from moe_long_context.adapters import schemas
from moe_long_context.errors import MoeError
from moe_long_context.tools import MODULES, estimate_memory

ROOT = Path(__file__).resolve().parents[2]
PROBE = str(Path(__file__).with_name("mcp_probe.py"))
FACTS = {"model": "qwen3-235b-a22b", "gpu": "h100", "num_gpus": 256, "seq_length": 131072}
OTHER_MAJOR = "mcp==1.30.0"  # the lock of the development environment pins a 2.x
WRITERS = {"emit_recipe", "validate_config"}
PING = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()


def _environment(*first: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*first, str(ROOT / "tools")])}


def _probe(*words: str, path: tuple[str, ...] = ()) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, PROBE, *words], env=_environment(*path), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def _check(seen: dict[str, Any], major: str = "2") -> None:
    assert seen["sdk"].split(".")[0] == major
    tools = {tool["name"]: tool for tool in seen["tools"]}
    assert sorted(tools) == sorted(MODULES)
    for name, tool in tools.items():
        assert tool["annotations"]["readOnlyHint"] is (name not in WRITERS)
        assert tool["annotations"]["openWorldHint"] is False
    answer = seen["good"]["structuredContent"]
    assert not seen["good"].get("isError") and answer == estimate_memory(FACTS).model_dump(mode="json")
    for key, code in (("bad", "unknown_argument"), ("unknown", "unknown_tool")):
        assert seen[key]["isError"] is True and seen[key]["structuredContent"]["error"]["code"] == code
    for held in (answer, seen["bad"]["structuredContent"]):
        jsonschema.validate(held, tools["estimate_memory"]["outputSchema"])
    assert seen["skill"]["text"] == (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert "Unknown resource" in seen["outside"]


def test_stdio_on_the_locked_sdk() -> None:
    """Tools, schemas, hints, answers, errors and resources, seen by a client that starts the server itself."""
    _check(_probe("stdio"))


def test_stdio_on_the_other_major(tmp_path: Path) -> None:
    """The same facts on 1.x, installed into a folder that comes first on the path."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), OTHER_MAJOR]
    subprocess.run(pip, check=True, capture_output=True, timeout=300)
    _check(_probe("stdio", path=(str(tmp_path),)), major="1")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A server on a free port of the loopback interface."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        number: int = held.getsockname()[1]
    words = [sys.executable, "-m", "moe_long_context", "mcp", "--http", "--port", str(number)]
    server = subprocess.Popen(words, env=_environment(), stderr=subprocess.DEVNULL)
    try:
        _wait(number)
        yield number
    finally:
        server.terminate()
        server.wait(timeout=20)


def _wait(port: int) -> None:
    for _ in range(300):
        with socket.socket() as held:
            if held.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server did not start")


def test_http_gives_the_same(port: int) -> None:
    """Streamable HTTP answers as stdio does."""
    _check(_probe("http", f"http://127.0.0.1:{port}/mcp"))


@pytest.mark.parametrize("header", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}])
def test_http_refuses_other_hosts_and_origins(port: int, header: dict[str, str]) -> None:
    """A web page that rebinds its name to this machine gets 421 or 403."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **header}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/mcp", data=PING, headers=headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code in (403, 421)


def test_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the SDK one line says what to install."""
    from moe_long_context.adapters import mcp

    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MoeError, match=r"\[mcp\]") as error:
        mcp.build_server()
    assert "pip install" in error.value.fix


def test_importing_the_door_loads_no_sdk() -> None:
    """The package starts without it."""
    code = "import sys, moe_long_context.adapters.mcp; sys.exit('mcp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=_environment()).returncode == 0
    assert len(schemas.tools()) == len(MODULES)
