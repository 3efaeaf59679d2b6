"""Writes the Megatron block of reinforcement-learning frameworks: verl's YAML and slime's argument arrays."""

from __future__ import annotations

import json
from typing import Any

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.formats.megatron_lm import PATHS, flag_table
from moe_long_context.config.resolve import Run
from moe_long_context.recipes.megatron_lm import Flag, megatron_flags
from moe_long_context.recipes.settings import Setting, bridge_settings
from moe_long_context.recipes.slurm import nodes_of
from moe_long_context.recipes.text import shell

VERL_DIRECT = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size", "sequence_parallel",
)  # fmt: skip
VERL_SKIPPED = (
    "model.seq_length", "model.cuda_graph_scope", "model.should_pad_vocab", "model.use_te_rng_tracker",
    "model.share_embeddings_and_output_weights", "model.vocab_size",
)  # fmt: skip
OPTIMIZER_FLAGS = ("optimizer", "use-", "main-", "exp-avg", "lr", "accumulate", "grad-reduce", "overlap-")
OWNED_BY_SLIME = (
    "lr", "train-iters", "eval-iters", "mock-data", "tokenizer-type", "save-interval", "ckpt-format", "vocab-size",
    "micro-batch-size", "global-batch-size", "seq-length", "max-position-embeddings", "log-interval",
    "no-create-attention-mask-in-dataloader",
)  # fmt: skip
MODEL_FLAGS = ("swiglu", "squared-relu", "quick-geglu", "group-query-attention", "untie-embeddings-and-output-weights")


def hub_name(run: Run) -> str:
    """The model's name on the Hugging Face hub, or its id where the catalog has none."""
    from moe_long_context.catalog.loader import model_entry
    from moe_long_context.errors import UnknownNameError

    try:
        return model_entry(run.model_id).hf_name or run.model_id
    except UnknownNameError:
        return run.model_id


def verl_block(run: Run, headline: str) -> str:
    """`actor_rollout_ref` and `trainer` of a verl configuration, as YAML (strings quoted as JSON, a subset of YAML)."""
    nodes, per_node = nodes_of(run)
    settings = bridge_settings(run)
    megatron: dict[str, Any] = {s.path[6:]: s.value for s in settings if s.path[6:] in VERL_DIRECT}
    megatron |= {
        "use_mbridge": True,
        "use_distributed_optimizer": run.distributed_optimizer,
        "override_ddp_config": _section(settings, "ddp."),
        "override_transformer_config": _section(settings, "model."),
    }
    actor = {
        "ppo_micro_batch_size_per_gpu": run.micro_batch_size,
        "ppo_mini_batch_size": run.global_batch_size,
        "use_dynamic_bsz": run.written.data.packed,
        "ppo_max_token_len_per_gpu": run.tokens_per_cp_rank,
        "optim": {"override_optimizer_config": _section(settings, "optimizer.")},
        "megatron": megatron,
    }
    data = {
        "actor_rollout_ref": {"model": {"path": hub_name(run)}, "actor": actor},
        "trainer": {"nnodes": nodes, "n_gpus_per_node": per_node},
    }
    return "\n".join([f"# {headline}. Merge into verl's ppo_megatron_trainer.yaml.", *_yaml(data, 0)]) + "\n"


def _section(settings: list[Setting], prefix: str) -> dict[str, Any]:
    names = {s.path.removeprefix(prefix): s for s in settings if s.path.startswith(prefix)}
    return {
        name: s.value for name, s in names.items()
        if name not in VERL_DIRECT and s.path not in VERL_SKIPPED and s.value is not None
    }  # fmt: skip


def _yaml(data: dict[str, Any], depth: int) -> list[str]:
    lines: list[str] = []
    for key, value in data.items():
        if isinstance(value, dict) and value:
            lines += [f"{'  ' * depth}{key}:", *_yaml(value, depth + 1)]
        else:
            lines.append(f"{'  ' * depth}{key}: {json.dumps(value)}")
    return lines


def slime_script(run: Run, headline: str) -> tuple[str, list[str]]:
    """MODEL_ARGS, PERF_ARGS and OPTIMIZER_ARGS for slime's train.py, and notes."""
    flags, notes = megatron_flags(run)
    nodes, per_node = nodes_of(run)
    kept = [flag for flag in flags if flag[0] not in OWNED_BY_SLIME]
    optimizer = [flag for flag in kept if flag[0].startswith(OPTIMIZER_FLAGS)]
    model = [flag for flag in kept if flag not in optimizer and _is_model_flag(flag[0])]
    perf = [flag for flag in kept if flag not in optimizer and flag not in model]
    perf.append(("max-tokens-per-gpu", [str(run.tokens_per_cp_rank)]))
    lines = [
        "#!/usr/bin/env bash",
        f"# {headline}. Source it in a slime launch script.",
        *_array("MODEL_ARGS", model),
        *_array("PERF_ARGS", perf),
        *_array("OPTIMIZER_ARGS", optimizer),
        *_array("CLUSTER_ARGS", [
            ("actor-num-nodes", [str(nodes)]), ("actor-num-gpus-per-node", [str(per_node)]),
            ("hf-checkpoint", [hub_name(run)]), ("global-batch-size", [str(run.global_batch_size)]),
        ]),
        'python train.py "${MODEL_ARGS[@]}" "${PERF_ARGS[@]}" "${OPTIMIZER_ARGS[@]}" "${CLUSTER_ARGS[@]}" "$@"',
    ]  # fmt: skip
    return "\n".join(lines) + "\n", notes


def _is_model_flag(flag: str) -> bool:
    dest, _ = flag_table().get(flag, (flag.replace("-", "_"), ""))
    field = PATHS.get(dest, f"model.{dest}").removeprefix("model.")
    return flag in MODEL_FLAGS or field in Architecture.model_fields


def _array(name: str, flags: list[Flag]) -> list[str]:
    rows = ["   " + " ".join([f"--{flag}", *(shell(word) for word in words)]) for flag, words in flags]
    return [f"{name}=(", *rows, ")"]
