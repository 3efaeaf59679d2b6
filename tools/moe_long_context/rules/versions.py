"""Framework versions that the rules know, in order, and comparison of a run's version with a rule's range."""

from __future__ import annotations

from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import UnknownNameError

CORE = ("0.14.0", "0.15.0", "0.16.1", "0.17.0", "0.18.0", "0.19.2", "main")
BRIDGE = ("0.6.2", "main")
DEFAULT_CORE, DEFAULT_BRIDGE = "0.19.2", "0.6.2"


def core_of(config: RunConfig) -> str:
    """The known megatron-core release of a run; a minor such as 0.19 or 0.16.0 means its known release.

    Raises:
        UnknownNameError: a release that the rules were not read from.
    """
    return _known(config.versions.megatron_core, CORE, DEFAULT_CORE, "megatron_core version")


def bridge_of(config: RunConfig) -> str:
    """The known megatron-bridge release of a run.

    Raises:
        UnknownNameError: a release that the rules were not read from.
    """
    return _known(config.versions.megatron_bridge, BRIDGE, DEFAULT_BRIDGE, "megatron_bridge version")


def _known(given: str | None, known: tuple[str, ...], default: str, what: str) -> str:
    if given is None:
        return default
    text = given.strip().lower().removeprefix("v").removeprefix("core_")
    if text in ("head", "dev", "0.20", "0.20.0", "0.7.0") and (what.startswith("megatron_core") or text != "0.20"):
        return "main"
    minor = ".".join(text.split(".")[:2])
    for release in known:
        if text == release or minor == ".".join(release.split(".")[:2]):
            return release
    raise UnknownNameError(what, given, known, code="unknown_version", fix=f"use one of {', '.join(known)}")


def within(release: str, since: str | None, until: str | None) -> bool:
    """Whether a core release lies in [since, until]; None = open."""
    index = CORE.index(release)
    after = since is None or index >= CORE.index(since)
    return after and (until is None or index <= CORE.index(until))
