"""Builds synthetic logs in the formats that PyTorch, Megatron and the operating system print.

Formats: pytorch c10/cuda/CUDACachingAllocator.cpp (1.13 to 2.9), megatron-core 0.19.2 training.py,
megatron-bridge 0.6.2 train_utils.py, Linux mm/oom_kill.c, ProcessGroupNCCL.cpp.
"""

from __future__ import annotations

CORE = "/opt/megatron-lm/megatron/core/"
FRAMES = {
    "loss": [
        (CORE + "pipeline_parallel/schedules.py", "forward_step"),
        (CORE + "models/gpt/gpt_model.py", "_postprocess"),
        (CORE + "models/common/language_module/language_module.py", "compute_language_model_loss"),
        (CORE + "tensor_parallel/cross_entropy.py", "forward"),
    ],
    "optimizer": [
        ("/opt/megatron-lm/megatron/training/training.py", "train_step"),
        (CORE + "optimizer/distrib_optimizer.py", "step_with_ready_grads"),
        ("/usr/local/lib/python3.12/dist-packages/transformer_engine/pytorch/optimizers/fused_adam.py", "step"),
    ],
    "copy_back": [
        ("/opt/megatron-lm/megatron/training/training.py", "train_step"),
        (CORE + "optimizer/distrib_optimizer.py", "_copy_main_params_to_model_params"),
    ],
    "experts": [
        (CORE + "transformer/moe/moe_layer.py", "forward"),
        (CORE + "transformer/moe/experts.py", "forward"),
        ("/usr/local/lib/python3.12/dist-packages/transformer_engine/pytorch/module/grouped_linear.py", "forward"),
    ],
    "attention": [
        (CORE + "transformer/transformer_layer.py", "_forward_attention"),
        (CORE + "transformer/attention.py", "forward"),
    ],
    "gdn": [
        (CORE + "transformer/transformer_layer.py", "_forward_attention"),
        (CORE + "ssm/gated_delta_net.py", "forward"),
    ],
    "mask": [
        ("/opt/megatron-lm/pretrain_gpt.py", "get_batch"),
        (CORE + "datasets/gpt_dataset.py", "_get_ltor_masks_and_position_ids"),
    ],
    "graph": [
        (CORE + "transformer/cuda_graphs.py", "create_cudagraphs"),
        ("/usr/local/lib/python3.12/dist-packages/transformer_engine/pytorch/graph.py", "make_graphed_callables"),
    ],
    "build": [
        ("/opt/megatron-lm/megatron/training/training.py", "get_model"),
        ("/usr/local/lib/python3.12/dist-packages/transformer_engine/pytorch/module/grouped_linear.py", "__init__"),
    ],
    "config": [
        ("/opt/megatron-lm/megatron/training/arguments.py", "core_transformer_config_from_args"),
        (CORE + "transformer/transformer_config.py", "__post_init__"),
    ],
    "load": [(CORE + "dist_checkpointing/dict_utils.py", "merge")],
}


def traceback(place: str, message: str, rank: int | None = 0) -> list[str]:
    """A Python traceback ending in `message`, with torchrun's rank label."""
    label = "" if rank is None else f"[rank{rank}]: "
    lines = [label + "Traceback (most recent call last):"]
    for number, (file, function) in enumerate(FRAMES[place], start=101):
        lines += [f'{label}  File "{file}", line {number}, in {function}', f"{label}    return step(batch)"]
    return [*lines, label + message]


def oom_text(
    requested: float, allocated: float, unused: float = 0.8, total: float = 79.11, version: str = "2.6",
    pools: float = 0.0, others: float = 0.0, outside: float = 2.5, gpu: int = 0,
) -> str:  # fmt: skip
    """The allocator's message, GiB, as a PyTorch release words it."""
    in_use = allocated + unused + outside
    free = max(total - in_use - others, 0.0)
    if version < "2.1":
        return (
            f"CUDA out of memory. Tried to allocate {requested:.2f} GiB (GPU {gpu}; {total:.2f} GiB total capacity; "
            f"{allocated:.2f} GiB already allocated; {free:.2f} GiB free; {allocated + unused:.2f} GiB reserved in "
            "total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid "
            "fragmentation."
        )
    word = "capacty" if version < "2.2" else "capacity"
    other = f"Process 4242 has {others:.2f} GiB memory in use. " if others else ""
    pool = f", with {pools:.2f} GiB allocated in private pools (e.g., CUDA Graphs)" if pools else ""
    return (
        f"CUDA out of memory. Tried to allocate {requested:.2f} GiB. GPU {gpu} has a total {word} of {total:.2f} "
        f"GiB of which {free:.2f} GiB is free. {other}Including non-PyTorch memory, this process has {in_use:.2f} GiB "
        f"memory in use. Of the allocated memory {allocated:.2f} GiB is allocated by PyTorch{pool}, and {unused:.2f} "
        "GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory "
        "Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def oom(place: str, requested: float, allocated: float, rank: int | None = 0, **more: float | str) -> list[str]:
    """A traceback that ends in a failed allocation."""
    version = str(more.get("version", "2.6"))
    kind = "torch.OutOfMemoryError" if version >= "2.5" else "torch.cuda.OutOfMemoryError"
    return traceback(place, f"{kind}: {oom_text(requested, allocated, **more)}", rank)  # type: ignore[arg-type]


def step(number: int, tflops: float = 210.0, grad_norm: float = 1.2, seconds: float = 30.0) -> str:
    """Megatron's line of one training step."""
    return (
        f" [2026-11-02 10:00:00.000000] iteration {number:8d}/    1000 | consumed samples: {number * 64:12d} | elapsed "
        f"time per iteration (ms): {seconds * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): {tflops:.1f} | learning "
        f"rate: 1.000000E-05 | global batch size:    64 | lm loss: 2.100000E+00 | loss scale: 1.0 | "
        f"grad norm: {grad_norm:.3f} | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def nccl_timeout(rank: int = 5, operation: str = "ALLTOALL_BASE") -> str:
    """The watchdog's message."""
    return (
        f"[rank{rank}]:[E1102 10:00:00.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum=9041, OpType={operation}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran "
        "for 600014 milliseconds before timing out."
    )


def host_oom(gib: int = 102) -> list[str]:
    """What the kernel and Slurm write when host memory is full."""
    kib = gib * 1024 * 1024
    return [
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task=python3,pid=31337,uid=1000",
        f"Memory cgroup out of memory: Killed process 31337 (python3) total-vm:{kib * 2}kB, anon-rss:{kib}kB",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.",
    ]
