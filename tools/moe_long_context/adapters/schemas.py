"""One flat, portable argument model per tool, and the JSON Schema that agents of every vendor accept.

`python -m moe_long_context.adapters.schemas --write|--check FOLDER` keeps the exported files current.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic import Field as Info

from moe_long_context.adapters.fields import Field, run_fields
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, UnknownNameError
from moe_long_context.results import Answer
from moe_long_context.tools import MODULES
from moe_long_context.tools._tool import REGISTRY, Tool, failure

CONFIG = "Run configuration: the path of a YAML or JSON file, or its text"


def tools() -> list[Tool]:
    """Every tool, by function name."""
    from importlib import import_module

    for module in MODULES.values():
        import_module(f"moe_long_context.tools.{module}")
    return [REGISTRY[name] for name in sorted(MODULES)]


@lru_cache(maxsize=16)
def args_model(tool: Tool) -> type[BaseModel]:
    """The flat argument model of a tool: its configuration, its own options, then the run's fields."""
    names = ("config_a", "config_b") if tool.configs == 2 else ("config",)
    rows: dict[str, Any] = {n: _row(str, CONFIG, required=tool.configs == 2) for n in names}
    for name, info in tool.options.model_fields.items():
        rows[name] = _row(_portable(info.annotation), info.description or name.replace("_", " "))
    if tool.configs == 1:
        for field in run_fields():
            rows.setdefault(field.short, _row(_type(field), field.description))
    return create_model(f"{tool.name}_args", __config__=ConfigDict(extra="forbid"), __doc__=tool.summary, **rows)


def _row(kind: Any, description: str, required: bool = False) -> Any:
    return (kind, Info(description=description)) if required else (kind | None, Info(None, description=description))


def _type(field: Field) -> Any:
    if field.choices:
        return Literal[field.choices]
    items = int if field.path == "hierarchical_context_parallel_sizes" else str
    return {"bool": bool, "int": int, "float": float, "text": str, "list": list[items]}[field.kind]  # type: ignore[valid-type]


def _portable(annotation: Any) -> Any:
    text = str(annotation)
    if "tuple" in text or "list" in text:
        return list[str]
    if annotation in (bool, int, float):
        return annotation
    from typing import get_args

    options = [a for a in get_args(annotation) if a is not type(None)]
    if "Literal" in text:
        return Literal[tuple(v for v in (get_args(options[0]) or options))]
    return next((kind for kind in (bool, int, float) if kind in options and str not in options), str)


def input_schema(tool: Tool) -> dict[str, Any]:
    """The portable JSON Schema of a tool's arguments: a flat object, optional fields left out rather than null."""
    schema = args_model(tool).model_json_schema()
    for row in schema["properties"].values():
        row.pop("title", None)
        row.pop("default", None)
        for option in row.pop("anyOf", ()):
            if option.get("type") != "null":
                row.update(option)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": tool.name}


def output_schema(tool: Tool) -> dict[str, Any]:
    """The JSON Schema of a tool's answer, with a result and with an error."""
    schema = Answer[tool.result].model_json_schema(mode="validation")  # type: ignore[name-defined]
    schema["properties"].pop("no", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": f"{tool.name} answer"}


def call(tool: Tool, given: dict[str, Any]) -> Answer[Any]:
    """Run a tool on flat arguments; whatever is wrong with them comes back as data."""
    try:
        held = args_model(tool)
        for key in given:
            if key not in held.model_fields:
                raise UnknownNameError("argument", key, held.model_fields)
        try:
            checked = held.model_validate(given).model_dump(exclude_none=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BadValueError(f"{where}: {first['msg']}.", given=str(first.get("input"))[:200]) from None
        return _called(tool, checked)
    except Exception as error:
        return failure(tool.name, error)


def _called(tool: Tool, given: dict[str, Any]) -> Answer[Any]:
    options = {name: given[name] for name in tool.options.model_fields if name in given}
    if tool.configs == 2:
        return tool.call(_config(given["config_a"]), _config(given["config_b"]), **options)
    base = _config(given["config"]) if given.get("config") else RunConfig()
    paths = {field.short: field.path for field in run_fields()}
    fields = {paths[n]: v for n, v in given.items() if n in paths and n not in tool.options.model_fields}
    return tool.call(base.replace(**fields) if fields else base, **options)


def _config(text: str) -> RunConfig:
    from moe_long_context.tools._tool import read_source
    from moe_long_context.yaml_safe import load_text

    if "\n" in text or text.lstrip().startswith("{") or ": " in text:
        return RunConfig.read(load_text(text, "config"))
    return read_source(text)


def exported() -> dict[str, str]:
    """File name to text of every exported schema."""
    out = {}
    for tool in tools():
        for suffix, schema in ((".json", input_schema(tool)), (".output.json", output_schema(tool))):
            out[tool.name + suffix] = json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
    return out


def main(argv: list[str]) -> int:
    """Write the schemas, or say which are stale (status 1)."""
    if len(argv) != 2 or argv[0] not in ("--write", "--check"):
        print("usage: python -m moe_long_context.adapters.schemas --write|--check FOLDER", file=sys.stderr)
        return 2
    folder, stale = Path(argv[1]), []
    for name, text in exported().items():
        path = folder / name
        if argv[0] == "--write":
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
    for name in stale:
        print(f"stale: {name}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
