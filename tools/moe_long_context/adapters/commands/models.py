"""`models [ID]`: what the catalog holds."""

from __future__ import annotations

import json

import click


@click.command("models")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="print exactly one JSON object")
def command(name: str | None, as_json: bool) -> None:
    """List the catalog's models, or print one entry."""
    from moe_long_context.catalog.loader import model_entry, model_ids

    if name is None:
        click.echo(json.dumps({"models": list(model_ids())}) if as_json else "\n".join(model_ids()))
        return
    data = model_entry(name).model_dump(mode="json")
    click.echo(json.dumps(data, ensure_ascii=False, indent=None if as_json else 1))
