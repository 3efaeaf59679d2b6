"""The emitted texts of the shipped configurations; run this file to rewrite the golden files."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "recipes"
CONFIGS = ROOT / "skill" / "configs"
SMOKE = "smoke"


def texts() -> dict[str, str]:
    """Golden file name -> text, for every shipped configuration and format."""
    from moe_long_context.config.reading import read_file
    from moe_long_context.config.resolve import resolve
    from moe_long_context.recipes.writers import WRITERS, smoke

    out = {}
    for path in sorted(CONFIGS.glob("*.yaml")):
        run = resolve(read_file(path))
        for name, write in {**WRITERS, SMOKE: smoke}.items():
            for index, text in enumerate(write(run).files.values()):
                out[f"{path.stem}.{name}.{index}.txt"] = text
    return out


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "tools"))
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for name, text in texts().items():
        (GOLDEN / name).write_text(text, encoding="utf-8")
