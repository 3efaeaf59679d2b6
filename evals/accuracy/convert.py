"""Turns files of published measurements into rows of run configurations for the scoreboard.

    python evals/accuracy/convert.py MEASURED_DIR            write memory_rows.yaml
    python evals/accuracy/convert.py MEASURED_DIR -o FILE    write elsewhere (also `-`)

Every row says what it assumes, or why it is skipped; nothing is dropped in silence.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools")]

from rows import bridge, frameworks, megatron_ci, published, simumax  # noqa: E402
from rows.common import Entry, Row  # noqa: E402

from moe_long_context.config.resolve import resolve  # noqa: E402
from moe_long_context.errors import MoeError  # noqa: E402
from moe_long_context.yaml_safe import load_file  # noqa: E402

OUTPUT = HERE / "memory_rows.yaml"
HEAD = (
    "# Published memory of Megatron runs as run configurations. Written by convert.py; read it, do not edit it.\n"
    "# `assumptions` says what the source does not print, `skip` why a row is not scored, `rank` whose peak it is.\n"
)
READERS: dict[str, Callable[[Entry, Row], None]] = {
    "simumax": simumax.read,
    "mcore_ci_golden": megatron_ci.read,
    "bridge_skills": bridge.read_skill,
    "bridge_verification_cards": bridge.read_card,
    "bridge_performance_summary": bridge.read_table,
    "modelzoo": published.read_modelzoo,
    "paper_2603": published.read_core_paper,
    "paper_2504": published.read_folding_paper,
    "dgxc": published.read_dgxc,
    "threads": published.read_thread,
    "swift": frameworks.read,
}
NOT_RUNS = ("index_",)


def rows_of(folder: Path) -> Iterator[Row]:
    """All rows of a folder of measurement files, or of one file."""
    files = sorted(folder.glob("*.y*ml")) if folder.is_dir() else [folder]
    for file in files:
        reader = next((r for name, r in READERS.items() if file.name.startswith(name)), None)
        if reader is None or file.name.startswith(NOT_RUNS):
            continue
        document = load_file(file)
        for entry in document.get("entries", []) if isinstance(document, dict) else []:
            yield row_of(entry, reader)


def row_of(entry: Entry, reader: Callable[[Entry, Row], None]) -> Row:
    """One row; what cannot be read is skipped with the reason."""
    row = Row(id=str(entry.get("id")), source=entry.get("source"), group="other")
    try:
        reader(entry, row)
        if not row.skip:
            run = resolve(row.config)
            run.require_mesh()
            _ = run.partition
    except MoeError as error:
        row.skip = f"not a run: {error.message}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        row.skip = f"entry cannot be read: {type(error).__name__} {error}"[:200]
    return row


def text_of(rows: list[Row]) -> str:
    """The rows as YAML, one field a line, so that a change shows as a small diff."""
    out = [HEAD, "rows:\n"]
    for row in rows:
        data: dict[str, Any] = row.written()
        out.append(f"- id: {data.pop('id')}\n")
        out += [f"  {name}: {json.dumps(value, ensure_ascii=False)}\n" for name, value in data.items()]
    return "".join(out)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, help="a folder of measurement files, or one file")
    parser.add_argument("-o", "--output", default=str(OUTPUT))
    arguments = parser.parse_args()
    rows = list(rows_of(arguments.measured))
    if arguments.output == "-":
        sys.stdout.write(text_of(rows))
    else:
        Path(arguments.output).write_text(text_of(rows), encoding="utf-8")
    usable = Counter(row.group for row in rows if not row.skip)
    print(f"{len(rows)} rows, {sum(usable.values())} usable: {dict(sorted(usable.items()))}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
