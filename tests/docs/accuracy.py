"""The accuracy lines of README.md, made from the tracked scoreboards; owns the wording, not the numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ACCURACY = Path(__file__).resolve().parents[2] / "evals" / "accuracy"


def accuracy_lines() -> str:
    """Markdown bullets; each number is read from evals/accuracy."""
    lines = json.loads((ACCURACY / "scoreboard.json").read_text(encoding="utf-8"))["lines"]
    peaks = {line["group"]: line for line in lines if line["metric"] == "peak"}
    verdicts = [line for line in lines if line["metric"] == "verdict"]
    wrong = sum(round(line["mean"] * line["rows"]) for line in verdicts)
    judged = sum(line["rows"] for line in verdicts)
    return "\n".join((
        f"- Peak memory of {_size(peaks['simumax_b200'], 'measured B200 topologies')}.",
        f"- Peak memory elsewhere is looser: {_size(peaks['cards'], 'published model cards')};",
        f"  {_size(peaks['moonlight_recompute'], 'Moonlight recompute runs')};",
        f"  {_size(peaks['mcore_golden'], 'small test runs of Megatron-Core itself')}.",
        f"- Fits or not: wrong for {wrong} of {judged} published runs. Every group, and every miss, stands in",
        "  [the memory scoreboard](evals/accuracy/SCOREBOARD.md).",
        _throughput(),
    ))  # fmt: skip


def _size(line: dict[str, Any], what: str) -> str:
    return f"{line['rows']} {what}: mean error {line['mean']:.2%}, largest {line['largest']:.2%}"


def _throughput() -> str:
    page = (ACCURACY / "throughput.md").read_text(encoding="utf-8")
    count, median = _found(r"(\d+) of \d+ rows scored; median error ([\d.]+)%", page)
    (left_out,) = _found(r"leave-one-model-out median error ([\d.]+)%", page)
    return (
        f"- Throughput: {median} % median error on the {count} published rows it was fitted to, {left_out} %\n"
        "  when the model asked about is left out of the fit; [all rows and misses](evals/accuracy/throughput.md)."
    )


def _found(pattern: str, text: str) -> tuple[str, ...]:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"evals/accuracy/throughput.md no longer says {pattern!r}")
    return match.groups()
