"""`Emitted`: the files of one recipe as data, and the one function that writes them to disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from moe_long_context.errors import BadValueError, shorten
from moe_long_context.recipes.settings import Setting


@dataclass(frozen=True)
class Emitted:
    """Files (relative path -> text), the launch line, the settings behind them, and notes for the person."""

    files: dict[str, str]
    launch: str
    settings: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = field(default=())


def write_files(files: dict[str, str], folder: str, force: bool = False) -> list[str]:
    """Write the files below a folder; returns the paths written.

    Raises:
        BadValueError: the folder is a file, a path leaves it, or a file exists and `force` is not given.
    """
    root = Path(folder)
    if root.exists() and not root.is_dir():
        raise BadValueError(f"{shorten(folder)} is not a folder.", given=shorten(folder), fix="name another folder")
    targets = {_inside(root, name): text for name, text in files.items()}
    taken = [str(path) for path in targets if path.exists() or path.is_symlink()]
    if taken and not force:
        raise BadValueError(
            f"{shorten(taken[0])} exists and is not overwritten.", given=shorten(taken[0]), fix="use --force",
            code="file_exists",
        )  # fmt: skip
    for path, text in targets.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink():
                path.unlink()
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadValueError(f"{shorten(str(path))} cannot be written: {error.strerror}.", given=str(path)) from None
    return [str(path) for path in targets]


def _inside(root: Path, name: str) -> Path:
    path = root / name
    if Path(name).is_absolute() or not path.resolve().is_relative_to(root.resolve()):
        raise BadValueError(f"{shorten(name)} is outside the output folder.", given=shorten(name))
    return path
