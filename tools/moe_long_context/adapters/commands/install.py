"""`install --agent A --scope S`: put the skill where an agent looks for skills."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from moe_long_context.adapters.install import AGENTS, Target, install, target, uninstall


@click.command("install")
@click.option("--agent", type=click.Choice(sorted(AGENTS)), required=True, help="whose skills folder")
@click.option("--scope", type=click.Choice(["user", "project"]), default="user", show_default=True,
              help="under your home, or under the current folder")  # fmt: skip
@click.option("--copy", is_flag=True, help="copy the files instead of linking to them")
@click.option("--dry-run", is_flag=True, help="say what would be done, change nothing")
@click.option("--check", is_flag=True, help="exit 0 if installed and current, else 1")
@click.option("--uninstall", "remove", is_flag=True, help="remove it again")
def command(agent: str, scope: str, **flags: Any) -> None:
    """Install the skill for a coding agent; touches nothing but its own folder."""
    place = target(agent, Path.home() if scope == "user" else Path.cwd())
    if flags["check"]:
        click.echo(f"{place.state}: {place.entry}")
        sys.exit(place.state not in ("link", "copy"))
    click.echo(_done(place, flags["copy"], flags["remove"], flags["dry_run"]))


def _done(place: Target, copy: bool, remove: bool, dry_run: bool) -> str:
    if dry_run:
        what = "remove" if remove else "copy" if copy else "link"
        return f"would {what}: {place.entry} (now {place.state})"
    if remove:
        return f"{'removed' if uninstall(place) else 'was not there'}: {place.entry}"
    return f"{'installed' if install(place, copy) else 'already current'}: {place.entry}"
