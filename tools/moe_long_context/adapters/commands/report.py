"""`report`: one self-contained HTML page about a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from moe_long_context.errors import BadValueError


@click.command("report", short_help="Write one self-contained HTML page about a run.")
@click.option("--config", required=True, help="run configuration, YAML or JSON; - = standard input")
@click.option("--compare", help="a second run configuration to set beside the first")
@click.option("-o", "--output", required=True, help="the HTML file to write")
@click.option("--force", is_flag=True, help="overwrite a file that exists")
@click.option("--json", "as_json", is_flag=True, help="print exactly one JSON object")
def command(config: str, compare: str | None, output: str, force: bool, as_json: bool) -> None:
    """Write one HTML page: verdict, memory, timeline, meshes, recompute, findings, evidence, recipe. No network."""
    from moe_long_context.adapters.report.page import render
    from moe_long_context.tools._tool import read_source

    path = Path(output)
    if path.exists() and not force:
        raise BadValueError(f"{path.name} exists.", given=output, fix="add --force to overwrite it")
    page, answers = render(read_source(config), read_source(compare) if compare else None)
    _write(path, page)
    fits, valid = answers["memory"]["result"]["fits"], answers["validate"]["result"]["valid"]
    said = {"tool": "report", "ok": True, "result": {"path": output, "fits": fits, "valid": valid, "bytes": len(page)}}
    click.echo(json.dumps(said) if as_json else f"wrote {output}: memory {fits}, {'valid' if valid else 'refused'}")
    sys.exit(int(fits == "no" or not valid))


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise BadValueError(
            f"{path.name} cannot be written: {error.strerror}.",
            given=str(path),
            fix="name a file in a folder that exists",
        ) from error
