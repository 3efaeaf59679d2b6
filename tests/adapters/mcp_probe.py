"""A real MCP client over a real pipe, or HTTP; prints what it saw. Runs on both majors of the SDK.

    python mcp_probe.py stdio            starts the server itself
    python mcp_probe.py http URL
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

FACTS = {"model": "qwen3-235b-a22b", "gpu": "h100", "num_gpus": 256, "seq_len": 131072}


def _wire(value: Any) -> Any:
    return value.model_dump(mode="json", by_alias=True, exclude_none=True)


async def look(session: ClientSession) -> dict[str, Any]:
    """Everything that the tests state a fact about."""
    await session.initialize()
    resources = _wire(await session.list_resources())["resources"]
    seen: dict[str, Any] = {"sdk": version("mcp"), "resources": resources}
    seen["tools"] = _wire(await session.list_tools())["tools"]
    for key, name, given in (
        ("good", "estimate_memory", FACTS),
        ("bad", "estimate_memory", {"modle": "x"}),
        ("unknown", "no_such_tool", {}),
    ):
        seen[key] = _wire(await session.call_tool(name, given))
    seen["skill"] = _wire(await session.read_resource(resources[0]["uri"]))["contents"][0]
    try:
        await session.read_resource(resources[0]["uri"].replace("SKILL.md", "../pyproject.toml"))
    except Exception as error:
        seen["outside"] = str(error)
    return seen


async def main(how: str, url: str = "") -> None:
    """Connect, look, print one JSON object."""
    if how == "stdio":
        server = StdioServerParameters(
            command=sys.executable, args=["-m", "moe_long_context", "mcp"], env=dict(os.environ)
        )
        client: Any = stdio_client(server)
    else:
        client = streamable_http_client(url)
    async with client as streams, ClientSession(streams[0], streams[1]) as session:
        print(json.dumps(await look(session)))


anyio.run(main, *sys.argv[1:])
