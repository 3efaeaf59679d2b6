"""Words of a shell script, read without running it: quotes, continuations, comments, variables and arrays.

A variable that the script itself sets to plain text is replaced; any other stays as written and is reported.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from moe_long_context.errors import BadValueError

_ASSIGNMENT = re.compile(r"^(?:export\s+)?([A-Za-z_]\w*)(\+?)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?(?::?[-=]([^${}]*))?\})")
_WHOLE = re.compile(r"^\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})$")
NOT_VARIABLES = ("mixed_precision", "comm_overlap", "env_vars", "peft")
_SUBSTITUTION = re.compile(r"\$\([^()\n]*\)")
NO_BREAK = "\u00a0"
MAX_WORDS, MAX_WORD, MAX_VALUE = 20_000, 1 << 18, 1 << 14
MAX_EXPANSIONS = 8


class ShellText(NamedTuple):
    """Words in order with known variables replaced, exported values, and names that could not be resolved."""

    words: list[str]
    variables: dict[str, list[str]]
    unresolved: list[str]


def read_shell(text: str) -> ShellText:
    """Words and variables of a script or argument list. Nothing is executed.

    Raises:
        BadValueError: a quote that does not close, or a script too long.
    """
    tokens = _tokens(text.replace("\\\r\n", " ").replace("\\\n", " "))
    words, variables = _assignments(tokens)
    expansion = _Expansion(variables)
    for word in words:
        if word not in ("$@", "$*"):
            expansion.add(word, 0)
    return ShellText(expansion.words, variables, list(expansion.unresolved))


class _Expansion:
    """Words with their variables replaced, within a fixed budget."""

    def __init__(self, variables: dict[str, list[str]]) -> None:
        self.variables = variables
        self.words: list[str] = []
        self.unresolved: dict[str, None] = {}

    def add(self, word: str, depth: int) -> None:
        """One written word as the words it stands for."""
        if len(self.words) >= MAX_WORDS or len(word) > MAX_WORD:
            raise BadValueError(
                f"The script expands to more than {MAX_WORDS} words.", fix="pass the command line alone"
            )
        whole = _WHOLE.match(word) if depth <= MAX_EXPANSIONS else None
        name = (whole.group(1) or whole.group(2)) if whole else None
        if name and name in self.variables:
            for value in self.variables[name]:
                for part in _split(value):
                    self.add(part, depth + 1)
            return
        replaced = _VARIABLE.sub(self._text, word)
        if len(replaced) > MAX_WORD:
            raise BadValueError(f"A word of the script has more than {MAX_WORD} characters.", given=word[:60])
        if NO_BREAK in replaced or "`" in replaced:
            self.unresolved.setdefault(replaced.replace(NO_BREAK, " ")[:60])
        if replaced != word and "$" in replaced and depth <= MAX_EXPANSIONS:
            self.add(replaced, depth + 1)
        else:
            self.words += _nested(replaced)

    def _text(self, match: re.Match[str]) -> str:
        name, default = match.group(1) or match.group(2), match.group(3)
        if name in self.variables:
            return " ".join(self.variables[name])[:MAX_VALUE]
        if default is not None:
            return default
        self.unresolved.setdefault(f"${name}")
        return match.group(0)


def _tokens(text: str) -> list[str]:
    text = _SUBSTITUTION.sub(lambda m: m.group(0).replace(" ", NO_BREAK).replace("(", "{").replace(")", "}"), text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();&|<>")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError as error:
        raise BadValueError(f"The script cannot be read: {error}.", fix="check its quotes") from None


def _assignments(tokens: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Commands' words, and what each variable holds; `A=(x y)` and `A+=(z)` are arrays."""
    words: list[str] = []
    variables: dict[str, list[str]] = {}
    index = 0
    while index < len(tokens):
        match = _ASSIGNMENT.match(tokens[index])
        index += 1
        if not match or match.group(1) in NOT_VARIABLES:
            words.append(tokens[index - 1])
            continue
        name, append, value = match.groups()
        value = re.sub(r"\$\{" + name + r":?[-=]([^${}]*)\}", r"\1", value)
        held = variables.get(name, []) if append else []
        if value == "" and index < len(tokens) and tokens[index].startswith("("):
            items, index = _array(tokens, index)
            variables[name] = held + items
        else:
            variables[name] = [*held, value]
    return words, variables


def _array(tokens: list[str], index: int) -> tuple[list[str], int]:
    items: list[str] = []
    index += 1
    while index < len(tokens) and not tokens[index].startswith(")"):
        items.append(tokens[index])
        index += 1
    return items, index + 1


def _nested(word: str) -> list[str]:
    """A command inside quotes (`bash -c "..."`) as its words."""
    if " --" in word or (word.startswith("--") and " " in word):
        return _split(word)
    return [word]


def _split(text: str) -> list[str]:
    if not re.search(r"\s", text):
        return [text]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
