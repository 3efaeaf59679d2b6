"""Re-validates a recipe that a tool emitted: read back as a run configuration, it must have no error."""

from __future__ import annotations

import ast
from typing import Any

from moe_long_context.config.reading import read_document
from moe_long_context.errors import MoeError
from moe_long_context.tools.validate import validate_config


def recipe_problem(document: dict[str, Any]) -> str:
    """Empty when the emitted recipe is sound, else what is wrong with it."""
    result = document.get("result") or {}
    files = result.get("files") or []
    if not files:
        return "no files were emitted"
    first = files[0]
    if first["path"].endswith(".py"):
        return _python_problem(first["text"])
    try:
        answer = validate_config(read_document(first["text"], first["path"]))
    except MoeError as error:
        return f"cannot be read back: {error}"
    errors = [finding.rule for finding in answer.findings if finding.severity == "error"]
    return f"read back, it breaks {errors}" if errors else ""


def _python_problem(text: str) -> str:
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return f"is no Python: {error}"
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return "" if "build_config" in names else "has no build_config()"
