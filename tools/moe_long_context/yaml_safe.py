"""Safe, bounded reading of YAML and JSON text: no tags, no aliases, no duplicate keys, no huge or deep documents.

The only place of the package that calls a YAML parser.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from moe_long_context.errors import UnreadableFileError, shorten

MAX_BYTES = 50 * 1024 * 1024
MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 40

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_Base):  # type: ignore[misc]
    """SafeLoader that also refuses repeated keys; aliases and nesting are checked on the events before loading."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Refuse a key written twice: which one counts would be a guess."""
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"key {key!r} appears twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _check_structure(text: str, dump: bool) -> None:
    """Refuse deep nesting and aliases (bombs), before anything is built; the C loader would not ask on the way.

    In a `dump`, an alias to a scalar or a flat list is what PyYAML writes for one object in two fields; those cannot
    multiply.
    """
    flat: set[str] = set()
    open_nodes: list[tuple[str | None, bool]] = []
    for event in yaml.parse(text, Loader=_Base):
        if isinstance(event, yaml.AliasEvent):
            if not dump or event.anchor not in flat:
                raise _refusal("anchors and aliases are not accepted", event)
            open_nodes = [(anchor, False) for anchor, _ in open_nodes]
        elif isinstance(event, yaml.ScalarEvent) and event.anchor:
            flat.add(event.anchor)
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes = [(anchor, False) for anchor, _ in open_nodes]
            open_nodes.append((event.anchor, isinstance(event, yaml.SequenceStartEvent)))
            if len(open_nodes) > MAX_DEPTH:
                raise _refusal(f"nested deeper than {MAX_DEPTH}", event)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, is_flat = open_nodes.pop()
            if anchor and is_flat:
                flat.add(anchor)


def _refusal(problem: str, event: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)


def load_text(text: str, name: str = "input", *, dump: bool = False) -> Any:
    """Parse YAML (or JSON, its subset) into plain data; a program's `dump` may repeat flat lists by alias.

    Raises:
        UnreadableFileError: not YAML, tagged, aliased, too deep, or a key twice.
    """
    if len(text) > MAX_CONFIG_BYTES:
        raise UnreadableFileError(
            f"{name} has {len(text)} characters; a configuration has at most {MAX_CONFIG_BYTES}.", given=name
        )
    try:
        if text.lstrip()[:1] == "{":
            return json.loads(text, object_pairs_hook=_no_repeats)
    except (ValueError, RecursionError):
        pass
    try:
        _check_structure(text, dump)
        return yaml.load(text, Loader=_StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as error:
        raise UnreadableFileError(
            f"{name} is not readable YAML or JSON: {shorten(_reason(error))}.",
            given=name,
            fix="see the line named; the form is `key: value`",
        ) from None


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        raise ValueError("a key appears twice")
    return out


def _reason(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{error.problem} (line {error.problem_mark.line + 1})"
    return str(error)


def read_text(path: str | Path, limit: int = MAX_CONFIG_BYTES) -> str:
    """The text of a regular file of at most `limit` bytes, as UTF-8.

    Raises:
        UnreadableFileError: missing, a folder or device, too large, or not UTF-8.
    """
    name = shorten(str(path))
    try:
        file = Path(path)
        if not file.is_file():
            kind = "is a folder, not a file" if file.is_dir() else "does not exist or is not a regular file"
            raise UnreadableFileError(f"{name} {kind}.", given=name, fix="check the path")
        if file.stat().st_size > limit:
            raise UnreadableFileError(f"{name} is larger than {limit} bytes.", given=name, fix="pass a smaller file")
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFileError(f"{name} is not UTF-8 text.", given=name, fix="pass a YAML or JSON file") from None
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"{name} cannot be read: {shorten(str(error))}.", given=name) from None


def load_file(path: str | Path) -> Any:
    """Parse a YAML or JSON file; see `load_text` and `read_text` for what is refused."""
    return load_text(read_text(path), name=shorten(str(path)))
