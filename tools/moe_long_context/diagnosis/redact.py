"""Removes secrets and personal paths from anything of a log that is shown again."""

from __future__ import annotations

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.S), "<secret>"),
    (re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/@:]{1,200}:[^\s/@]{1,200}@", re.I), "<credentials>@"),
    (re.compile(r"\bhttps?://[^\s'\"<>]{1,500}", re.I), "<url>"),
    (re.compile(r"\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}", re.I), "<secret>"),
    (re.compile(r"\b(?:hf|ghp|gho|ghs|ghu|github_pat|glpat|xox[abpr]|nvapi|npm|pypi|sk|pk|rk)[-_][A-Za-z0-9_-]{8,}"),
     "<secret>"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"), "<secret>"),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{30,}"), "<secret>"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"), "<secret>"),
    (re.compile(r"(?i)([\"']?[a-z0-9_.-]{0,40}(?:api[-_]?key|secret|token|passw(?:or)?d|credential|authorization|"
                r"private[-_]?key|access[-_]?key)[a-z0-9_.-]{0,20}[\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s,;]+)"),
     r"\1<secret>"),
    (re.compile(r"\b[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64})+\b"), "<email>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "<address>"),
    (re.compile(r"\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b", re.I), "<address>"),
    (re.compile(r"\b[0-9a-f]{40,}\b", re.I), "<hash>"),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:)?[\\/](?:[^\s\\/:'\",;()\[\]]+[\\/])*((?:site-packages|dist-packages)[\\/])"),
     r"\1"),
    (re.compile(r"(?<![\w.<])(?:~|[A-Za-z]:)?(?:[\\/][^\s\\/:'\",;()\[\]<>]+)+[\\/]([^\s\\/:'\",;()\[\]<>]+)"), r"\1"),
    (re.compile(r"(?i)\b(user(?:name)?|login|host(?:name)?)(\s*[=:]\s*)[^\s,;]+"), r"\1\2<name>"),
)  # fmt: skip


def redact(text: str, limit: int = 300) -> str:
    """One printable line of at most `limit` characters without secrets, addresses, or folder names.

    File names stay, their folders go: a path tells who and where, its last part tells what.
    """
    text = text[: limit * 8]
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
