"""The reference pages: short, linked, and with numbers that the tools give today."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from moe_long_context.config.run_config import RunConfig
from moe_long_context.tools.validate import validate_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "skill" / "references").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_are_short_and_their_links_exist(page: Path) -> None:
    """Under 200 lines; every relative link is a file of the skill."""
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 200
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).is_file(), link


def test_every_page_is_linked_from_skill_md() -> None:
    """One level deep: what SKILL.md does not link, no agent reads."""
    text = (ROOT / "SKILL.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"skill/references/{page.name}" not in text] == []


def test_computed_tables_are_current() -> None:
    """Every table is made anew by the tools and compared; `python evals/reference_numbers.py --write` renews them."""
    spec = spec_from_file_location("reference_numbers", ROOT / "evals" / "reference_numbers.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    stale = [path.name for path in module.files() if module.renewed(path.read_text()) != path.read_text()]
    assert stale == []


def test_recompute_names_are_exactly_those_the_framework_takes() -> None:
    """megatron-core 0.19.2 transformer_config.py, allowed_modules: eight names; the page lists the same."""
    text = (ROOT / "skill" / "references" / "recompute.md").read_text(encoding="utf-8")
    names = ["core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out"]
    assert all(f"`{name}`" in text for name in names)
    base = RunConfig.read({"model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_length": "32k", "ep": 32})
    for name, known in ((n, n in names) for n in [*names, "up_proj", "norm"]):
        answer = validate_config(base, recompute={"granularity": "selective", "modules": [name]})
        assert ("recompute-modules-valid-names" not in {f.rule for f in answer.findings}) == known


def test_the_false_product_rule_appears_only_as_a_correction() -> None:
    """MISSION: CP x EP x TP x PP is never stated as a rule."""
    for page in PAGES:
        for line in page.read_text(encoding="utf-8").splitlines():
            if re.search(r"CP\s*[x*]\s*EP\s*[x*]\s*TP\s*[x*]\s*PP", line):
                assert page.stem == "seed-corrections"
