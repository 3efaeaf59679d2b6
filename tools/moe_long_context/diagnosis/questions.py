"""Which facts are missing for a surer answer, and how to get each."""

from __future__ import annotations

from collections.abc import Iterator

from moe_long_context.diagnosis.case import SIZE_FIELDS, Case
from moe_long_context.diagnosis.cause import Cause

HOW = {
    "model": "the catalog id, or the path of the model's Hugging Face config.json",
    "gpu": "nvidia-smi --query-gpu=name,memory.total --format=csv",
    "num_gpus": "the number of processes that the launcher started (WORLD_SIZE)",
    "seq_length": "model.seq_length of the configuration, or tokens per packed sequence",
    "tp": "model.tensor_model_parallel_size; Megatron prints it at start (using world size: ...)",
    "cp": "model.context_parallel_size; Megatron prints it at start (using world size: ...)",
    "pp": "model.pipeline_model_parallel_size; Megatron prints it at start (using world size: ...)",
    "ep": "model.expert_model_parallel_size in the printed arguments",
    "etp": "model.expert_tensor_parallel_size; unset means 1 in Megatron Bridge and TP in Megatron-LM",
    "recompute": "model.recompute_granularity and model.recompute_modules",
    "oom_location": "the traceback above the first out-of-memory line: its innermost megatron or TE frame",
    "allocated_vs_reserved": (
        "the whole out-of-memory message, or torch.cuda.memory_summary(): allocated by PyTorch against "
        "reserved but unallocated"
    ),
    "rollout_memory_share": "what the rollout engine keeps on the GPU while training (gpu_memory_utilization)",
    "expert_load_max_over_mean": "log tokens per expert and rank (moe_per_layer_logging); the largest over the mean",
    "first_failing_rank": "sort the logs of all ranks by time; the first error is the cause, the rest follow",
    "host_memory_per_node": "free -g, and the limit of the container or Slurm step",
    "versions_before_and_after": "container tags, and pip list of torch, transformer_engine, megatron-core and -bridge",
    "shortest_sample": "the shortest sequence of a packed batch, in tokens",
    "original_max_position_embeddings": "the rope scaling of the checkpoint's config.json, not the new length",
    "error_text": "the last 200 lines of the rank that failed first",
}  # fmt: skip


def missing_facts(case: Case, causes: list[Cause]) -> tuple[str, ...]:
    """Names of facts to ask for, the most useful first."""
    return tuple(
        dict.fromkeys(
            [*_run_facts(case), *_sizes(case, causes), *_memory_facts(case), *_cause_facts(causes), *_yarn(case)]
        )
    )


def _run_facts(case: Case) -> Iterator[str]:
    yield from (n for n in ("model", "gpu", "num_gpus", "seq_length") if n in case.run.missing)


def _sizes(case: Case, causes: list[Cause]) -> Iterator[str]:
    """Parallel sizes that are not given; a person who asks for a layout is not asked for one."""
    if causes[0].cause == "question_layout":
        return
    given = case.config.written()
    for short, name in SIZE_FIELDS.items():
        if name not in given and not case.one_gpu:
            yield short
    if case.config.expert_tensor_parallel_size is None and case.run.arch.is_moe and case.run.sizes.tp > 1:
        yield "etp"


def _memory_facts(case: Case) -> Iterator[str]:
    if not case.died_of_memory:
        return
    event = case.oom
    if (event is None or event.place is None) and case.snapshot is None:
        yield "oom_location"
    if case.config.recompute is None:
        yield "recompute"
    if (event is None or event.reserved_unallocated is None) and case.snapshot is None:
        yield "allocated_vs_reserved"
    if case.is_rl:
        yield "rollout_memory_share"


def _cause_facts(causes: list[Cause]) -> Iterator[str]:
    for cause in causes[:4]:
        yield from cause.missing
        if cause.cause == "expert_imbalance":
            yield "expert_load_max_over_mean"


def _yarn(case: Case) -> Iterator[str]:
    """YaRN needs the length of pre-training, which a run for longer sequences easily overwrites."""
    arch, told = case.run.arch, "yarn" in case.told.lower()
    written = "model.original_max_position_embeddings" in case.config.megatron
    yarn = case.knows_model and "yarn" in (arch.rope_type, arch.position_embedding_type)
    overwritten = written and arch.original_max_position_embeddings == case.run.seq_length
    beyond = case.run.seq_length > (arch.max_position_embeddings or case.run.seq_length)
    unknown = arch.original_max_position_embeddings is None and beyond
    if (told and not written) or (yarn and (unknown or overwritten)):
        yield "original_max_position_embeddings"
