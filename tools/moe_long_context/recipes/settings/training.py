"""Settings of the optimizer, precision, batches, and the hooks that make a failure diagnosable."""

from __future__ import annotations

from moe_long_context.config.formats.migrations import migrate
from moe_long_context.config.formats.precision import MIXED_PRECISION
from moe_long_context.config.resolve import FP8_PRECISIONS, Run
from moe_long_context.recipes.environment import bridge_env
from moe_long_context.recipes.settings.setting import Setting

SNAPSHOT = "memory_snapshot.pickle"


def precision(run: Run) -> list[Setting]:
    """The released mixed-precision recipe, and the gradient type that it hands to the optimizer and DDP."""
    fp32_grads = run.grad_dtype == "fp32"
    out = [
        Setting("mixed_precision", MIXED_PRECISION[run.precision], "name in Bridge's mixed-precision registry"),
        Setting("mixed_precision.grad_reduce_in_fp32", fp32_grads, "Bridge copies it to ddp"),
        Setting("ddp.grad_reduce_in_fp32", fp32_grads),
    ]
    if run.precision in FP8_PRECISIONS:
        weights = run.fp8_primary_weights
        out.append(Setting("mixed_precision.fp8_param_gather", weights, "whether weights are kept in FP8"))
        if run.precision == "mxfp8":
            reuse = weights and not run.written.fsdp.enabled
            out.append(Setting("mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", reuse, "required with the former"))
    return out


def optimizer(run: Run) -> list[Setting]:
    """Optimizer, sharding, state types and host offload."""
    out = [
        Setting("optimizer.optimizer", run.optimizer),
        Setting("optimizer.use_distributed_optimizer", run.distributed_optimizer),
        Setting("ddp.use_distributed_optimizer", run.distributed_optimizer),
        Setting("optimizer.use_precision_aware_optimizer", run.precision_aware),
        Setting("optimizer.main_grads_dtype", run.grad_dtype),
        Setting("optimizer.exp_avg_dtype", run.moment_dtype),
        Setting("optimizer.exp_avg_sq_dtype", run.moment_dtype),
        Setting("optimizer.main_params_dtype", run.master_dtype),
        Setting("optimizer.optimizer_cpu_offload", run.cpu_offload),
        Setting("optimizer.optimizer_offload_fraction", run.cpu_offload_fraction),
    ]
    return out + _fsdp(run)


def _fsdp(run: Run) -> list[Setting]:
    fsdp = run.written.fsdp
    if not fsdp.enabled:
        return [
            Setting("ddp.use_megatron_fsdp", False),
            Setting("dist.use_megatron_fsdp", False),
            Setting("ddp.data_parallel_sharding_strategy", "no_shard"),
        ]
    return [
        Setting("ddp.use_megatron_fsdp", True),
        Setting("dist.use_megatron_fsdp", True),
        Setting("ddp.data_parallel_sharding_strategy", fsdp.sharding or "no_shard"),
        Setting("ddp.average_in_collective", False),
        Setting("checkpoint.ckpt_format", "fsdp_dtensor", "the only format Megatron-FSDP saves"),
    ]


def finetuning(run: Run) -> list[Setting]:
    """With CP, ranks whose tokens are all masked would turn the loss into NaN (Bridge 0.6.2 config.py)."""
    if run.sizes.cp == 1 or (run.written.peft.type == "none" and not run.written.data.packed):
        return []
    why = "fine-tuning and packed data under CP"
    return [
        Setting("model.calculate_per_token_loss", True, why),
        Setting("ddp.average_in_collective", False, why),
    ]


def batch(run: Run) -> list[Setting]:
    """Batch sizes; validation batches follow the training batch."""
    return [
        Setting("train.micro_batch_size", run.micro_batch_size),
        Setting("train.global_batch_size", run.global_batch_size, f"{run.num_microbatches} microbatches a step"),
        Setting("validation.eval_global_batch_size", None, "None = the training batch"),
        Setting("validation.eval_micro_batch_size", None),
    ]


def hooks(run: Run) -> list[Setting]:
    """Memory history and logging, so that an out-of-memory error leaves something to diagnose."""
    return [
        Setting("profiling.record_memory_history", True, "a snapshot is written when memory runs out"),
        Setting("profiling.memory_snapshot_path", SNAPSHOT),
        Setting("profiling.profile_ranks", heaviest_ranks(run), "first rank of each pipeline stage"),
        Setting("logger.log_throughput", True),
        Setting("logger.log_interval", 1),
        Setting("checkpoint.async_save", False),
        Setting("env_vars", {**bridge_env(run), **run.written.env}),
    ]


def heaviest_ranks(run: Run) -> list[int]:
    """The first global rank of each pipeline stage (stages are contiguous blocks of world / PP ranks)."""
    block = max(run.num_gpus // max(run.sizes.pp, 1), 1)
    return [stage * block for stage in range(run.sizes.pp) if stage * block < run.num_gpus]


def written_fields(run: Run) -> list[Setting]:
    """Any further Bridge field that the run configuration names; it wins over what was derived."""
    skip = ("cluster.", "moe_long_context.", "env_vars.")
    current, _ = migrate(dict(run.written.megatron))
    return [
        Setting(path, list(value) if isinstance(value, tuple) else value)
        for path, value in current.items()
        if not path.startswith(skip)
    ]
