"""Units and the numbers people write: bytes, token lengths, GPU counts. No other module divides by 2**30."""

from __future__ import annotations

import re
from typing import Any

from moe_long_context.errors import BadValueError, shorten

KIB = 1024
MIB = 1024**2
GIB = 1024**3

BYTES_PER_DTYPE = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "fp4": 0.5, "int64": 8, "int32": 4, "bool": 1, "uint8": 1}

MAX_SEQ_LENGTH = 1 << 27
MAX_COUNT = 1 << 20

_LENGTH = re.compile(r"^(\d{1,12})(\.\d{1,6})?\s*([kKmM]?)$")
_GPUS = re.compile(r"^(\d{1,9})\s*[xX*]\s*([\w.-]{1,40})$")


def gib(n_bytes: float) -> float:
    """Bytes as GiB (2**30)."""
    return n_bytes / GIB


def parse_length(value: Any, name: str = "seq_length") -> int:
    """Tokens from 131072, "131072", "128k" or "1M" (k = 1024).

    Raises:
        BadValueError: not a whole, positive number of tokens, or above 2**27.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        whole = isinstance(value, float) and value.is_integer()
        if not whole:
            raise _bad_length(name, value)
        value = int(value)
    tokens = _length_from_text(value, name) if isinstance(value, str) else int(value)
    if not 0 < tokens <= MAX_SEQ_LENGTH:
        raise _bad_length(name, tokens)
    return tokens


def _length_from_text(text: str, name: str) -> int:
    match = _LENGTH.match(text.strip().replace("_", ""))
    if not match:
        raise _bad_length(name, text)
    whole, fraction, suffix = match.groups()
    scale = {"": 1, "k": KIB, "m": MIB}[suffix.lower()]
    number = float(whole + (fraction or "")) * scale
    if not number.is_integer():
        raise _bad_length(name, text)
    return int(number)


def _bad_length(name: str, value: Any) -> BadValueError:
    return BadValueError(
        f"{name} must be a whole number of tokens from 1 to {MAX_SEQ_LENGTH}, got {shorten(value)}.",
        given=value if isinstance(value, int | float | str) else shorten(value),
        allowed=["131072", "128k", "1M"],
        fix="write tokens, or use k (1024) or M (1024*1024)",
    )


def parse_gpus(text: str) -> tuple[int, str]:
    """("256xH100") -> (256, "H100").

    Raises:
        BadValueError: not of the form COUNTxNAME.
    """
    match = _GPUS.match(text.strip()) if isinstance(text, str) else None
    if not match:
        raise BadValueError(
            f"--gpus must be COUNTxNAME, got {shorten(text)}.",
            given=shorten(text),
            allowed=["256xH100", "64xGB200"],
            fix="write for example 256xH100",
        )
    return int(match.group(1)), match.group(2)


def length_text(tokens: int) -> str:
    """131072 -> "128k"; lengths that are not whole multiples stay plain."""
    if tokens and tokens % MIB == 0:
        return f"{tokens // MIB}M"
    if tokens and tokens % KIB == 0:
        return f"{tokens // KIB}k"
    return str(tokens)
