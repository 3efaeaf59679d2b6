"""Keeps the transcripts of README.md true: `readme.py write` reruns each `$ command` of a block, `check` compares.

A transcript is a block fenced as `console` whose first line is `$ moe-long-context ...`; what follows is its output.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from accuracy import accuracy_lines

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ moe-long-context (?P<arguments>[^\n]*)\n.*?```", re.DOTALL)
ACCURACY = re.compile(r"<!-- accuracy -->\n.*?<!-- end -->", re.DOTALL)
WIDTH = "110"


def output_of(arguments: str) -> str:
    """What the command prints on standard output in a terminal-less shell of fixed width."""
    environment = {**os.environ, "COLUMNS": WIDTH, "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT / "tools")}
    command = [sys.executable, "-m", "moe_long_context", *shlex.split(arguments)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"`moe-long-context {arguments}` failed: {done.stderr}")
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def rendered(text: str) -> str:
    """The document with every transcript run anew and the accuracy lines of today's scoreboards."""

    def block(match: re.Match[str]) -> str:
        arguments = match["arguments"]
        return f"```console\n$ moe-long-context {arguments}\n{output_of(arguments)}\n```"

    text = ACCURACY.sub(lambda _: f"<!-- accuracy -->\n{accuracy_lines()}\n<!-- end -->", text)
    return BLOCK.sub(block, text)


def difference() -> str:
    """A unified diff from README.md to what the commands print now; empty when equal."""
    held = README.read_text(encoding="utf-8")
    lines = difflib.unified_diff(held.splitlines(), rendered(held).splitlines(), "README.md", "now", lineterm="")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """`write` or `check`; 1 when README.md is out of date."""
    if arguments == ["write"]:
        README.write_text(rendered(README.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if arguments != ["check"]:
        print("usage: readme.py write|check", file=sys.stderr)
        return 2
    if found := difference():
        print(f"{found}\nREADME.md is out of date; run tests/docs/readme.py write")
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
