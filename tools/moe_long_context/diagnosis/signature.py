"""Failure signatures as data: one YAML file each in `signatures/`, registered by being there.

A signature names texts that the framework prints, the cause they point to, and the fixes for that cause. What needs
arithmetic (memory figures, step times) is in `causes`.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from moe_long_context.yaml_safe import load_file

_ERROR = re.compile(r"Error|ssert|xception")


QUOTED_CHARACTERS = 20
"""A printed text of this length is recognised in a person's sentence; shorter ones are ordinary words."""


def _fold(text: str) -> str:
    return " ".join(text.lower().replace("_", " ").split())


class Suspect(BaseModel):
    """A cause that a signature points to."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cause: str
    confidence: float = Field(gt=0, lt=1)
    because: str
    needs: str = Field(default="", description="name of a predicate on the configuration; unmet = much less likely")


class Signature(BaseModel):
    """What is printed, what it means, what to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    texts: tuple[str, ...] = Field(default=(), description="one of these stands on the line, as printed")
    pattern: str = Field(default="", description="and this regular expression matches the line")
    words: tuple[str, ...] = Field(default=(), description="patterns for a symptom told in a person's own words")
    suspects: tuple[Suspect, ...]
    fixes: tuple[str, ...] = Field(default=(), description="tags of fixes, best first")
    missing: tuple[str, ...] = Field(default=(), description="facts to ask for")
    only_errors: bool = Field(default=False, description="counts only on a line that reports an error")
    question: bool = Field(default=False, description="no failure: words that ask for what another tool answers")
    follows_others: bool = Field(default=False, description="often only a consequence of another rank's failure")
    source: str

    @cached_property
    def compiled(self) -> re.Pattern[str] | None:
        """The compiled pattern, None without one."""
        return re.compile(self.pattern) if self.pattern else None

    @cached_property
    def compiled_words(self) -> tuple[re.Pattern[str], ...]:
        """The compiled patterns for prose."""
        return tuple(re.compile(text, re.I) for text in self.words)

    def is_on(self, line: str) -> bool:
        """Whether a log line carries this signature."""
        if not any(text in line for text in self.texts):
            return False
        if self.only_errors and not _ERROR.search(line):
            return False
        return self.compiled is None or self.compiled.search(line) is not None

    def is_told(self, text: str) -> bool:
        """Whether a symptom in a person's own words describes it, or quotes it."""
        told = any(pattern.search(text) for pattern in self.compiled_words)
        return told or self._is_quoted(text) or any(self.is_on(line) for line in text.splitlines())

    def _is_quoted(self, text: str) -> bool:
        """Whether the words quote a long printed text, in any case and without its error's name."""
        folded = _fold(text)
        long = (t for t in self.texts if len(t) >= QUOTED_CHARACTERS)
        return any(_fold(t) in folded for t in long) and (self.compiled is None or bool(self.compiled.search(text)))


@lru_cache(maxsize=1)
def signatures() -> tuple[Signature, ...]:
    """All signatures, by id."""
    files = sorted((Path(__file__).parent / "signatures").glob("*.yaml"))
    return tuple(Signature.model_validate({"id": file.stem, **load_file(file)}) for file in files)
