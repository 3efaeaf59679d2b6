"""The page: templates filled with the tools' answers. All text from outside is escaped, by Jinja2 or ElementTree."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from moe_long_context._version import VERSION
from moe_long_context.config.resolve import resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import MissingExtraError
from moe_long_context.units import length_text

TEMPLATES = Path(__file__).parent / "templates"
FITS = {"yes": "fits", "tight": "tight: the error band reaches past the capacity", "no": "does not fit"}


@lru_cache(maxsize=1)
def environment() -> Any:
    """Jinja2 with escaping always on.

    Raises:
        MissingExtraError: Jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise MissingExtraError("The report", "report") from error
    made = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    made.filters["tokens"] = length_text
    return made


def asset(name: str) -> str:
    """A style sheet or script of the page."""
    return (TEMPLATES / name).read_text(encoding="utf-8")


def digest(name: str) -> str:
    """The content security policy's hash of an asset."""
    raw = hashlib.sha256(asset(name).encode()).digest()
    return f"'sha256-{base64.b64encode(raw).decode()}'"


def render(config: RunConfig, other: RunConfig | None = None) -> tuple[str, dict[str, Any]]:
    """The HTML page about a run, and the answers that it shows.

    Raises:
        MoeError: Jinja2 is not installed, or memory has no answer.
    """
    env = environment()
    from moe_long_context.adapters.report.gather import gather

    answers = gather(config, other)
    page = env.get_template("page.html.j2").render(
        answers=answers, version=VERSION, style=_safe("style.css"), script=_safe("page.js"),
        script_hash=digest("page.js"), embedded=_json(answers), fits=FITS,
        at=lambda path: _at(answers, path), **_views(config, answers),
    )  # fmt: skip
    return page, answers


def _views(config: RunConfig, answers: dict[str, Any]) -> dict[str, Any]:
    """Figures and the facts that the headings name."""
    from moe_long_context.adapters.report import figures, mesh, timeline

    run = resolve(config)
    node, domain = run.gpus_per_node, max(run.gpu.nvlink_domain, 1)
    memory, speed, choices = (answers[name].get("result") for name in ("memory", "throughput", "recompute"))
    return {
        "run": run, "sizes": run.sizes, "node": node, "domain": domain, "components": figures.components(memory),
        "memory_bars": figures.memory_bars(memory), "sweep_figure": figures.sweep(memory, run.seq_length),
        "step_bar": figures.step_bar(speed) if speed else "",
        "step_parts": figures.step_parts(speed) if speed else [],
        "timeline": timeline.timeline(speed, run.sizes.vpp) if speed else "",
        "drawn_microbatches": timeline.drawn_microbatches(run.sizes.pp, run.sizes.vpp, speed["num_microbatches"])
        if speed else 0,
        "frontier": figures.frontier(choices) if choices and choices["choices"] else "",
        "mesh_figure": mesh.picture(run.sizes, node, domain), "groups": mesh.groups(run.sizes, node, domain),
        "drawn_gpus": mesh.drawn_gpus(run.sizes, node),
    }  # fmt: skip


def _safe(name: str) -> Any:
    from markupsafe import Markup

    return Markup(asset(name))


def _json(answers: dict[str, Any]) -> Any:
    """The answers for a script element: nothing in it can end the element."""
    from markupsafe import Markup

    text = json.dumps(answers, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _at(answers: dict[str, Any], path: str) -> Any:
    """The value at a dotted path, for example memory.result.stages.0.peak_gib."""
    value: Any = answers
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, list) else value[part]
    return value
