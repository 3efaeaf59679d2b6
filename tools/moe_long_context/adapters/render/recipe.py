"""Text of `recipe`: the file itself when there is one and nothing was written, else what was written."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.text import Text

from moe_long_context.adapters.render import findings


def blocks(answer: Any) -> list[RenderableType]:
    """Files or their paths, the launch line, migrations."""
    r = answer.result
    out: list[RenderableType] = []
    if r.written:
        out += [Text(f"wrote {path}") for path in r.written]
    else:
        for file in r.files:
            out += [Text(f"# {file.path}"), Text(file.text, overflow="ignore", no_wrap=True)]
    if r.launch:
        out += [Text(""), Text("launch:", style="bold"), Text(r.launch, overflow="ignore", no_wrap=True)]
    return [*out, *findings(answer.findings)]
