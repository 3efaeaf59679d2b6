"""`report`: one page whose numbers are the tools' own, that loads nothing and escapes everything."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from moe_long_context import estimate_memory, estimate_throughput
from moe_long_context.adapters.report import mesh, timeline
from moe_long_context.adapters.report.page import environment, render
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import MissingExtraError
from moe_long_context.mesh.sizes import Sizes, coordinates
from moe_long_context.tools._tool import read_source

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "skill/configs/dsv3-128k-h100.yaml"
VALUE = re.compile(r'<data value="([^"]*)" data-path="([^"]*)">([^<]*)</data>')
LARGE_PAGE_BYTES = 1_500_000

spec = importlib.util.spec_from_file_location("report_browser", Path(__file__).with_name("browser.py"))
assert spec and spec.loader
browser = importlib.util.module_from_spec(spec)
spec.loader.exec_module(browser)
needs_browser = pytest.mark.skipif(browser.browser() is None, reason="no Chromium on this machine: page not rendered")


def run(**fields: Any) -> RunConfig:
    base = {"model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_length": "64k", "cp": 16, "ep": 32, "pp": 8}
    return RunConfig.read(base | fields)


@pytest.fixture(scope="module")
def page() -> tuple[str, dict[str, Any]]:
    return render(read_source(CONFIG), run(seq_length="128k"))


def embedded(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="answers">(.*?)</script>', html, re.DOTALL)
    assert found
    answers: dict[str, Any] = json.loads(found[1])
    return answers


def check_values(html: str, answers: dict[str, Any]) -> int:
    """Every labelled number equals the tools' JSON at its path; how many there are."""
    shown = VALUE.findall(html)
    for raw, path, text in shown:
        value: Any = answers
        for part in path.split("."):
            value = value[int(part)] if isinstance(value, list) else value[part]
        assert float(raw) == value, path
        assert float(text) == pytest.approx(value, rel=0.05, abs=0.051), path
    return len(shown)


def test_numbers_are_the_tools_own(page: tuple[str, dict[str, Any]]) -> None:
    """The page shows at least a hundred numbers, each equal to what the tool answers by itself."""
    html, _ = page
    answers = embedded(html)
    assert check_values(html, answers) > 100
    config = read_source(CONFIG)
    memory, speed = estimate_memory(config).model_dump(mode="json"), estimate_throughput(config).model_dump(mode="json")
    assert {k: v for k, v in answers["memory"]["result"].items() if k != "sweep"} == {
        k: v for k, v in memory["result"].items() if k != "sweep"
    }
    assert answers["throughput"] == speed


def test_loads_nothing(page: tuple[str, dict[str, Any]]) -> None:
    """No element of the page asks a network for anything, and its policy forbids it."""
    html, _ = page
    assert not re.search(r"""<(?:script|img|iframe|link)[^>]*(?:src|href)=["'](?!data:)""", html)
    assert "@import" not in html and "url(" not in html
    assert "default-src 'none'" in html


def test_sections_and_tables(page: tuple[str, dict[str, Any]]) -> None:
    """Every section is a labelled landmark, every figure is named and every table has a caption and header cells."""
    html, _ = page
    for name in (
        "verdict",
        "compare",
        "memory",
        "step",
        "mesh",
        "recompute",
        "sweep",
        "findings",
        "evidence",
        "recipe",
    ):
        assert f'<section id="{name}" aria-label' in html
    assert html.count('class="figure"') == html.count('role="img"') == 6
    assert html.count("<table") == html.count("<caption")
    ids = re.findall(r'\sid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'href="#([^"]+)"', html)) <= set(ids)


def test_hostile_text_is_escaped() -> None:
    """Markup inside a configuration is shown, never run; it cannot close the script element either."""
    bad = "</script><img src=x onerror=alert(1)>"
    html, _ = render(run(), run(env={"NVTE_X": bad}))
    assert bad not in html
    assert "<img" not in html
    assert bad in unescape(html)


def test_a_hundred_thousand_gpus_are_summarised() -> None:
    """131,072 GPUs: the first nodes are drawn, the page stays small."""
    html, _ = render(run(num_gpus=131072, gbs=16384))
    assert len(html) < LARGE_PAGE_BYTES
    assert html.count('class="cell ') == mesh.MAX_GPUS


@pytest.mark.parametrize(("pp", "vpp", "m", "seconds"), [(1, 1, 4, 12), (2, 1, 2, 9), (4, 1, 8, 33), (4, 2, 8, 28.5)])
def test_schedule_takes_as_long_as_the_textbook(pp: int, vpp: int, m: int, seconds: float) -> None:
    """Equal stages: (m + (PP-1) / VPP) * (forward + backward). Source: Narayanan et al. 2021, section 2.2."""
    stages = [{"forward_s": 1.0, "backward_s": 2.0}] * pp
    passes = timeline.schedule(stages, vpp, m)
    assert len(passes) == 2 * pp * vpp * m
    assert max(p.end for p in passes) == pytest.approx(seconds)


@pytest.mark.parametrize("total", [1, 3, 4, 7, 9, 100])
@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (4, 1), (4, 3), (64, 2)])
def test_schedule_runs_every_pass(pp: int, vpp: int, total: int) -> None:
    """What is drawn always ends, also where the microbatches do not divide into groups."""
    drawn = timeline.drawn_microbatches(pp, vpp, total)
    assert len(timeline.schedule([{"forward_s": 1.0, "backward_s": 2.0}] * pp, vpp, drawn)) == 2 * pp * vpp * drawn


def test_groups_follow_the_mesh() -> None:
    """The group of rank 0 holds exactly the ranks whose other coordinates are zero."""
    sizes = Sizes(64, tp=2, cp=4, pp=2, ep=8)
    held = {g.name.lower(): g for g in mesh.groups(sizes, 8, 8)}
    for name, others in (("cp", ("tp", "dp", "pp")), ("ep", ("etp", "edp", "pp")), ("pp", ("tp", "cp", "dp"))):
        ranks = [r for r in range(64) if all(coordinates(r, sizes)[o] == 0 for o in others)]
        assert held[name].size == len(ranks)
        assert held[name].nodes == len({r // 8 for r in ranks})


def test_missing_jinja_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Jinja2 the error says which extra to install."""
    environment.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtraError, match=r"\[report\]"):
        render(run())
    environment.cache_clear()


@needs_browser
def test_in_a_browser(page: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """Chromium runs the page: nothing on its console, copy buttons come alive, shown values equal the JSON."""
    file = tmp_path / "report.html"
    file.write_text(page[0], encoding="utf-8")
    dom, console = browser.open_page(file.as_uri(), tmp_path / "profile")
    assert console == []
    buttons = re.findall(r"<button[^>]*data-copy[^>]*>", dom)
    assert buttons and not any(" hidden" in b for b in buttons)
    assert check_values(dom, embedded(dom)) > 100
