"""Writes Megatron-LM flags for pretrain_gpt.py from the same settings as the Bridge recipes."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.formats.megatron_lm import PATHS, flag_table
from moe_long_context.config.formats.precision import REGISTRY
from moe_long_context.config.resolve import FP8_PRECISIONS, Run
from moe_long_context.recipes.settings import Setting, bridge_settings
from moe_long_context.recipes.settings.layout import emitted_layout
from moe_long_context.recipes.text import shell

DESTINATIONS = {path: dest for dest, path in PATHS.items()} | {
    "model.layernorm_epsilon": "layernorm_epsilon",
    "rerun_state_machine.check_for_nan_in_loss": "check_for_nan_in_loss_and_grad",
    "model.seq_length": "seq_length",
    "model.yarn_rotary_scaling_factor": "rotary_scaling_factor",
    "model.yarn_mscale": "mscale",
    "model.yarn_mscale_all_dim": "mscale_all_dim",
    "model.use_te_rng_tracker": "te_rng_tracker",
}
SKIPPED = frozenset({
    "dataset.seq_length", "env_vars", "mixed_precision", "mixed_precision.grad_reduce_in_fp32",
    "mixed_precision.fp8_param_gather", "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", "model.cuda_graph_scope",
    "rng.te_rng_tracker", "validation.eval_global_batch_size", "validation.eval_micro_batch_size",
    "ddp.grad_reduce_in_fp32", "dist.use_megatron_fsdp", "model.should_pad_vocab", "model.bias_activation_fusion",
    "model.activation_func", "model.gated_linear_unit", "model.share_embeddings_and_output_weights",
    "comm_overlap.batch_p2p_comm", "model.vocab_size", "model.use_te_rng_tracker", "model.attention_backend",
    "model.virtual_pipeline_model_parallel_size", "checkpoint.async_save",
    "ddp.data_parallel_sharding_strategy",
    "ddp.average_in_collective", "model.bias_dropout_fusion", "model.cross_entropy_fusion_impl",
})  # fmt: skip
ONLY_PRECISION_AWARE = ("optimizer.main_grads_dtype", "optimizer.exp_avg_dtype", "optimizer.exp_avg_sq_dtype",
                        "optimizer.main_params_dtype")  # fmt: skip
ACTIVATION_FLAGS = {
    ("silu", True): "swiglu",
    ("squared_relu", False): "squared-relu",
    ("quick_gelu", True): "quick-geglu",
}
CORE_YARN = Setting("model.original_max_position_embeddings", 4096)
LAYOUT_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
LEARNING_RATE = "3.0e-5"
TRAIN_ITERS = 1000
SAVE_INTERVAL = 500
Flag = tuple[str, list[str]]


def megatron_flags(run: Run) -> tuple[list[Flag], list[str]]:
    """Flags with their words in a readable order, and notes on settings that have no flag."""
    settings = bridge_settings(run, whole_model=True)
    flags: dict[str, list[str]] = {}
    notes: list[str] = []
    if run.fp8_primary_weights and _refused_with_offload(run):
        notes.append("Megatron-LM refuses FP8 parameters beside optimizer offload, so they stay in bf16")
    for setting in settings:
        if (
            setting.path in SKIPPED
            or setting == CORE_YARN
            or (setting.path in ONLY_PRECISION_AWARE and not run.precision_aware)
        ):
            continue
        found = flag_of(setting)
        if found is None and setting.value not in (None, False, []):
            notes.append(f"Megatron-LM has no flag for {setting.path}")
        elif found:
            flags.setdefault(found[0], found[1])
    flags.update((*_architecture(run), *_precision(run), *_layout(run), *_training(run)))
    return list(flags.items()), notes


def flag_of(setting: Setting) -> Flag | None:
    """The flag of one setting; None when the default already says it, or there is none."""
    name = setting.path.rpartition(".")[2]
    dest = DESTINATIONS.get(setting.path, name)
    value = setting.value
    for flag, (known, kind) in _by_destination().get(dest, {}).items():
        if kind in ("true", "false"):
            if isinstance(value, bool) and value == (kind == "true"):
                return flag, []
        elif value is not None and value != [] and not isinstance(value, bool):
            return flag, _words(known, value)
    return None


_INDEX: dict[str, dict[str, tuple[str, str]]] = {}


def _by_destination() -> dict[str, dict[str, tuple[str, str]]]:
    if not _INDEX:
        for flag, (dest, kind) in flag_table().items():
            _INDEX.setdefault(dest, {})[flag] = (dest, kind)
    return _INDEX


def _words(dest: str, value: Any) -> list[str]:
    if dest == "moe_layer_freq" and isinstance(value, list | tuple):
        return [layer_freq_text(value)]
    if dest == "pipeline_model_parallel_layout" and isinstance(value, list):
        return ["|".join("".join(LAYOUT_LETTERS[layer] for layer in stage) for stage in value)]
    if dest == "window_size":
        return [",".join(str(item) for item in value)]
    if dest == "rotary_base":
        return [str(int(value))]
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return [str(value)]


def layer_freq_text(value: list[int] | tuple[int, ...]) -> str:
    """[0, 0, 0, 1, 1] -> "([0]*3+[1]*2)", Megatron-LM's own notation."""
    runs: list[list[int]] = []
    for item in value:
        if runs and runs[-1][0] == item:
            runs[-1][1] += 1
        else:
            runs.append([int(item), 1])
    return "(" + "+".join(f"[{item}]*{count}" for item, count in runs) + ")"


