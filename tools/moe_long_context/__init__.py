"""Plan, estimate, validate and emit long-context MoE training runs for Megatron Bridge and Megatron-Core.

The ten tools and `RunConfig` are the public surface; everything loads on first use.
"""

from __future__ import annotations

from typing import Any

from moe_long_context._version import VERSION

__version__ = VERSION

_PUBLIC = {
    "RunConfig": "moe_long_context.config.run_config",
    "MoeError": "moe_long_context.errors",
    "check_pitfalls": "moe_long_context.tools",
    "compare_configs": "moe_long_context.tools",
    "diagnose_failure": "moe_long_context.tools",
    "emit_recipe": "moe_long_context.tools",
    "estimate_memory": "moe_long_context.tools",
    "estimate_throughput": "moe_long_context.tools",
    "find_evidence": "moe_long_context.tools",
    "plan_layout": "moe_long_context.tools",
    "recommend_recompute": "moe_long_context.tools",
    "validate_config": "moe_long_context.tools",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


__all__ = sorted([*_PUBLIC, "__version__"])
