"""`validate_config`: what the framework will refuse or get wrong, offline, and the repaired configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import UnreadableFileError, shorten
from moe_long_context.results import Finding, Frozen
from moe_long_context.rules.registry import check, rule_named
from moe_long_context.rules.repair import Edit, repair
from moe_long_context.rules.versions import bridge_of, core_of
from moe_long_context.tools._tool import Draft, Options, tool


class ValidateOptions(Options):
    """Options of `validate_config`."""

    fix: bool = Field(default=False, description="also return the repaired configuration and its edits")
    output: str | None = Field(
        default=None, max_length=4096, description="with fix: file to write the repaired configuration to"
    )
    force: bool = Field(default=False, description="overwrite the output file")
    explain: str | None = Field(
        default=None, max_length=80, description="a rule id: return its page instead of checking"
    )
    format: Literal["table", "sarif"] = Field(default="table", description="sarif: also return a SARIF 2.1.0 log")


class RuleEdit(Frozen):
    """One automatic edit."""

    rule: str
    field: str
    before: Any = None
    after: Any = None
    effect: str


class ValidateResult(Frozen):
    """Counts by severity; the findings stand beside the result."""

    valid: bool
    errors: int = 0
    warnings: int = 0
    notes: int = 0
    missing: tuple[str, ...] = Field(default=(), description="facts not given; rules about them stayed silent")
    megatron_core: str = ""
    megatron_bridge: str = ""
    edits: tuple[RuleEdit, ...] = ()
    repaired: dict[str, Any] | None = None
    written: str = ""
    page: str = ""
    sarif: dict[str, Any] | None = None


@tool("validate", ValidateOptions, ValidateResult)
def validate_config(config: RunConfig, options: ValidateOptions) -> Draft:
    """What the framework will refuse or get wrong, without a GPU; --fix repairs what is safe."""
    if options.explain:
        from moe_long_context.rules.pages import rule_page

        return Draft(ValidateResult(valid=True, page=rule_page(rule_named(options.explain))))
    run = resolve(config, partial=True)
    findings = check(run)
    result = _counted(run, findings)
    if options.fix:
        result = _repaired(config, options, result)
    if options.format == "sarif":
        from moe_long_context.rules.sarif import sarif_log

        result = result.model_copy(update={"sarif": sarif_log(findings)})
    return Draft(result, findings=findings, assumptions=tuple(run.assumptions), no=not result.valid)


def _counted(run: Run, findings: tuple[Finding, ...]) -> ValidateResult:
    count = {name: sum(f.severity == name for f in findings) for name in ("error", "warning", "info")}
    return ValidateResult(
        valid=not count["error"], errors=count["error"], warnings=count["warning"], notes=count["info"],
        missing=tuple(sorted(run.missing)), megatron_core=core_of(run.written), megatron_bridge=bridge_of(run.written),
    )  # fmt: skip


def _repaired(config: RunConfig, options: ValidateOptions, result: ValidateResult) -> ValidateResult:
    fixed, edits = repair(config)
    written = _write(fixed, options) if options.output else ""
    return result.model_copy(
        update={"repaired": fixed.written(), "edits": tuple(_edit(e) for e in edits), "written": written}
    )


def _edit(e: Edit) -> RuleEdit:
    return RuleEdit(rule=e.rule, field=e.field, before=e.before, after=e.after, effect=e.effect)


def _write(fixed: RunConfig, options: ValidateOptions) -> str:
    """Write the repaired configuration as YAML; an existing file only with force.

    Raises:
        UnreadableFileError: the file exists, or cannot be written.
    """
    import yaml

    path = Path(str(options.output))
    if path.exists() and not options.force:
        raise UnreadableFileError(
            f"{shorten(str(path))} exists.", given=str(path), fix="name another file, or pass --force"
        )
    try:
        path.write_text(yaml.safe_dump(fixed.written(), sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UnreadableFileError(
            f"{shorten(str(path))} cannot be written: {error.strerror}.", given=str(path)
        ) from None
    return str(path)
