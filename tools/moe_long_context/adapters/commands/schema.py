"""`schema TOOL`: the portable JSON Schema of one tool's arguments."""

from __future__ import annotations

import json

import click

from moe_long_context.errors import UnknownNameError
from moe_long_context.tools import MODULES


@click.command("schema")
@click.argument("tool")
@click.option("--output", is_flag=True, help="the schema of the answer instead")
@click.option("--json", "as_json", is_flag=True, help="on one line")
def command(tool: str, output: bool, as_json: bool) -> None:
    """Print the JSON Schema of a tool, named by its function or its command."""
    from moe_long_context.adapters import schemas

    held = {t.name: t for t in schemas.tools()}
    name = {c: n for n, c in MODULES.items()}.get(tool, tool)
    if name not in held:
        raise UnknownNameError("tool", tool, held)
    made = schemas.output_schema(held[name]) if output else schemas.input_schema(held[name])
    click.echo(json.dumps(made, indent=None if as_json else 1, ensure_ascii=False))
