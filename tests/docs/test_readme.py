"""README.md shows what the commands print and what works when pasted."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def load(name: str) -> ModuleType:
    """A script of this folder as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_transcripts_and_accuracy_are_current() -> None:
    """Each `$ command` of README.md prints what stands below it; `tests/docs/readme.py write` renews it."""
    assert load("readme").difference() == ""


def test_python_example_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """The Python block of README.md runs as it stands and prints a verdict, a peak and a band."""
    code = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert code is not None
    exec(code[1], {})
    assert re.match(r"(yes|tight|no) [\d.]+ [\[(][\d., ]+[\])]\n", capsys.readouterr().out)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(document: str) -> None:
    """Every relative link of the document names a file or folder of the repository."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / document).read_text(encoding="utf-8"))
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_tool_is_in_the_table() -> None:
    """README.md names each of the ten commands beside its Python function."""
    from moe_long_context.tools import __all__ as functions

    assert [name for name in functions if f"| `{name}` |" not in TEXT] == []