def _architecture(run: Run) -> list[Flag]:
    a = run.arch
    out: list[Flag] = [("max-position-embeddings", [str(max(run.seq_length, a.max_position_embeddings or 0))])]
    if not a.share_embeddings_and_output_weights:
        out.append(("untie-embeddings-and-output-weights", []))
    if flag := ACTIVATION_FLAGS.get((a.activation_func, a.gated_linear_unit)):
        out.append((flag, []))
    if not a.multi_latent_attention and a.num_query_groups != a.num_attention_heads:
        out.append(("group-query-attention", []))
    out += [("tokenizer-type", ["NullTokenizer"]), ("vocab-size", [str(a.vocab_size)])]
    if run.written.vocab.divisible_by is None and run.padded_vocab_size == a.vocab_size:
        out.append(("make-vocab-size-divisible-by", ["1"]))
    if run.attention_backend != "auto":
        out.append(("attention-backend", [run.attention_backend]))
    return out


def _precision(run: Run) -> list[Flag]:
    registry = REGISTRY[run.precision]
    out: list[Flag] = [("bf16", [])]
    if run.precision in FP8_PRECISIONS:
        out += [("fp8-format", [registry["fp8"]]), ("fp8-recipe", [registry["fp8_recipe"]])]
        if run.fp8_primary_weights and not _refused_with_offload(run):
            out.append(("fp8-param-gather", []))
            if run.precision == "mxfp8":
                out.append(("reuse-grad-buf-for-mxfp8-param-ag", []))
    if run.precision == "nvfp4":
        out += [("fp4-format", ["e2m1"]), ("fp4-recipe", ["nvfp4"])]
    if run.grad_dtype == "fp32":
        out.append(("accumulate-allreduce-grads-in-fp32", []))
    else:
        out.append(("grad-reduce-in-bf16", []))
    return out


def _refused_with_offload(run: Run) -> bool:
    """Megatron-LM takes FP8 parameters beside optimizer offload only with delayed scaling (arguments.py)."""
    return run.cpu_offload and run.precision != "fp8_delayed"


def _layout(run: Run) -> list[Flag]:
    if emitted_layout(run) is None and run.sizes.vpp > 1:
        return [("num-virtual-stages-per-pipeline-rank", [str(run.sizes.vpp)])]
    return []


def _training(run: Run) -> list[Flag]:
    """What pretrain_gpt.py cannot start without; the person's own values go here."""
    out: list[Flag] = [
        ("lr", [LEARNING_RATE]), ("train-iters", [str(TRAIN_ITERS)]), ("eval-iters", ["0"]), ("mock-data", []),
        ("no-create-attention-mask-in-dataloader", []), ("ckpt-format", ["torch_dist"]),
        ("save-interval", [str(SAVE_INTERVAL)]),
    ]  # fmt: skip
    if run.written.fsdp.enabled:
        out += [
            ("ckpt-format", ["fsdp_dtensor"]),
            ("data-parallel-sharding-strategy", [run.written.fsdp.sharding or "no_shard"]),
        ]
    return out


def entry_point(run: Run) -> str:
    """The training program for this kind of model."""
    return "pretrain_hybrid.py" if run.arch.hybrid_layer_pattern else "pretrain_gpt.py"


def command_lines(run: Run, launcher: str) -> tuple[str, list[str]]:
    """The whole command over several lines, safe for the shell, and notes."""
    flags, notes = megatron_flags(run)
    lines = [f"{launcher} {entry_point(run)}"]
    lines += ["  " + " ".join([f"--{flag}", *(shell(word) for word in words)]) for flag, words in flags]
    lines += ['  --save "${CHECKPOINT_DIR:-checkpoints}"', '  --load "${CHECKPOINT_DIR:-checkpoints}"']
    return " \\\n".join(lines), notes
