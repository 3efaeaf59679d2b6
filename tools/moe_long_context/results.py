"""What every tool returns: one frozen `Answer` with a typed result, findings, assumptions and evidence.

`answer.model_dump(mode="json")` is exactly the object that `--json` prints.
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from moe_long_context.errors import INTERNAL, MoeError

Severity = Literal["error", "warning", "info"]
Basis = Literal["measured", "exact", "modelled"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


class Frozen(BaseModel):
    """Base of all result pieces."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Finding(Frozen):
    """One thing that is wrong or worth knowing, from one rule."""

    rule: str
    severity: Severity
    message: str
    fields: tuple[str, ...] = ()
    fix: str = ""
    where: str = Field(default="", description="where the framework would have failed: config, process groups, ...")
    versions: str = ""
    source: str = ""


class Evidence(Frozen):
    """A published measurement or a source that an answer rests on."""

    what: str
    basis: Basis
    source: str
    value: float | None = None
    unit: str = ""


class ErrorInfo(Frozen):
    """Why a tool could not answer."""

    code: str
    message: str
    given: Any = None
    allowed: tuple[str, ...] = ()
    fix: str = ""


ResultT = TypeVar("ResultT", bound=BaseModel)


class Answer(Frozen, Generic[ResultT]):
    """The answer of one tool call."""

    tool: str
    version: str
    ok: bool
    result: ResultT | None = None
    findings: tuple[Finding, ...] = ()
    assumptions: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    error: ErrorInfo | None = None
    no: bool = Field(default=False, exclude=True, description="done, and the answer is no (exit 1)")

    @model_serializer(mode="wrap")
    def _shape(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data: dict[str, Any] = handler(self)
        unused = ("error",) if self.ok else ("result", "findings", "assumptions", "evidence")
        return {key: value for key, value in data.items() if key not in unused}

    @property
    def exit_status(self) -> int:
        """0 done, 1 done and the answer is no, 2 the input is wrong, 3 a fault of the program."""
        if self.error is not None:
            return 3 if self.error.code == INTERNAL else 2
        return 1 if self.no else 0

    def raise_for_error(self) -> Answer[ResultT]:
        """Return self, or raise the expected failure as a typed exception.

        Raises:
            MoeError: with the same code, message, given, allowed and fix.
        """
        if self.error is None:
            return self
        e = self.error
        raise MoeError(e.message, given=e.given, allowed=e.allowed, fix=e.fix, code=e.code)
