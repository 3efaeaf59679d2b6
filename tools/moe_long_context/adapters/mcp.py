"""The ten tools and the skill's files as an MCP server, over stdio or streamable HTTP on the loopback interface.

Written on the low-level server of the official SDK, whose messages have the same wire form in 1.x and 2.x; only how
handlers are registered differs. Needs the extra [mcp].
"""

from __future__ import annotations

from functools import partial
from typing import Any

from moe_long_context._version import VERSION
from moe_long_context.adapters import schemas
from moe_long_context.adapters.install import SKILL, skill_folder
from moe_long_context.adapters.langchain import content_of, read_skill_file
from moe_long_context.errors import MissingExtraError, MoeError, UnknownNameError
from moe_long_context.tools._tool import Tool

PREFIX = f"skill://{SKILL}/"
LOOPBACK = "127.0.0.1"
PATH = "/mcp"
INSTRUCTIONS = (
    "Computes layouts, memory, speed, validity and recipes of long-context MoE training with Megatron Bridge. "
    f"Read the resource {PREFIX}SKILL.md first; every number says measured, exact or modelled."
)
WRITING_OPTIONS = {"output", "force"}
NOT_FOUND = -32002
"""JSON-RPC code of the MCP specification for a resource that does not exist."""


def sdk() -> Any:
    """The SDK's top module.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import mcp
        import mcp.types
    except ImportError:
        raise MissingExtraError("The MCP server", "mcp") from None
    return mcp


def tool_row(tool: Tool) -> dict[str, Any]:
    """One tool in wire form: input and output schema, and hints about what it does to the world."""
    writes = bool(WRITING_OPTIONS & set(tool.options.model_fields))
    hints = {"readOnlyHint": not writes, "destructiveHint": writes, "idempotentHint": True, "openWorldHint": False}
    return {
        "name": tool.name,
        "description": tool.summary,
        "inputSchema": schemas.input_schema(tool),
        "outputSchema": schemas.output_schema(tool),
        "annotations": hints,
    }


def call_result(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The answer in wire form: short text, the whole answer as structured content, and whether it is an error."""
    held = {tool.name: tool for tool in schemas.tools()}
    if name not in held:
        error = UnknownNameError("tool", name, held).as_dict()
        body = {"ok": False, "error": error}
        return {"content": [_text(error["message"])], "structuredContent": body, "isError": True}
    answer = schemas.call(held[name], given)
    text = _text(content_of(answer, held[name].command))
    return {"content": [text], "structuredContent": answer.model_dump(mode="json"), "isError": not answer.ok}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def resource_rows() -> list[dict[str, Any]]:
    """SKILL.md, the card, the references and the configurations, in wire form."""
    root = skill_folder()
    files = [root / "SKILL.md", root / "card.yaml", *sorted((root / "skill" / "references").glob("*.md"))]
    files += sorted((root / "skill" / "configs").glob("*.yaml"))
    names = [str(file.relative_to(root)) for file in files]
    return [{"uri": PREFIX + name, "name": name, "mimeType": _mime(name)} for name in names]


def resource_text(uri: str) -> dict[str, Any]:
    """One file of the skill in wire form.

    Raises:
        UnknownNameError: no such file in the skill.
    """
    name = uri.removeprefix(PREFIX)
    text = read_skill_file(name) if uri.startswith(PREFIX) else "error"
    if text.startswith("error"):
        raise UnknownNameError("resource", uri, [row["uri"] for row in resource_rows()])
    return {"contents": [{"uri": uri, "mimeType": _mime(name), "text": text}]}


def _mime(name: str) -> str:
    return "text/markdown" if name.endswith(".md") else "application/yaml"


def build_server() -> Any:
    """The SDK's low-level server with the tools and resources registered.

    Raises:
        MissingExtraError: the SDK is not installed.
    """
    mcp = sdk()
    from mcp.server.lowlevel import Server

    about: dict[str, Any] = {"version": VERSION, "instructions": INSTRUCTIONS}
    return _server_1(mcp, Server, about) if hasattr(Server, "call_tool") else _server_2(mcp, Server, about)


def _server_2(mcp: Any, kind: Any, about: dict[str, Any]) -> Any:
    types = mcp.types

    async def list_tools(ctx: Any, params: Any) -> Any:
        return types.ListToolsResult.model_validate({"tools": [tool_row(tool) for tool in schemas.tools()]})

    async def call_tool(ctx: Any, params: Any) -> Any:
        return types.CallToolResult.model_validate(await _off_loop(call_result, params.name, params.arguments or {}))

    async def list_resources(ctx: Any, params: Any) -> Any:
        return types.ListResourcesResult.model_validate({"resources": resource_rows()})

    async def read_resource(ctx: Any, params: Any) -> Any:
        try:
            return types.ReadResourceResult.model_validate(resource_text(str(params.uri)))
        except MoeError as error:
            raise mcp.MCPError(NOT_FOUND, error.message) from None

    return kind(
        SKILL, on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
        on_read_resource=read_resource, **about,
    )  # fmt: skip


def _server_1(mcp: Any, kind: Any, about: dict[str, Any]) -> Any:
    types, server = mcp.types, kind(SKILL, **about)

    async def list_tools(request: Any) -> Any:
        return types.ServerResult(types.ListToolsResult(tools=[tool_row(tool) for tool in schemas.tools()]))

    async def call_tool(request: Any) -> Any:
        found = await _off_loop(call_result, request.params.name, request.params.arguments or {})
        return types.ServerResult(types.CallToolResult.model_validate(found))

    async def list_resources(request: Any) -> Any:
        return types.ServerResult(types.ListResourcesResult.model_validate({"resources": resource_rows()}))

    async def read_resource(request: Any) -> Any:
        try:
            return types.ServerResult(types.ReadResourceResult.model_validate(resource_text(str(request.params.uri))))
        except MoeError as error:
            raise mcp.McpError(types.ErrorData(code=NOT_FOUND, message=error.message)) from None

    server.request_handlers |= {
        types.ListToolsRequest: list_tools, types.CallToolRequest: call_tool,
        types.ListResourcesRequest: list_resources, types.ReadResourceRequest: read_resource,
    }  # fmt: skip
    return server


async def _off_loop(function: Any, *given: Any) -> Any:
    from anyio import to_thread

    return await to_thread.run_sync(partial(function, *given))


def serve_stdio() -> None:
    """Serve one client over standard input and output until it hangs up."""
    server = build_server()
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())

    anyio.run(run)


def http_app(port: int) -> Any:
    """The ASGI application at /mcp; requests whose Host or Origin is not this machine are refused."""
    server = build_server()
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
    from starlette.applications import Starlette
    from starlette.routing import Route

    hosts = [f"{LOOPBACK}:{port}", f"localhost:{port}"]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=True, allowed_hosts=hosts, allowed_origins=[f"http://{host}" for host in hosts]
    )
    manager = StreamableHTTPSessionManager(app=server, stateless=True, security_settings=security)

    class Endpoint:
        """A class, because a function would be taken for a request handler."""

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await manager.handle_request(scope, receive, send)

    return Starlette(routes=[Route(PATH, endpoint=Endpoint())], lifespan=lambda app: manager.run())


def serve_http(port: int) -> None:
    """Serve streamable HTTP on the loopback interface until interrupted."""
    app = http_app(port)
    import uvicorn

    uvicorn.run(app, host=LOOPBACK, port=port, log_level="warning")
