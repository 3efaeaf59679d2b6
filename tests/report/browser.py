"""A real headless Chromium: opens a page, runs its script, and gives back the document and what the console said."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser() -> str | None:
    """The browser's path, None when none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def open_page(url: str, profile: Path, *more: str) -> tuple[str, list[str]]:
    """(document after its script ran, lines of the console)."""
    path = browser()
    assert path is not None
    done = subprocess.run(
        [path, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={profile}",
         *more, "--dump-dom", url],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
