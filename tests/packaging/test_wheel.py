"""What is built installs and answers elsewhere: only declared dependencies, every data file inside."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tools" / "moe_long_context"
QUESTION = ["memory", "--model", "deepseek-v3", "--gpus", "256xH100", "--seq-len", "128k", "--json"]
LAYOUT = ["--cp", "32", "--pp", "8", "--ep", "32"]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source distribution of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT), cwd=out)
    return out


def test_wheel_holds_every_file_of_the_package(built: Path) -> None:
    """Code, YAML, JSON, templates and py.typed are in the wheel, and nothing outside the package is."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    files = {str(f.relative_to(PACKAGE.parent)) for f in PACKAGE.rglob("*") if f.is_file() and f.suffix != ".pyc"}
    skill = "moe_long_context/.agents/skills/nemo-mbridge-perf-moe-long-context/"
    assert files <= inside
    assert {skill + name for name in ("SKILL.md", "card.yaml", "skill/references/recompute.md")} <= inside
    assert {name.split("/")[0] for name in inside} == {"moe_long_context"}


def test_source_distribution_holds_tests_and_skill(built: Path) -> None:
    """The source distribution can be tested, and has the licence and the skill."""
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"SKILL.md", "LICENSE", "Makefile", "README.md", "skill/configs/dsv3-128k-h100.yaml"} <= names
    assert {"requirements/dev.txt", "tests/packaging/test_wheel.py"} <= names


def test_installed_wheel_answers_from_an_empty_folder(built: Path, tmp_path: Path) -> None:
    """In a new environment with the locked dependencies and the wheel, `memory` gives the answer of this checkout."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    _run(*pip, "--require-hashes", "-r", str(ROOT / "requirements" / "runtime.txt"), cwd=tmp_path)
    _run(*pip, "--no-index", str(next(built.glob("*.whl"))), cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    command = home / "bin" / "moe-long-context"
    answer = json.loads(_run(str(command), *QUESTION, *LAYOUT, cwd=empty, allowed=(0, 1)))
    here = json.loads(_run(sys.executable, "-m", "moe_long_context", *QUESTION, *LAYOUT, cwd=empty, allowed=(0, 1)))
    assert answer["ok"] and answer["result"]["peak_gib"] == here["result"]["peak_gib"]
    assert list(empty.iterdir()) == []
    _skill_works_from_a_home(home / "bin", tmp_path / "home")


def _skill_works_from_a_home(commands: Path, home: Path) -> None:
    """Installed by its own command, every link of SKILL.md resolves and every command in it answers from there."""
    home.mkdir()
    path = f"HOME={home}"
    _run("env", path, str(commands / "moe-long-context"), "install", "--agent", "claude", "--copy", cwd=home)
    skill = home / ".claude" / "skills" / "nemo-mbridge-perf-moe-long-context"
    text = (skill / "SKILL.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", text)
    lines = [line for block in re.findall(r"```bash\n(.*?)```", text, re.S) for line in block.strip().splitlines()]
    assert links and lines
    for link in links:
        assert (skill / link).is_file(), link
    for line in lines:
        words = shlex.split(line)
        assert _run("env", path, str(commands / words[0]), *words[1:], cwd=skill, allowed=(0, 1)).strip(), line


def _run(*command: str, cwd: Path, allowed: tuple[int, ...] = (0,)) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if command[0] == sys.executable:
        environment["PYTHONPATH"] = str(ROOT / "tools")
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in allowed, done.stdout + done.stderr
    return done.stdout
