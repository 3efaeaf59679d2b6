"""The published runs as package data: one row per run in `data/*.yaml`, compiled into `index.json` for quick loading.

`python -m moe_long_context.evidence.store` writes the index; `--check` exits 1 when it is out of date.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

_HERE = Path(__file__).parent
INDEX = _HERE / "index.json"

Kind = Literal["memory", "throughput", "oom", "runs"]
UNITS = {
    "peak_gib": "GiB", "reserved_gib": "GiB", "static_gib": "GiB", "device_used_gib": "GiB", "hot_rank_gib": "GiB",
    "peak_gib_upper_bound": "GiB", "peak_gb": "GB", "gb_at_oom": "GB", "gb_after_step_1": "GB",
    "tokens_per_s_per_gpu": "tokens/s/GPU", "model_tflops_per_gpu": "TFLOP/s/GPU", "step_time_s": "s",
    "mfu_percent": "%", "mfu": "",
}  # fmt: skip


class PublishedRun(BaseModel):
    """One run that somebody published: what ran, what was measured, and what to mind when comparing with it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    kind: Kind = Field(description="memory: peak published; throughput: speed only; oom: it died; runs: no figure")
    model: str = Field(description="catalog id, or the published name folded when the catalog has no such model")
    published_as: str
    source: dict[str, str]
    config: dict[str, Any] = Field(description="in the names of the run configuration; absent = not published")
    measured: dict[str, float]
    framework: str = ""
    task: str = ""
    caveats: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    @property
    def seq_length(self) -> int | None:
        """Tokens per sequence, None when not published."""
        value = self.config.get("seq_length")
        return int(value) if value is not None else None


def compile_index() -> str:
    """The text of `index.json`: every row of `data/*.yaml`, checked against `PublishedRun`."""
    from moe_long_context.yaml_safe import load_file

    rows = [row for file in sorted((_HERE / "data").glob("*.yaml")) for row in load_file(file)]
    checked = [PublishedRun.model_validate(row).model_dump(mode="json", exclude_defaults=True) for row in rows]
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in checked) + "\n]\n"


@lru_cache(maxsize=1)
def published_runs() -> tuple[PublishedRun, ...]:
    """All published runs, in file order, from the index; it was checked when it was built."""
    rows = json.loads(INDEX.read_text(encoding="utf-8"))
    return tuple(_trusted(row) for row in rows)


def _trusted(row: dict[str, Any]) -> PublishedRun:
    for key in ("caveats", "assumptions"):
        row[key] = tuple(row.get(key, ()))
    return PublishedRun.model_construct(**row)


def run_by_id(run_id: str) -> PublishedRun:
    """The published run of one id.

    Raises:
        UnknownNameError: no such run.
    """
    from moe_long_context.errors import UnknownNameError

    table = {run.id: run for run in published_runs()}
    if run_id not in table:
        raise UnknownNameError("published run", run_id, table)
    return table[run_id]


def source_text(run: PublishedRun) -> str:
    """The source in one line: repository or paper, path, section, revision."""
    source = run.source
    parts = [source.get("repo") or source.get("paper", ""), source.get("path", ""), source.get("section", "")]
    revision = source.get("commit") or source.get("release") or source.get("tags", "")
    return ", ".join(part for part in [*parts, revision] if part)


def main(arguments: list[str]) -> int:
    """Write the index, or with `--check` compare it; the exit status."""
    text = compile_index()
    if "--check" in arguments:
        return int(INDEX.read_text(encoding="utf-8") != text)
    INDEX.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
