"""Fits the named efficiency parameters of the step-time model to published runs, and reports how good they are.

    python evals/calibration/fit_speed.py            residuals and scores of the parameters as they stand
    python evals/calibration/fit_speed.py --fit      fit, report, leave-one-model-out and leave-one-GPU-out
    python evals/calibration/fit_speed.py --write    the same, and write the data file and evals/accuracy/throughput.md

Never fits per row: one value per parameter and platform, within the range that the data file states. Needs numpy and
scipy (development only). Rows: evals/accuracy/throughput_rows.yaml.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from moe_long_context.config.resolve import Run, resolve  # noqa: E402
from moe_long_context.speed.efficiency import FILE, Efficiency, document, of_platform, platform_of  # noqa: E402
from moe_long_context.speed.schedule import step_time  # noqa: E402
from moe_long_context.yaml_safe import load_file  # noqa: E402

ROWS = ROOT / "evals" / "accuracy" / "throughput_rows.yaml"
PAGE = ROOT / "evals" / "accuracy" / "throughput.md"
PRIOR_WIDTH = 0.5
APPROXIMATE_WEIGHT = 0.5
COVERAGE = 0.90
Parameters = dict[str, Efficiency]


class Row(NamedTuple):
    """One published run: its resolved configuration and the measured model TFLOP/s per GPU by today's counter."""

    id: str
    model: str
    gpu: str
    platform: str
    run: Run
    measured: float
    scored: bool
    weight: float
    release: str


def read_rows() -> list[Row]:
    """All rows of the data file."""
    return [_row(entry) for entry in load_file(ROWS)["rows"]]


def _row(entry: dict[str, Any]) -> Row:
    run = resolve(entry["config"])
    step, measured = step_time(run), entry["measured"]
    per_token = step.model_flops / step.tokens / 1e12
    if "tokens_per_s_per_gpu" in measured:
        value = measured["tokens_per_s_per_gpu"] * per_token
    elif "step_time_s" in measured:
        value = step.model_flops / measured["step_time_s"] / run.num_gpus / 1e12
    else:
        value = measured["tflops_per_gpu"]
    weight = APPROXIMATE_WEIGHT if entry.get("approximate") else 1.0
    return Row(
        entry["id"], run.model_id, run.gpu.id, platform_of(run.gpu), run, value, "not_scored" not in entry, weight,
        entry.get("release", ""),
    )  # fmt: skip


def predict(row: Row, parameters: Parameters) -> float:
    """Modelled TFLOP/s per GPU."""
    return step_time(row.run, parameters[row.platform]).tflops_per_gpu


def current() -> Parameters:
    """The parameters in the data file."""
    return {platform: of_platform(platform) for platform in document()["platforms"]}


def fitted_names() -> list[str]:
    """Names marked `fitted: true`."""
    return [name for name, entry in document()["parameters"].items() if entry.get("fitted")]


def row_weights(rows: Sequence[Row]) -> list[float]:
    """Rows of one model, GPU and layout (several releases) share the weight of the square root of their number."""
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    key: Callable[[Row], tuple[str, str, str]] = lambda r: (r.model, r.gpu, str(r.run.sizes))  # noqa: E731
    for row in rows:
        counts[key(row)] += 1
    return [row.weight / math.sqrt(counts[key(row)]) for row in rows]


def fit(rows: Sequence[Row], start: Parameters) -> Parameters:
    """Robust least squares of the log error, with a weak pull to the priors for what the rows do not show."""
    import numpy as np
    from scipy.optimize import least_squares

    rows = [row for row in rows if row.scored]
    platforms = sorted({row.platform for row in rows})
    names, table = fitted_names(), document()["parameters"]
    slots = [(p, n) for n in names for p in platforms]
    groups = shared_slots(slots)
    keys = sorted(set(groups.values()))
    first = np.array([math.log(table[key[1]]["prior"][key[0]]) for key in keys])
    low = np.array([math.log(table[key[1]]["range"][0]) for key in keys]) - 1e-9
    high = np.array([math.log(table[key[1]]["range"][1]) for key in keys]) + 1e-9
    weights = np.array(row_weights(rows))

    def unpack(x: Any) -> Parameters:
        values = dict(zip(keys, np.exp(x), strict=True))
        out = dict(start)
        for slot in slots:
            out[slot[0]] = out[slot[0]]._replace(**{slot[1]: float(values[groups[slot]])})
        return {p: e if p in platforms else _unseen(p, out, platforms, table) for p, e in out.items()}

    def residuals(x: Any) -> Any:
        parameters = unpack(x)
        errors = np.array([math.log(row.measured / predict(row, parameters)) for row in rows])
        return np.concatenate([weights * errors / 0.1, (x - first) / PRIOR_WIDTH])

    done = least_squares(residuals, np.clip(first, low, high), bounds=(low, high), loss="soft_l1", diff_step=1e-3)
    return {p: Efficiency(*(float(f"{value:.4g}") for value in e)) for p, e in unpack(done.x).items()}


