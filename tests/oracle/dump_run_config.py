"""Writes tests/golden/run_config_bridge-0.6.2.yaml: the dump that Bridge itself makes of a shipped configuration."""

from __future__ import annotations

import os
from pathlib import Path

import _env

_env.pretend_te()

import part_recipes  # noqa: E402

from moe_long_context.config.reading import read_file  # noqa: E402
from moe_long_context.config.resolve import resolve  # noqa: E402

CONFIG = _env.ROOT / "skill" / "configs" / "dsv3-128k-h100.yaml"
GOLDEN = _env.ROOT / "tests" / "golden" / "run_config_bridge-0.6.2.yaml"


def main() -> None:
    """Build, finalize and validate the emitted recipe, then dump it as training would."""
    run = resolve(read_file(CONFIG))
    os.chdir(Path("/"))
    config = part_recipes.build(run)
    part_recipes.accept(config, run)
    config.to_yaml(str(GOLDEN))


if __name__ == "__main__":
    main()
