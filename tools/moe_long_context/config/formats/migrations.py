"""Older spellings of framework fields and what the released versions call them; readers and writers use the table.

Sources: Megatron-Core 0.14 to 0.19.2 transformer_config.py, where the older names are deprecated or gone.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from moe_long_context.config.run_config import RunConfig


class Migration(NamedTuple):
    """One field that was written in an older spelling and is emitted in the current one."""

    written: str
    emitted: str
    why: str


RENAMED = {
    "model.cuda_graph_scope": ("model.cuda_graph_modules", "renamed in Megatron-Core 0.18"),
    "model.moe_router_padding_for_fp8": ("model.moe_router_padding_for_quantization", "renamed in Megatron-Core 0.16"),
    "model.moe_deepep_num_sms": ("model.moe_flex_dispatcher_num_sms", "one knob for all backends since 0.19"),
    "model.moe_hybridep_num_sms": ("model.moe_flex_dispatcher_num_sms", "one knob for all backends since 0.19"),
    "model.enable_autocast": ("mixed_precision.autocast_enabled", "Bridge's mixed precision overwrites the model's"),
    "ddp.use_custom_fsdp": ("ddp.use_megatron_fsdp", "renamed when Megatron-FSDP was released"),
}
REPLACED: dict[str, tuple[dict[str, Any], str]] = {
    "model.moe_enable_deepep": (
        {"model.moe_token_dispatcher_type": "flex", "model.moe_flex_dispatcher_backend": "deepep"},
        "a backend of the flex dispatcher since Megatron-Core 0.16",
    ),
    "model.enable_cuda_graph": ({"model.cuda_graph_impl": "local"}, "replaced by cuda_graph_impl in 0.15"),
    "model.external_cuda_graph": (
        {"model.cuda_graph_impl": "transformer_engine"},
        "replaced by cuda_graph_impl in 0.15",
    ),
    "model.moe_layer_recompute": (
        {"model.recompute_granularity": "selective", "model.recompute_modules": ["moe"]},
        "a recompute module since Megatron-Core 0.12",
    ),
}

NO_MODULES: tuple[Any, ...] = (None, "full", [], ())
"""Values of cuda_graph_modules beside which Megatron-Core lets the older cuda_graph_scope count."""


def migrate(fields: dict[str, Any]) -> tuple[dict[str, Any], list[Migration]]:
    """Bridge fields in the current spelling, and what was changed. Fields already current win over migrated ones."""
    out: dict[str, Any] = {}
    done: list[Migration] = []
    scoped, modules = fields.get("model.cuda_graph_scope"), "model.cuda_graph_modules"
    if scoped is not None and fields.get(modules) in NO_MODULES:
        fields = {path: value for path, value in fields.items() if path != modules}
    for path, value in fields.items():
        if path in RENAMED:
            new, why = RENAMED[path]
            if value is not None and new not in fields:
                out[new] = value
                done.append(Migration(f"{path}={value}", f"{new}={value}", why))
        elif path in REPLACED:
            target, why = REPLACED[path]
            if value:
                out.update({new: item for new, item in target.items() if new not in fields})
                done.append(Migration(f"{path}={value}", ", ".join(f"{k}={v}" for k, v in target.items()), why))
        else:
            out[path] = value
    return _full_iteration(out, done)


def _full_iteration(fields: dict[str, Any], done: list[Migration]) -> tuple[dict[str, Any], list[Migration]]:
    """`full_iteration` was a scope until 0.17 and is an implementation since 0.18; its module list is empty."""
    modules = fields.get("model.cuda_graph_modules")
    listed = [modules] if isinstance(modules, str) else list(modules) if isinstance(modules, list | tuple) else []
    if listed == ["full_iteration"]:
        fields["model.cuda_graph_impl"] = "full_iteration"
        fields["model.cuda_graph_modules"] = []
        done.append(
            Migration("cuda_graph_modules=full_iteration", "cuda_graph_impl=full_iteration", "since Megatron-Core 0.18")
        )
    elif listed == ["full"]:
        fields["model.cuda_graph_modules"] = []
    return fields, done


_NOTE = re.compile(r"^read (.{1,400}) as (.{1,400}) \((.{1,200})\)$")


def migration_note(migration: Migration) -> str:
    """How a reader remembers what it renamed; `written_migrations` finds it again."""
    return f"read {migration.written} as {migration.emitted} ({migration.why})"


def written_migrations(config: RunConfig) -> list[Migration]:
    """Older spellings that stand in a run configuration's `megatron` fields and graph modules."""
    fields = dict(config.megatron)
    if config.cuda_graph.modules:
        fields["model.cuda_graph_modules"] = list(config.cuda_graph.modules)
    noted = [Migration(*match.groups()) for note in config.reader_notes if (match := _NOTE.match(note))]
    return [*noted, *migrate(fields)[1]]