NEIGHBOURS = {
    "blackwell": "grace_blackwell", "grace_blackwell": "blackwell",
    "blackwell_ultra": "grace_blackwell_ultra", "grace_blackwell_ultra": "blackwell_ultra",
}  # fmt: skip


def _unseen(platform: str, fitted: Parameters, seen: Sequence[str], table: dict[str, Any]) -> Efficiency:
    """A platform without rows: the fitted values of its chip's other board, host time and the rest by prior."""
    neighbour = NEIGHBOURS.get(platform)
    own = {name: float(table[name]["prior"][platform]) for name in fitted_names()}
    if neighbour in seen:
        own |= {name: getattr(fitted[neighbour], name) for name in own if name != "launch_us"}
    return fitted[platform]._replace(**own)


def shared_slots(slots: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
    """Blackwell platforms share host time per CPU and all else but GEMM rates, which follow the board's power."""
    host = {p: "blackwell" if p.startswith("blackwell") else "grace_blackwell" for p, _ in slots if "blackwell" in p}
    board = {"launch_us": host, "gemm_bf16": {}, "gemm_fp8": {}}
    return {(p, n): (board.get(n, dict.fromkeys(host, "blackwell")).get(p, p), n) for p, n in slots}


def errors_of(rows: Sequence[Row], parameters: Parameters) -> list[float]:
    """Signed relative errors, modelled over measured minus one."""
    return [predict(row, parameters) / row.measured - 1 for row in rows]


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation with averaged ties."""

    def ranks(v: Sequence[float]) -> list[float]:
        return [sum(x < y for x in v) + (sum(x == y for x in v) + 1) / 2 for y in v]

    ra, rb = ranks(a), ranks(b)
    ma, mb = statistics.fmean(ra), statistics.fmean(rb)
    top = sum((x - ma) * (y - mb) for x, y in zip(ra, rb, strict=True))
    bottom = math.sqrt(sum((x - ma) ** 2 for x in ra) * sum((y - mb) ** 2 for y in rb))
    return top / bottom if bottom else 1.0


def grouped(rows: Sequence[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Rows by key."""
    out: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        out[key(row)].append(row)
    return dict(out)


def report(rows: Sequence[Row], parameters: Parameters, each: bool) -> None:
    """Median error overall and by model, GPU and release; rank correlation within groups; optionally every row."""
    scored = [row for row in rows if row.scored]
    absolute = [abs(e) for e in errors_of(scored, parameters)]
    print(f"{len(scored)} rows scored of {len(rows)}; median |error| {statistics.median(absolute):.1%}")
    for title, key in (("model", lambda r: r.model), ("gpu", lambda r: r.gpu), ("release", lambda r: r.release)):
        for name, members in sorted(grouped(scored, key).items()):
            e = errors_of(members, parameters)
            print(
                f"  {title} {name:28s} n={len(e):3d} median |e| {statistics.median(map(abs, e)):6.1%}"
                f"  bias {statistics.median(e):+6.1%}"
            )
    rho = rank_correlations(scored, parameters)
    for name, value in sorted(rho.items()):
        print(f"  spearman {name[0]:28s} {name[1]:6s} {value:.2f}")
    high = sum(v >= 0.95 for v in rho.values())
    print(f"spearman: median {statistics.median(rho.values()):.2f}, >= 0.95 in {high} of {len(rho)}")
    if each:
        for row in rows:
            p = predict(row, parameters)
            print(f"{p / row.measured - 1:+7.1%} {p:7.0f} {row.measured:7.0f} {'' if row.scored else 'x'} {row.id}")


def rank_correlations(rows: Sequence[Row], parameters: Parameters) -> dict[tuple[str, str], float]:
    """Spearman of each (model, GPU) group with three or more distinct configurations.

    Runs of one configuration in several releases are one point (their median): the model cannot tell them apart.
    """
    out: dict[tuple[str, str], float] = {}
    for name, members in grouped(rows, lambda r: (r.model, r.gpu)).items():
        alike = grouped(members, lambda r: r.run.written.model_copy(update={"versions": None}).model_dump_json())
        points = [(statistics.median(r.measured for r in g), predict(g[0], parameters)) for g in alike.values()]
        if len(points) >= 3:
            out[name] = spearman([a for a, _ in points], [b for _, b in points])
    return out


def leave_one_out(
    rows: Sequence[Row], start: Parameters, key: Callable[[Row], str], title: str
) -> list[tuple[Row, float]]:
    """Errors of each group's rows with parameters fitted without that group."""
    out: list[tuple[Row, float]] = []
    scored = [row for row in rows if row.scored]
    for name, members in sorted(grouped(scored, key).items()):
        parameters = fit([row for row in scored if key(row) != name], start)
        found = errors_of(members, parameters)
        out += list(zip(members, found, strict=True))
        print(f"  without {title} {name:28s} n={len(found):3d} median |e| {statistics.median(map(abs, found)):6.1%}")
    print(f"leave-one-{title}-out: median |error| {statistics.median(abs(e) for _, e in out):.1%}")
    return out


def band(errors: Sequence[float]) -> tuple[float, float]:
    """(low, high) of measured / modelled that holds COVERAGE of the rows, tails of equal size."""
    ratios = sorted(1 / (1 + e) for e in errors)
    cut = (1 - COVERAGE) / 2 * (len(ratios) - 1)
    low, high = math.floor(cut), math.ceil(len(ratios) - 1 - cut)
    return ratios[low], ratios[high]


def write(parameters: Parameters, interval: tuple[float, float]) -> None:
    """Replace the fitted values and the interval in the data file, leaving everything else as it stands."""
    text = FILE.read_text(encoding="utf-8")
    for name in fitted_names():
        values = ", ".join(f"{p}: {getattr(parameters[p], name):.4g}" for p in document()["platforms"])
        text = re.sub(rf"(\n  {name}:\n(?:    .*\n)*?    value: )\{{.*\}}", rf"\g<1>{{{values}}}", text)
    text = re.sub(r"(\ninterval:\n(?:  .*\n)*?  low: )\S+", rf"\g<1>{interval[0]:.2f}", text)
    text = re.sub(r"(\ninterval:\n(?:  .*\n)*?  high: )\S+", rf"\g<1>{interval[1]:.2f}", text)
    FILE.write_text(text, encoding="utf-8")


def table(rows: Sequence[Row], parameters: Parameters, scores: Sequence[str]) -> str:
    """The accuracy page: scores, then every row with its measured and modelled TFLOP/s per GPU."""
    lines = [
        "# Throughput: modelled against published", "",
        "Written by `python evals/calibration/fit_speed.py --write`; read it, do not edit it. Rows and what was",
        "assumed about them: `throughput_rows.yaml`. TFLOP/s per GPU count as Bridge 0.6.2 counts.", "",
        *[f"- {line}" for line in scores], "",
        "| row | GPU | measured | modelled | error | scored |", "| --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in sorted(rows, key=lambda r: (r.model, r.gpu, r.id)):
        value = predict(row, parameters)
        error = f"{value / row.measured - 1:+.1%}"
        lines.append(
            f"| {row.id} | {row.gpu} | {row.measured:.0f} | {value:.0f} | {error} | {'yes' if row.scored else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def scores(
    rows: Sequence[Row], parameters: Parameters, held_out: Sequence[tuple[Row, float]], interval: tuple[float, float]
) -> list[str]:
    """The scores of the accuracy page, one line each."""
    scored = [row for row in rows if row.scored]
    own = errors_of(scored, parameters)
    inside = sum(interval[0] <= 1 / (1 + e) <= interval[1] for e in own) / len(own)
    rho = rank_correlations(scored, parameters)
    high = sum(v >= 0.95 for v in rho.values())
    return [
        f"{len(scored)} of {len(rows)} rows scored; median error {statistics.median(map(abs, own)):.1%}",
        f"leave-one-model-out median error {statistics.median(abs(e) for _, e in held_out):.1%}",
        f"interval {interval[0]:.2f} to {interval[1]:.2f} of the modelled value holds {inside:.0%} of the rows",
        "rank correlation within (model, GPU) groups of three or more configurations:"
        f" median {statistics.median(rho.values()):.2f}, at least 0.95 in {high} of {len(rho)}",
    ]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--quick", action="store_true", help="no leave-one-out")
    parser.add_argument("--rows", action="store_true", help="print every row")
    options = parser.parse_args()
    rows, parameters = read_rows(), current()
    if options.fit or options.write:
        parameters = fit(rows, parameters)
        for name in fitted_names():
            print(name, {p: round(getattr(e, name), 3) for p, e in parameters.items()})
    report(rows, parameters, options.rows)
    if (options.fit or options.write) and not options.quick:
        held_out = leave_one_out(rows, current(), lambda r: r.model, "model")
        leave_one_out(rows, current(), lambda r: r.gpu, "gpu")
        interval = band([e for _, e in held_out])
        own = [1 / (1 + e) for e in errors_of([r for r in rows if r.scored], parameters)]
        inside = sum(interval[0] <= r <= interval[1] for r in own) / len(own)
        print(f"interval of measured over modelled: {interval[0]:.2f} to {interval[1]:.2f}; holds {inside:.0%}")
        if options.write:
            write(parameters, interval)
            PAGE.write_text(table(rows, parameters, scores(rows, parameters, held_out, interval)), encoding="utf-8")


if __name__ == "__main__":
    main()
