"""The Megatron block of verl: YAML (`actor_rollout_ref.actor.megatron`) or the same as key=value words.

ms-swift and slime pass Megatron-LM flags; `megatron_lm` reads those.
"""

from __future__ import annotations

from typing import Any

from moe_long_context.config.formats.bridge_fields import run_from_fields
from moe_long_context.config.formats.overrides import parse_value
from moe_long_context.config.framework_fields import by_name
from moe_long_context.config.run_config import RunConfig

ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron."
OVERRIDES = {
    f"{MEGATRON}override_transformer_config.": "model.",
    f"{MEGATRON}override_ddp_config.": "ddp.",
    f"{ACTOR}.optim.override_optimizer_config.": "optimizer.",
}
DIRECT = {
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": "train.micro_batch_size",
    f"{ACTOR}.ppo_mini_batch_size": "train.global_batch_size",
    "actor_rollout_ref.model.path": "model.hf_model_id",
}
HARMLESS = ("use_mbridge", "vanilla_mbridge", "use_dist_checkpointing", "dist_checkpointing_path", "seed")
LENGTHS = ("data.max_prompt_length", "data.max_response_length")


def find_block(words: list[str]) -> RunConfig | None:
    """The run configuration in a verl command line; None when there is none."""
    flat: dict[str, Any] = {}
    for word in words:
        key, equals, value = word.lstrip("+~").partition("=")
        if equals and ("." in key) and key.replace(".", "_").isidentifier():
            flat[key] = parse_value(value)
    return _read(flat) if any(key.startswith(MEGATRON) for key in flat) else None


def is_block(data: Any) -> bool:
    """Whether parsed YAML holds a verl actor with a Megatron block."""
    actor = data.get("actor_rollout_ref") if isinstance(data, dict) else None
    actor = actor.get("actor") if isinstance(actor, dict) else None
    return isinstance(actor, dict) and isinstance(actor.get("megatron"), dict)


def read_block(data: dict[str, Any]) -> RunConfig | None:
    """The run configuration in a verl YAML; None when it has no Megatron block.

    Raises:
        InputError: values that cannot be a run.
    """
    return _read(_flat(data, "", 0)) if is_block(data) else None


def _flat(data: dict[str, Any], prefix: str, depth: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and depth < 8:
            out.update(_flat(value, path + ".", depth + 1))
        else:
            out[path] = value
    return out


def _read(flat: dict[str, Any]) -> RunConfig:
    fields: dict[str, Any] = {}
    unread: list[str] = []
    for key, value in flat.items():
        path = _bridge_path(key)
        if path:
            if value is not None:
                fields[path] = value
        elif key.startswith(MEGATRON) and key.removeprefix(MEGATRON) not in HARMLESS:
            unread.append(key)
    if all(isinstance(flat.get(name), int) for name in LENGTHS):
        fields["model.seq_length"] = sum(flat[name] for name in LENGTHS)
    run = run_from_fields(fields)
    notes = [*run.reader_notes, *([f"not read: {', '.join(sorted(unread))}"] if unread else [])]
    data = {**run.written(), "frontend": "megatron_lm", **_cluster(flat)}
    if flat.get(f"{MEGATRON}optimizer_offload"):
        notes.append("verl's optimizer_offload moves states to the host between phases, not during the step")
    return RunConfig.read({**data, **({"reader_notes": tuple(notes)} if notes else {})})


def _bridge_path(key: str) -> str | None:
    if key in DIRECT:
        return DIRECT[key]
    for prefix, section in OVERRIDES.items():
        if key.startswith(prefix):
            return section + key[len(prefix) :]
    name = key.removeprefix(MEGATRON)
    return by_name().get(name) if key.startswith(MEGATRON) and "." not in name else None


def _cluster(flat: dict[str, Any]) -> dict[str, Any]:
    nodes, per_node = flat.get("trainer.nnodes"), flat.get("trainer.n_gpus_per_node")
    if isinstance(nodes, int) and isinstance(per_node, int):
        return {"num_gpus": nodes * per_node, "gpus_per_node": per_node}
    return {}
