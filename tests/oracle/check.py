"""Recomputes every golden file from the real framework and compares: `check.py [PART ...] [--write]`.

Runs in .venv-oracle. A part is a module part_<name>.py beside this file with `GOLDEN` (a file name in tests/golden) and
`record() -> dict`; it is found by being there. Each part runs in a process of its own, two at a time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent / "golden"
AT_ONCE = 2
SHOWN = 10


def part_names() -> list[str]:
    """The parts that are there."""
    return sorted(f.stem.removeprefix("part_") for f in HERE.glob("part_*.py"))


def differences(golden: Any, real: Any, where: str = "") -> Iterator[str]:
    """One line for each place where two JSON documents differ."""
    if isinstance(golden, dict) and isinstance(real, dict):
        for key in sorted({*golden, *real}):
            yield from differences(golden.get(key, "absent"), real.get(key, "absent"), f"{where}/{key}")
    elif isinstance(golden, list) and isinstance(real, list) and len(golden) == len(real):
        for index, (left, right) in enumerate(zip(golden, real, strict=True)):
            yield from differences(left, right, f"{where}/{index}")
    elif golden != real:
        yield f"{where}: golden {str(golden)[:80]}, framework {str(real)[:80]}"


def render(document: Any) -> str:
    """JSON with one line for each case, so that a change of the framework is a readable diff."""
    lines = []
    for section, cases in document.items():
        if isinstance(cases, dict) and cases:
            body = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in cases.items())
            lines.append(f"{json.dumps(section)}: {{\n{body}\n }}")
        else:
            lines.append(f"{json.dumps(section)}: {json.dumps(cases)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def run_part(name: str, write: bool) -> int:
    """Record one part in this process; 0 = equal to the golden file, or written."""
    sys.path.insert(0, str(HERE))
    start = time.monotonic()
    part = importlib.import_module(f"part_{name}")
    real = json.loads(json.dumps(part.record()))
    path, seconds = GOLDEN / part.GOLDEN, time.monotonic() - start
    if write:
        path.write_text(render(real), encoding="utf-8")
        print(f"{name}: wrote {path.name} in {seconds:.0f} s")
        return 0
    golden = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found = list(differences(golden, real))
    print(f"{name}: {len(found)} differences from {path.name}, {seconds:.0f} s")
    for line in found[:SHOWN]:
        print(f"  {line}")
    return int(bool(found))


def main() -> int:
    """Run the parts asked for (default all), each in its own process; 1 when any differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"from: {', '.join(part_names())}")
    parser.add_argument("--write", action="store_true", help="regenerate the golden files")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set(options.parts) - set(part_names())
    if unknown:
        parser.error(f"unknown part {sorted(unknown)}; there are {part_names()}")
    if options.here:
        return run_part(options.parts[0], options.write)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return max(pool.map(lambda name: _in_process(name, options.write), options.parts or part_names()), default=0)


def _in_process(name: str, write: bool) -> int:
    command = [sys.executable, "-W", "ignore", str(HERE / "check.py"), name, "--here"]
    done = subprocess.run([*command, *(["--write"] if write else [])], capture_output=True, text=True, check=False)
    print(done.stdout, end="", flush=True)
    if done.returncode not in (0, 1) or not done.stdout:
        print(f"{name}: failed\n{done.stderr[-3000:]}", flush=True)
    return int(done.returncode != 0)


if __name__ == "__main__":
    raise SystemExit(main())
