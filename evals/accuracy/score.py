"""Scores the memory estimate on published runs: is it right? (Whether predictions moved is grid.py's question.)

    python evals/accuracy/score.py                table on standard output
    python evals/accuracy/score.py --write        also SCOREBOARD.md, scoreboard.json and floors.yaml
    python evals/accuracy/score.py --check        fail where a group is worse than its floor, or the pages are stale
    python evals/accuracy/score.py --rows FILE    other rows, for example of convert.py -o FILE

Nothing is fitted here. Signed error = predicted / measured - 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tools")]

from moe_long_context.tools import estimate_memory  # noqa: E402
from moe_long_context.yaml_safe import load_file  # noqa: E402

ROWS, PAGE, DATA, FLOORS = (HERE / n for n in ("memory_rows.yaml", "SCOREBOARD.md", "scoreboard.json", "floors.yaml"))
GRADES = (("A+", 0.03), ("A", 0.05), ("B/C", 0.12))
RELATIVE = ("peak", "static", "reserved")
SLACK = 0.0005
"""What a median or maximum may move before the floor counts as broken (rounding of results to 0.001 GiB)."""
SHOWN_FROM = 0.05


class Score(NamedTuple):
    """One number of one row. `error` is signed: relative, GiB for savings, and 1 for a wrong verdict."""

    id: str
    group: str
    metric: str
    measured: float | str
    predicted: float | str
    error: float


class Line(NamedTuple):
    """One line of the table: all scores of one group and metric."""

    group: str
    metric: str
    rows: int
    bias: float
    median: float
    mean: float
    largest: float
    grades: tuple[int, ...]
    worst: str


def scores_of(rows: Sequence[dict[str, Any]]) -> tuple[list[Score], list[tuple[str, str]]]:
    """All scores, and (id, reason) of rows that were skipped or could not be estimated."""
    results: dict[str, Any] = {}
    scores: list[Score] = []
    left: list[tuple[str, str]] = []
    by_id = {row["id"]: row for row in rows}
    for row in rows:
        if row.get("skip"):
            left.append((row["id"], row["skip"]))
            continue
        answer = estimate_memory(row["config"])
        if not answer.ok:
            left.append((row["id"], f"not estimated: {answer.error.message}"))
            continue
        results[row["id"]] = answer.result
        scores += _numbers(row, answer.result)
    for row in rows:
        scores += _saving(row, by_id.get(row.get("control", "")), results)
    return scores, left


def _numbers(row: dict[str, Any], result: Any) -> Iterable[Score]:
    measured = row.get("measured", {})
    stage = {"first": result.stages[0], "last": result.stages[-1]}.get(row.get("rank", "max"), result)
    predicted = {"peak": stage.peak_gib, "static": stage.static_gib, "reserved": result.reserved_gib}
    for metric in RELATIVE:
        value = measured.get(f"{metric}_gib")
        if value:
            yield Score(row["id"], row["group"], metric, value, predicted[metric], predicted[metric] / value - 1)
    if outcome := measured.get("outcome"):
        wrong = result.fits == ("no" if outcome == "fits" else "yes")
        yield Score(row["id"], row["group"], "verdict", outcome, result.fits, float(wrong))


def _saving(row: dict[str, Any], control: dict[str, Any] | None, results: dict[str, Any]) -> Iterable[Score]:
    """What a row saves against its control, GiB; both peaks of the same kind."""
    if not control or row["id"] not in results or control["id"] not in results:
        return
    for kind in ("peak_gib", "static_gib", "first_step_peak_gib"):
        mine, other = row["measured"].get(kind), control["measured"].get(kind)
        if mine and other:
            saved = other - mine
            field = "static_gib" if kind == "static_gib" else "peak_gib"
            predicted = getattr(results[control["id"]], field) - getattr(results[row["id"]], field)
            relative = row["group"] == "offload_curve"
            error = predicted / saved - 1 if relative else predicted - saved
            metric = "saving" if relative else "saving GiB"
            yield Score(row["id"], row["group"], metric, round(saved, 3), round(predicted, 3), error)
            return


def table(scores: Sequence[Score]) -> list[Line]:
    """One line per group and metric."""
    groups: dict[tuple[str, str], list[Score]] = defaultdict(list)
    for score in scores:
        groups[score.group, score.metric].append(score)
    return [_line(group, metric, found) for (group, metric), found in sorted(groups.items())]


def _line(group: str, metric: str, found: Sequence[Score]) -> Line:
    sizes = [abs(s.error) for s in found]
    steps = (0.0, *(limit for _, limit in GRADES), float("inf"))
    grades = [sum(low < size <= high for size in sizes) for low, high in itertools.pairwise(steps)]
    grades[0] += sum(size == 0 for size in sizes)
    worst = max(found, key=lambda s: abs(s.error))
    return Line(
        group, metric, len(found), statistics.median(s.error for s in found), statistics.median(sizes),
        statistics.fmean(sizes), max(sizes), tuple(grades), worst.id if abs(worst.error) else "",
    )  # fmt: skip


def _percent(line: Line, value: float, sign: str = "") -> str:
    if line.metric == "verdict":
        return ""
    return f"{value:{sign}.3f} GiB" if line.metric == "saving GiB" else f"{value * 100:{sign}.2f} %"


def rendered(lines: Sequence[Line]) -> list[str]:
    """The table in Markdown."""
    out = [
        "| group | what | rows | median error | median size | mean size | largest | A+ <= 3 % | A <= 5 % |"
        " B/C <= 12 % | beyond | largest at |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for line in lines:
        counts = line.grades if line.metric in (*RELATIVE, "saving") else ("",) * 4
        if line.metric == "verdict":
            wrong = round(line.mean * line.rows)
            out.append(f"| {line.group} | verdict | {line.rows} | {wrong} wrong | | | | | | | | {line.worst} |")
            continue
        cells = (
            line.group, line.metric, line.rows, _percent(line, line.bias, "+"), _percent(line, line.median),
            _percent(line, line.mean), _percent(line, line.largest), *counts, line.worst,
        )  # fmt: skip
        out.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return out


def page(scores: Sequence[Score], left: Sequence[tuple[str, str]]) -> str:
    """SCOREBOARD.md."""
    reasons: dict[str, int] = defaultdict(int)
    for _, reason in left:
        reasons[reason.split(":")[0]] += 1
    misses = [s for s in scores if s.metric in RELATIVE and abs(s.error) > SHOWN_FROM]
    wrong = [s for s in scores if s.metric == "verdict" and s.error]
    out = [
        "# Memory: modelled against published",
        "",
        "Written by `python evals/accuracy/score.py --write`; read it, do not edit it. Rows, units and assumptions:",
        "`memory_rows.yaml`. Signed error = modelled / measured - 1. A verdict is wrong where a run that fits is",
        "judged `no`, or one that ran out of memory `yes`. Nothing is fitted to single rows.",
        "",
        *rendered(table(scores)),
        "",
        f"{len({s.id for s in scores})} rows scored, {len(left)} not: "
        + "; ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda r: -r[1])[:8]),
        "",
        "## Wrong verdicts",
        "",
        *([f"- {s.id}: {s.measured}, judged `{s.predicted}`" for s in wrong] or ["none"]),
        "",
        "## Beyond 5 %",
        "",
        "| row | what | measured GiB | modelled GiB | error |",
        "| --- | --- | ---: | ---: | ---: |",
        *[
            f"| {s.id} | {s.metric} | {s.measured:.2f} | {s.predicted:.2f} | {s.error * 100:+.1f} % |"
            for s in sorted(misses, key=lambda s: (s.group, s.metric, -abs(s.error)))
        ],
    ]
    return "\n".join(out) + "\n"


def floors_of(lines: Sequence[Line]) -> dict[str, dict[str, float]]:
    """What may not get worse: median and largest size of each group and metric, or the count of wrong verdicts."""
    out: dict[str, dict[str, float]] = {}
    for line in lines:
        key = f"{line.group} {line.metric}"
        if line.metric == "verdict":
            out[key] = {"wrong": round(line.mean * line.rows)}
        else:
            out[key] = {"median": round(line.median, 4), "largest": round(line.largest, 4)}
    return out


def worse(lines: Sequence[Line], floors: dict[str, dict[str, float]]) -> list[str]:
    """What is worse than its floor, in words."""
    now = floors_of(lines)
    out = [f"{key}: no longer scored" for key in floors if key not in now]
    for key, limits in floors.items():
        for name, limit in limits.items():
            value = now.get(key, limits)[name]
            if value > limit + SLACK:
                out.append(f"{key}: {name} {value:g} is worse than the floor {limit:g}")
    return out


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path, default=ROWS)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--write", action="store_true")
    mode.add_argument("--check", action="store_true")
    parser.add_argument("--list", metavar="GROUP", help="also print every score of a group")
    arguments = parser.parse_args()
    scores, left = scores_of(load_file(arguments.rows)["rows"])
    lines = table(scores)
    print("\n".join(rendered(lines)))
    for s in scores:
        if arguments.list and arguments.list in s.group:
            print(f"{s.id} {s.metric} measured {s.measured} modelled {s.predicted} error {s.error:+.4f}")
    if arguments.write:
        _write(scores, left, lines)
    if arguments.check:
        problems = worse(lines, load_file(FLOORS))
        print("\n".join(problems), file=sys.stderr)
        return 1 if problems else 0
    return 0


def _write(scores: Sequence[Score], left: Sequence[tuple[str, str]], lines: Sequence[Line]) -> None:
    PAGE.write_text(page(scores, left), encoding="utf-8")
    data = {"lines": [line._asdict() for line in lines], "scores": [s._asdict() for s in scores]}
    DATA.write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")
    text = "".join(f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in floors_of(lines).items())
    head = "# The worst that each group may score; written by score.py --write, checked by score.py --check.\n"
    FLOORS.write_text(head + text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
