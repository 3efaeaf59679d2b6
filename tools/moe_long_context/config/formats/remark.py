"""The one comment line in a written file that holds what its form cannot say.

A launch script has no place for the GPU model, and it spells out defaults that the run configuration left open. The
line lists such fields as [path, value as read from the form, value as given]; a field that was edited afterwards no
longer equals its second entry, so the edit wins.
"""

from __future__ import annotations

import json
from typing import Any

from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError

MARK = "# moe-long-context: "
MAX_ENTRIES = 4096
Path = tuple[str, ...]


def remark(given: RunConfig, read: RunConfig) -> str:
    """The comment line that turns what a reader makes of a file into the configuration it was written from."""
    left, right = _leaves(read), _leaves(given)
    rows = [
        [list(path), left.get(path), right.get(path)] for path in {**left, **right} if left.get(path) != right.get(path)
    ]
    return MARK + json.dumps(rows, separators=(",", ":"))


def find_remark(text: str) -> list[Any] | None:
    """The rows of the remark in a text; None when there is none.

    Raises:
        BadValueError: a remark that is not one.
    """
    line = next((line for line in text.splitlines() if line.startswith(MARK)), None)
    if line is None:
        return None
    try:
        rows = json.loads(line[len(MARK) :])
    except ValueError:
        rows = None
    if not isinstance(rows, list) or len(rows) > MAX_ENTRIES or not all(_is_row(row) for row in rows):
        raise BadValueError("The moe-long-context comment line is damaged.", fix="delete the line and read again")
    return rows


def _is_row(row: Any) -> bool:
    return isinstance(row, list) and len(row) == 3 and isinstance(row[0], list) and 1 <= len(row[0]) <= 2


def apply_remark(read: RunConfig, rows: list[Any]) -> RunConfig:
    """The configuration with the remark's fields put back, except where the file was edited since.

    Raises:
        InputError: values that cannot be a run.
    """
    data = read.written()
    leaves = _leaves(read)
    for path, as_read, as_given in rows:
        key = tuple(str(part) for part in path)
        if leaves.get(key) == as_read:
            _put(data, key, as_given)
    return RunConfig.read({k: v for k, v in data.items() if v is not None and v != {}})


def _leaves(config: RunConfig) -> dict[Path, Any]:
    out: dict[Path, Any] = {}
    for key, value in config.written().items():
        if isinstance(value, dict) and key not in ("model", "gpu"):
            out.update({(key, name): item for name, item in value.items()})
        else:
            out[(key,)] = value
    return out


def _put(data: dict[str, Any], path: Path, value: Any) -> None:
    if len(path) == 1:
        data[path[0]] = value
        return
    section = data.setdefault(path[0], {})
    if not isinstance(section, dict):
        section = data[path[0]] = {}
    if value is None:
        section.pop(path[1], None)
    else:
        section[path[1]] = value
