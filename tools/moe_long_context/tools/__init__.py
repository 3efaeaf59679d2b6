"""The ten public tools, one module each, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

MODULES = {
    "check_pitfalls": "pitfalls",
    "compare_configs": "compare",
    "diagnose_failure": "diagnose",
    "emit_recipe": "recipe",
    "estimate_memory": "memory",
    "estimate_throughput": "throughput",
    "find_evidence": "evidence",
    "plan_layout": "plan",
    "recommend_recompute": "recompute",
    "validate_config": "validate",
}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no tool {name!r}")


def __dir__() -> list[str]:
    return sorted(MODULES)


__all__ = sorted(MODULES)
