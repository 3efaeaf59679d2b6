"""`moe-long-context eval`: grades the skill's cases and writes grading.json and BENCHMARK.md.

Layers `tool` and `trajectory` are offline and deterministic; `live` sends the cases to the provider that is named, and
nothing is sent anywhere otherwise. Exit status 1 when a case fails, or a mutant is not caught.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from moe_long_context.errors import BadValueError

LAYERS = ("tool", "trajectory", "live")


@click.command("eval", short_help="Grade the skill's cases, offline unless a provider is named.")
@click.option("--evals", type=str, help="evals.json in the public or the older flat shape; the shipped one by default")
@click.option("--triggers", type=str, help="score discoverability with this file of positive and negative prompts")
@click.option("--layer", "layers", multiple=True, help="tool, trajectory or live; tool and trajectory by default")
@click.option("--model", type=str, help="live layer only: provider:model for LangChain's init_chat_model")
@click.option("--runs", type=click.IntRange(1, 20), default=3, help="live layer only: runs of each case")
@click.option("--mutants", is_flag=True, help="also break the tools on purpose and see that cases fail")
@click.option("-o", "output", type=str, help="folder for grading.json and BENCHMARK.md; not written by default")
@click.option("--json", "as_json", is_flag=True, help="print exactly one JSON object")
def command(
    evals: str | None, triggers: str | None, layers: tuple[str, ...], model: str | None, runs: int, mutants: bool,
    output: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Grade the skill's cases; offline unless `--layer live --model provider:name` is given."""
    from moe_long_context.evaluation.cases import load_cases
    from moe_long_context.evaluation.report import grading, write
    from moe_long_context.evaluation.runner import run_evals

    run = run_evals(
        load_cases(Path(evals) if evals else None), _chosen(layers, model, triggers), model=model, runs=runs,
        triggers=Path(triggers) if triggers else None, with_mutants=mutants,
        tell=lambda text: click.echo(text, err=True),
    )  # fmt: skip
    if output:
        for path in write(run, Path(output)):
            click.echo(f"wrote {path}", err=True)
    document = grading(run)
    click.echo(json.dumps(document, ensure_ascii=False) if as_json else _text(document))
    sys.exit(int(_failed(document)))


def _chosen(layers: tuple[str, ...], model: str | None, triggers: str | None) -> tuple[str, ...]:
    for layer in layers:
        if layer not in LAYERS:
            raise BadValueError(f"There is no layer {layer!r}.", given=layer, allowed=list(LAYERS))
    if "live" in layers and not model:
        raise BadValueError(
            "The live layer needs a provider by name; nothing is sent without one.", fix="add --model provider:model"
        )
    if layers:
        return layers
    return () if triggers else LAYERS[:2]


def _failed(document: dict[str, Any]) -> bool:
    offline = {k: v for k, v in document["summary"].items() if not k.startswith("live")}
    return any(row["cases_failed"] for row in offline.values()) or any(
        not row["cases_failed"] for row in document["mutants"].values()
    )


def _text(document: dict[str, Any]) -> str:
    lines = []
    for layer, row in document["summary"].items():
        lines.append(
            f"{layer:22} {row['cases'] - len(row['cases_failed'])} of {row['cases']} cases, "
            f"{row['assertions_passed']} of {row['assertions']} assertions"
        )
    failed = [grade for grade in document["expectations"] if not grade["passed"]]
    lines += [f"failed  {g['case']}: {g['text']} ({g['evidence']})" for g in failed]
    lines += [f"mutant  {name}: {row['cases_failed']} cases fail" for name, row in document["mutants"].items()]
    for split, row in (document["triggers"] or {}).get("splits", {}).items():
        lines.append(
            f"triggers {split}: top-1 {row['top1']} of {row['positives']}, MRR {row['mrr']:.2f}, "
            f"{row['false_activations']} false of {row['negatives']}"
        )
    return "\n".join([*lines, *document["notes"]])
