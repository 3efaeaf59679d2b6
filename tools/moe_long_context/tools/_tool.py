"""The frame that all ten tools share: options in, `Answer` out, expected failures as data.

A tool module defines `Options`, `Result` and one function `(RunConfig, Options) -> Draft`, decorated with `tool`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from moe_long_context._version import VERSION
from moe_long_context.catalog.loader import first_problem
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, InputError, MoeError, UnknownNameError, internal_error
from moe_long_context.results import Answer, ErrorInfo, Evidence, Finding


class Options(BaseModel):
    """Base of a tool's own options (what is not part of the run configuration)."""

    model_config = ConfigDict(frozen=True, extra="forbid")


@dataclass(frozen=True)
class Draft:
    """What a tool body returns; the frame adds name and version."""

    result: BaseModel
    findings: tuple[Finding, ...] = ()
    assumptions: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    no: bool = False


@dataclass(frozen=True)
class Tool:
    """One tool: its public function and what the four doors are made from."""

    name: str
    command: str
    summary: str
    options: type[Options]
    result: type[BaseModel]
    configs: int = 1
    call: Callable[..., Answer[Any]] = field(default=lambda: None, compare=False)  # type: ignore[assignment]


REGISTRY: dict[str, Tool] = {}


def tool(
    command: str, options: type[Options], result: type[BaseModel], configs: int = 1
) -> Callable[..., Callable[..., Answer[Any]]]:
    """Turn `(RunConfig..., Options) -> Draft` into a public tool and register it under its function's name.

    `configs` is how many run configurations it takes: 1, or 2 for a comparison.
    """

    def decorate(body: Callable[..., Draft]) -> Callable[..., Answer[Any]]:
        name = body.__name__

        @wraps(body)
        def call(*sources: Any, **keywords: Any) -> Answer[Any]:
            try:
                draft = body(*_configs(sources, keywords, configs, options), _options(options, keywords))
                return Answer[result](  # type: ignore[valid-type]
                    tool=name, version=VERSION, ok=True, result=draft.result, findings=draft.findings,
                    assumptions=draft.assumptions, evidence=draft.evidence, no=draft.no,
                )  # fmt: skip
            except Exception as error:
                return failure(name, error)

        summary = (body.__doc__ or "").strip().splitlines()[0]
        REGISTRY[name] = Tool(name, command, summary, options, result, configs, call)
        return call

    return decorate


def failure(tool_name: str, error: Exception) -> Answer[Any]:
    """The answer of a call that failed: as expected (`MoeError`), or by a defect of the program."""
    info = error.as_dict() if isinstance(error, MoeError) else internal_error(error)
    result, held = REGISTRY[tool_name].result, ErrorInfo.model_validate(info)
    return Answer[result](tool=tool_name, version=VERSION, ok=False, error=held)  # type: ignore[valid-type]


def read_source(source: Any) -> RunConfig:
    """A RunConfig from a RunConfig, a mapping, or a path.

    Raises:
        InputError: see `RunConfig.read` and `config.reading.read_file`.
    """
    if isinstance(source, str | Path):
        from moe_long_context.config.reading import read_file

        return read_file(source)
    return RunConfig.read(source)


def _configs(sources: tuple[Any, ...], keywords: dict[str, Any], count: int, options: type[Options]) -> list[RunConfig]:
    if count != 1:
        if len(sources) != count:
            raise BadValueError(f"{count} run configurations are needed, got {len(sources)}.", fix="pass them in order")
        return [read_source(source) for source in sources]
    if len(sources) > 1:
        raise BadValueError(
            f"One run configuration is needed, got {len(sources)}.", fix="pass one, and options by name"
        )
    base = read_source(sources[0]) if sources and sources[0] is not None else RunConfig()
    fields = {key: keywords.pop(key) for key in list(keywords) if key not in options.model_fields}
    fields = {key: value for key, value in fields.items() if value is not None}
    return [base.replace(**fields) if fields else base]


def _options(options: type[Options], keywords: dict[str, Any]) -> Options:
    given = {key: value for key, value in keywords.items() if value is not None}
    unknown = set(given) - set(options.model_fields)
    if unknown:
        raise UnknownNameError("option", sorted(unknown)[0], options.model_fields)
    try:
        return options.model_validate(given)
    except ValidationError as error:
        raise BadValueError(f"{first_problem(error)}.", given=str(given)[:200]) from None


__all__ = ["REGISTRY", "Draft", "InputError", "Options", "Tool", "failure", "read_source", "tool"]
