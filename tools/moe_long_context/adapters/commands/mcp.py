"""`mcp [--http] [--port N]`: serve the ten tools to an MCP client."""

from __future__ import annotations

import click

DEFAULT_PORT = 8765


@click.command("mcp")
@click.option("--http", is_flag=True, help="streamable HTTP on 127.0.0.1 at /mcp, instead of stdio")
@click.option("--port", type=click.IntRange(1, 65535), default=DEFAULT_PORT, show_default=True, help="port of --http")
def command(http: bool, port: int) -> None:
    """Serve the tools and the skill's files to an MCP client (needs the extra [mcp])."""
    from moe_long_context.adapters.mcp import serve_http, serve_stdio

    if http:
        click.echo(f"serving http://127.0.0.1:{port}/mcp; stop with Ctrl-C", err=True)
        serve_http(port)
    else:
        serve_stdio()
