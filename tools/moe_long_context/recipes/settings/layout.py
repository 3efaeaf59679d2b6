"""Settings of the parallel layout: mesh sizes, context parallelism, pipeline partition."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.errors import InvalidLayoutError
from moe_long_context.mesh.layout_string import write_layout
from moe_long_context.mesh.partition import partition
from moe_long_context.recipes.settings.setting import Setting


def parallel(run: Run) -> list[Setting]:
    """Mesh sizes and how context parallelism communicates."""
    s, c = run.sizes, run.written
    return [
        Setting("model.tensor_model_parallel_size", s.tp),
        Setting("model.sequence_parallel", run.sequence_parallel, "MoE with TP > 1 needs it" if s.tp > 1 else ""),
        Setting("model.context_parallel_size", s.cp, f"{run.tokens_per_cp_rank} tokens on each rank"),
        _comm_type(run),
        Setting("model.hierarchical_context_parallel_sizes", _listed(c.hierarchical_context_parallel_sizes)),
        Setting("model.expert_model_parallel_size", s.ep),
        Setting("model.expert_tensor_parallel_size", s.etp, "left out it would follow the front end's default"),
    ]


def pipeline(run: Run) -> list[Setting]:
    """Stages, and which layers each holds."""
    s, c = run.sizes, run.written
    return [
        Setting("model.pipeline_model_parallel_size", s.pp),
        Setting("model.virtual_pipeline_model_parallel_size", s.vpp if s.vpp > 1 else None),
        Setting("model.pipeline_model_parallel_layout", emitted_layout(run), "replaces the recipe's own layout"),
        Setting("model.num_layers_in_first_pipeline_stage", c.num_layers_in_first_pipeline_stage),
        Setting("model.num_layers_in_last_pipeline_stage", c.num_layers_in_last_pipeline_stage),
        Setting("model.account_for_embedding_in_pipeline_split", run.account_embedding),
        Setting("model.account_for_loss_in_pipeline_split", run.account_loss),
    ]  # fmt: skip


def emitted_layout(run: Run) -> str | list[list[str]] | None:
    """The written layout; where there is none and layers do not divide, the balanced one that the estimates assume."""
    written = run.written.pipeline_model_parallel_layout
    if written is not None:
        return written if isinstance(written, str) else [list(stage) for stage in written]
    try:
        partition(run.partition_request)
    except InvalidLayoutError:
        return _balanced(run)
    return None


def _balanced(run: Run) -> str | None:
    try:
        return write_layout(run.partition.stages)
    except InvalidLayoutError:
        return None


def _comm_type(run: Run) -> Setting:
    given = run.written.cp_comm_type
    if given is None and run.arch.experimental_attention_variant == "dsa":
        return Setting("model.cp_comm_type", "all_gather", "the only one that sparse attention (DSA) supports")
    return Setting("model.cp_comm_type", list(given) if isinstance(given, tuple) else run.cp_comm_type)


def _listed(value: tuple[int, ...] | None) -> list[int] | None:
    return None if value is None else list(value)
