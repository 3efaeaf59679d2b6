"""Optimizer states, CPU offload, low precision and FSDP."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import FP8_PRECISIONS, Run
from moe_long_context.rules.families.moe import core_before
from moe_long_context.rules.rule import rule

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 8192, "ep": 8, "gbs": 512, "dispatcher": "alltoall"}
OFF: dict[str, Any] = {**BASE, "optimizer": {"cpu_offload_fraction": 1.0, "precision_aware": True}}
CONFIG = "megatron-core 0.19.2 optimizer/optimizer_config.py __post_init__"
ARGS = "megatron-core 0.19.2 megatron/training/arguments.py validate_args"
TRANSFORMER = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
MIXED = "megatron-bridge 0.6.2 training/mixed_precision.py MixedPrecisionConfig.setup"
TE_MIN = {"fp8_tensorwise": (2, 2), "fp8_blockwise": (2, 3), "mxfp8": (2, 1), "nvfp4": (2, 7)}


@rule(
    "opt-offload-precision-aware", "warning", "optimizer offload without the precision-aware optimizer",
    why="The command line demands it. Bridge is silent, but then the fp32 masters stay on the GPU: 8 of 12 bytes leave (measured 15.2 GB on Qwen3-30B).",
    fix="set optimizer.precision_aware: true", where="command line", fields="optimizer.cpu_offload_fraction optimizer.precision_aware",
    source=f"{ARGS}; optimizer/distrib_optimizer.py; Bridge CPU-offload skill",
    fails={"optimizer": {"cpu_offload_fraction": 1.0}}, passes={"base": OFF}, repair=lambda run: {"optimizer": {"precision_aware": True}},
    effect="changes memory", escalates=lambda run: not run.bridge,
    correction="an error on the command line only; under Bridge it runs and keeps the masters on the GPU",
)  # fmt: skip
def _aware(run: Run) -> str | None:
    if not run.cpu_offload or run.precision_aware or (run.bridge and run.cpu_offload_fraction == 0):
        return None
    stays = "; 4 bytes per shard element stay on the GPU" if run.bridge else ""
    return f"optimizer_cpu_offload without use_precision_aware_optimizer{stays}"


@rule(
    "opt-offload-fraction-default", "warning", "optimizer offload is on but moves nothing",
    why="The fraction defaults to 0.0 in the config class (Bridge) and 1.0 on the command line.",
    fix="set optimizer.cpu_offload_fraction", where="silently", fields="optimizer.cpu_offload optimizer.cpu_offload_fraction", source=CONFIG,
    fails={"optimizer": {"cpu_offload": True}}, passes={"base": OFF}, repair=lambda run: {"optimizer": {"cpu_offload_fraction": 1.0}}, effect="changes memory",
)  # fmt: skip
def _fraction(run: Run) -> str | None:
    return "optimizer_cpu_offload with fraction 0.0 offloads nothing" if run.cpu_offload and run.cpu_offload_fraction == 0 else None


@rule(
    "opt-offload-dist-opt", "error", "optimizer offload without the distributed optimizer", why="The hybrid optimizer works on its shards.",
    fix="set optimizer.distributed: true", where="config", fields="optimizer.cpu_offload_fraction optimizer.distributed", source=ARGS,
    fails={"optimizer": {"cpu_offload_fraction": 1.0, "distributed": False}}, passes={"base": OFF},
    repair=lambda run: {"optimizer": {"distributed": True}}, effect="changes memory",
)  # fmt: skip
def _dist(run: Run) -> str | None:
    return "optimizer_cpu_offload without use_distributed_optimizer" if run.cpu_offload and not run.distributed_optimizer else None


@rule(
    "opt-offload-fp8-param", "error", "optimizer offload with FP8 parameters",
    why="Only the delayed recipe may gather FP8 parameters with it.", fix="set mixed_precision.fp8_param_gather False", where="config",
    fields="optimizer.cpu_offload_fraction mixed_precision.fp8_param_gather precision", source=CONFIG,
    fails={"base": OFF, "precision": "fp8_tensorwise"}, passes={"base": OFF, "precision": "fp8_blockwise"},
    repair=lambda run: {"megatron": {"mixed_precision.fp8_param_gather": False}}, effect="changes memory",
)  # fmt: skip
def _fp8_param(run: Run) -> str | None:
    bad = run.cpu_offload and run.fp8_primary_weights and run.precision in FP8_PRECISIONS and run.precision != "fp8_delayed"
    return f"optimizer_cpu_offload with fp8_param_gather under {run.precision}" if bad else None


@rule(
    "opt-offload-muon", "error", "optimizer offload with an emerging optimizer", why="Only Adam and SGD have a CPU form.",
    fix="use adam, or no offload", where="config", fields="optimizer.type optimizer.cpu_offload_fraction", source="megatron-core 0.19.2 optimizer/__init__.py",
    fails={"optimizer": {"type": "muon", "cpu_offload_fraction": 1.0, "precision_aware": False}}, passes={"base": OFF},
)  # fmt: skip
def _muon(run: Run) -> str | None:
    return f"optimizer_cpu_offload with {run.optimizer}" if run.cpu_offload and run.optimizer not in ("adam", "sgd") else None


@rule(
    "opt-offload-stale-masters", "warning", "loading weights under CPU offload can leave random masters",
    why="Core leaves CPU and fp32 copies at their initial values; Bridge syncs them after a load.",
    fix="load through Bridge, or sync the masters yourself", where="silently", fields="optimizer.cpu_offload_fraction checkpoint.pretrained_checkpoint",
    source="megatron-core 0.19.2 optimizer/cpu_offloading/hybrid_optimizer.py", frontends=("megatron_lm",),
    fails={"base": OFF, "frontend": "megatron_lm", "optimizer": {"cpu_offload_fraction": 1.0, "precision_aware": True, "distributed": True}}, passes={},
)  # fmt: skip
def _stale(run: Run) -> str | None:
    return "weights loaded under optimizer_cpu_offload do not reach the CPU masters" if run.cpu_offload_fraction > 0 else None


@rule(
    "opt-offload-cost", "warning", "optimizer offload costs step time and host memory", why="CPU Adam dominates; the overlap flag hides a part.",
    fix="offload only the fraction that is needed; set overlap_cpu_optimizer_d2h_h2d", where="silently", fields="optimizer.cpu_offload_fraction",
    source="Megatron Bridge CPU-offload skill: 0.996 s to 3.9 s per step on Qwen3-30B", fails={"base": OFF}, passes={},
)  # fmt: skip
def _cost(run: Run) -> str | None:
    return f"{run.cpu_offload_fraction:.0%} of the optimizer runs on the CPU, 16 bytes of host memory per element" if run.cpu_offload_fraction > 0 else None


@rule(
    "offload-optimizer-states-missing", "error", "offload_optimizer_states does not exist", why="It is advertised in a guide but is in no release.",
    fix="use optimizer.cpu_offload_fraction", where="config", fields="optimizer.offload_optimizer_states", source="megatron-bridge 0.6.2 docs/training/moe-optimization",
    fails={"megatron": {"optimizer.offload_optimizer_states": True}}, passes={},
)  # fmt: skip
def _missing(run: Run) -> str | None:
    on = run.written.megatron.get("optimizer.offload_optimizer_states")
    return "no released core has offload_optimizer_states" if on else None


@rule(
    "precision-aware-req", "error", "precision-aware states without what they need",
    why="Low-precision gradients, masters or moments need the precision-aware optimizer, which needs Adam and the distributed optimizer.",
    fix="set optimizer.precision_aware with adam and distributed", where="config", fields="optimizer.precision_aware optimizer.moment_dtype optimizer.type", source=CONFIG,
    fails={"optimizer": {"moment_dtype": "bf16"}}, passes={"optimizer": {"moment_dtype": "bf16", "precision_aware": True}},
    repair=lambda run: {"optimizer": {"precision_aware": True, "distributed": True}},
)  # fmt: skip
def _precision(run: Run) -> str | None:
    if run.precision_aware:
        if run.optimizer != "adam":
            return f"use_precision_aware_optimizer with {run.optimizer}"
        return None if run.distributed_optimizer else "use_precision_aware_optimizer without use_distributed_optimizer"
    low = [n for n, d in (("moment_dtype", run.moment_dtype), ("master_dtype", run.master_dtype)) if d != "fp32"]
    return f"{', '.join(low)} below fp32 without use_precision_aware_optimizer" if low else None


@rule(
    "dist-opt-memory", "warning", "expert optimizer states are not sharded", why="They shard over EDP; at EDP 1 every rank holds all 12 bytes.",
    fix="lower EP or PP to raise EDP, use bf16 moments, or offload the optimizer", where="silently", fields="expert_model_parallel_size optimizer.distributed",
    source="megatron-core 0.19.2 optimizer/distrib_optimizer.py", fails={"ep": 32}, passes={}, needs=("num_gpus",),
)  # fmt: skip
def _edp(run: Run) -> str | None:
    bad = run.arch.is_moe and run.sizes.edp == 1 and run.cpu_offload_fraction == 0
    return "EDP=1: the states of the experts are not sharded at all" if bad else None


@rule(
    "fp8-arch", "error", "precision that the GPU does not have", why="Delayed and tensorwise from Hopper, blockwise on Hopper (CUDA 12.9), mxfp8 and nvfp4 on Blackwell.",
    fix="use fp8_blockwise on Hopper and mxfp8 on Blackwell", where="first forward", fields="precision gpu", source="TransformerEngine pytorch/quantization.py",
    fails={"precision": "mxfp8"}, passes={"precision": "fp8_blockwise"}, needs=("gpu",),
)  # fmt: skip
def _arch(run: Run) -> str | None:
    need = {"mxfp8": 10, "nvfp4": 10}.get(run.precision, 9 if run.precision in FP8_PRECISIONS else 0)
    have = run.gpu.compute_capability
    return f"{run.precision} needs compute capability {need}, {run.gpu.id} has {have}" if 0 < have < need else None


@rule(
    "fp8-recipe-te-version", "error", "TransformerEngine is too old for the precision", why="Recipes arrived one by one.", fix="use a newer TransformerEngine",
    where="first forward", fields="precision versions.transformer_engine", source="megatron-core 0.19.2 fp8_utils.py get_fp8_recipe",
    fails={"precision": "fp8_blockwise", "versions": {"transformer_engine": "2.2.0"}}, passes={"precision": "fp8_blockwise"},
)  # fmt: skip
def _recipe_te(run: Run) -> str | None:
    need = TE_MIN.get(run.precision)
    given = run.written.versions.transformer_engine
    return f"{run.precision} needs TransformerEngine {need[0]}.{need[1]}, {given} is given" if need and given and run.te_version < need else None


@rule(
    "fp8-token-alignment", "error", "tokens of a rank do not meet the FP8 block", why="GEMM inputs need rows in multiples of 8 (16 for safety), 32 for mxfp8 and nvfp4.",
    fix="choose seq_length and CP*TP so that MBS*seq/(CP*TP) is a multiple of 32", where="first forward", fields="seq_length context_parallel_size precision",
    source="TransformerEngine pytorch/utils.py assert_dim_for_fp8_exec", fails={"precision": "fp8_blockwise", "seq_length": 8196}, passes={"precision": "fp8_blockwise"}, needs=("seq_length",),
)  # fmt: skip
def _tokens(run: Run) -> str | None:
    unit = {"bf16": 1, "mxfp8": 32, "nvfp4": 32}.get(run.precision, 8)
    tokens = run.tokens_per_cp_rank // (run.sizes.tp if run.sequence_parallel else 1)
    return f"{tokens} tokens per rank are not a multiple of {unit} for {run.precision}" if tokens % unit else None


@rule(
    "fp8-router-padding", "error", "router padding for quantization without quantization", why="It pads tokens per expert for FP8 and needs alltoall or flex.",
    fix="set an FP8 precision, or remove the padding", where="config", fields="model.moe_router_padding_for_quantization precision dispatcher", source=TRANSFORMER,
    fails={"megatron": {"model.moe_router_padding_for_quantization": True}}, passes={"precision": "fp8_blockwise", "megatron": {"model.moe_router_padding_for_quantization": True}},
)  # fmt: skip
def _router_padding(run: Run) -> str | None:
    m, renamed = run.written.megatron, not core_before(run, "0.16.1")
    on = m.get("model.moe_router_padding_for_fp8") or (renamed and m.get("model.moe_router_padding_for_quantization"))
    if not on:
        return None
    if run.precision == "bf16" and not (m.get("model.fp8") or m.get("model.fp4")):
        return "moe_router_padding_for_quantization without FP8 or FP4"
    return "moe_router_padding_for_quantization with the allgather dispatcher" if run.dispatcher == "allgather" else None


@rule(
    "fp8-expert-pad-multiple", "info", "tokens per expert are padded under quantization", why="16 for fp8, 32 for mxfp8, more for nvfp4: many small experts grow.",
    fix="expect it in memory when experts get few tokens", where="silently", fields="precision", source="megatron-core 0.19.2 transformer/moe/moe_utils.py",
    fails={"precision": "fp8_blockwise", "seq_length": 1024}, passes={}, needs=("seq_length", "model"),
)  # fmt: skip
def _pad(run: Run) -> str | None:
    if run.precision == "bf16" or not run.arch.num_moe_experts:
        return None
    per = run.tokens_per_cp_rank * run.arch.moe_router_topk / run.arch.num_moe_experts
    return f"about {per:.0f} tokens per expert and microbatch are padded" if per < 256 else None


@rule(
    "fp8-first-last-bf16", "error", "first and last layers in bf16 are miscounted", why="Counts lie within a stage, and delayed scaling excludes them.",
    fix="use counts of at most num_layers // PP, or another recipe", where="config", fields="model.first_last_layers_bf16 model.num_layers_at_start_in_bf16", source=TRANSFORMER,
    fails={"precision": "fp8_delayed", "megatron": {"model.first_last_layers_bf16": True}}, passes={"precision": "fp8_tensorwise", "megatron": {"model.first_last_layers_bf16": True}},
    needs=("model",),
)  # fmt: skip
def _ends(run: Run) -> str | None:
    m = run.written.megatron
    if not m.get("model.first_last_layers_bf16") or run.precision not in FP8_PRECISIONS:
        return None
    if run.precision == "fp8_delayed":
        return "first_last_layers_bf16 with delayed scaling"
    top = run.arch.num_layers // run.sizes.pp
    bad = [n for n in ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16") if not 0 <= int(m.get(f"model.{n}", 1)) <= top]
    return f"{', '.join(bad)} above {top} layers of a stage" if bad else None


@rule(
    "mxfp8-param-gather", "error", "mxfp8 parameter gather without reusing the gradient buffer",
    why="Bridge demands reuse_grad_buf_for_mxfp8_param_ag with it; core demands the reverse.", fix="set ddp.reuse_grad_buf_for_mxfp8_param_ag True",
    where="config", fields="ddp.reuse_grad_buf_for_mxfp8_param_ag mixed_precision.fp8_param_gather", source=MIXED,
    fails={"gpu": "GB200", "dispatcher": "hybridep", "precision": "mxfp8", "megatron": {"mixed_precision.fp8_param_gather": True, "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": False}},
    passes={"gpu": "GB200", "dispatcher": "hybridep", "precision": "mxfp8"},
    repair=lambda run: {"megatron": {"mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": True}},
)  # fmt: skip
def _mxfp8(run: Run) -> str | None:
    m = run.written.megatron
    off = any(m.get(f"{s}.reuse_grad_buf_for_mxfp8_param_ag") is False for s in ("mixed_precision", "ddp", "optimizer"))
    return "fp8_param_gather with mxfp8 and reuse_grad_buf_for_mxfp8_param_ag off" if run.precision == "mxfp8" and run.fp8_primary_weights and off else None


@rule(
    "fp8-param-gather-distopt", "warning", "FP8 parameter gather without a sharded optimizer", why="The gather is the sharded optimizer's.",
    fix="set optimizer.distributed: true", where="command line", fields="mixed_precision.fp8_param_gather optimizer.distributed", source=ARGS,
    fails={"precision": "fp8_tensorwise", "optimizer": {"distributed": False}, "megatron": {"mixed_precision.fp8_param_gather": True}},
    passes={"precision": "fp8_tensorwise"}, repair=lambda run: {"optimizer": {"distributed": True}}, effect="changes memory",
    escalates=lambda run: not run.bridge, correction="an error on the command line; Bridge checks nothing, and Muon shards layer by layer",
)  # fmt: skip
def _gather(run: Run) -> str | None:
    bad = run.fp8_primary_weights and not run.distributed_optimizer and not run.written.fsdp.enabled
    return "fp8_param_gather without use_distributed_optimizer" if bad and run.precision in FP8_PRECISIONS else None


@rule(
    "fp8-fp4-exclusive", "error", "FP8 and FP4 are both set", why="One recipe per run.", fix="set one precision", where="config", fields="precision model.fp8 model.fp4", source=TRANSFORMER,
    since="0.15.0", fails={"megatron": {"model.fp8": "e4m3", "model.fp4": "e2m1"}}, passes={},
)  # fmt: skip
def _both(run: Run) -> str | None:
    m = run.written.megatron
    fp8 = m.get("model.fp8") or run.precision in FP8_PRECISIONS
    fp4 = m.get("model.fp4") or run.precision == "nvfp4"
    return "fp8 and fp4 are both set" if fp8 and fp4 else None


@rule(
    "mixed-precision-clobbers", "warning", "mixed_precision overwrites what is set on model, optimizer or ddp",
    why="Bridge copies every shared field in setup; a value set beside it is lost.", fix="set it on mixed_precision", where="silently",
    fields="mixed_precision model.fp8_recipe ddp.grad_reduce_in_fp32", source=MIXED, frontends=("bridge",),
    fails={"megatron": {"ddp.grad_reduce_in_fp32": False}}, passes={"megatron": {"mixed_precision.grad_reduce_in_fp32": False}},
)  # fmt: skip
def _clobbers(run: Run) -> str | None:
    m = run.written.megatron
    names = ("model.fp8", "model.fp8_recipe", "ddp.grad_reduce_in_fp32", "ddp.fp8_param_gather", "model.fp8_param", "optimizer.fp8_recipe")
    lost = [n for n in names if n in m and f"mixed_precision.{n.split('.', 1)[1]}" not in m]
    return f"{', '.join(lost)} is overwritten by mixed_precision.setup()" if lost else None


@rule(
    "fsdp-ckpt-format", "error", "Megatron-FSDP and checkpoint format disagree", why="It saves and loads only fsdp_dtensor, and that format only it.",
    fix="set checkpoint.ckpt_format fsdp_dtensor", where="config", fields="fsdp.enabled checkpoint.ckpt_format", source="megatron-bridge 0.6.2 training/config.py",
    fails={"fsdp": {"enabled": True, "sharding": "optim_grads_params"}, "megatron": {"checkpoint.ckpt_format": "torch_dist"}},
    passes={"fsdp": {"enabled": True, "sharding": "optim_grads_params"}, "megatron": {"checkpoint.ckpt_format": "fsdp_dtensor"}},
    repair=lambda run: {"megatron": {"checkpoint.ckpt_format": "fsdp_dtensor" if run.written.fsdp.enabled else "torch_dist"}},
)  # fmt: skip
def _format(run: Run) -> str | None:
    given = run.written.megatron.get("checkpoint.ckpt_format")
    if given is None:
        return None
    return f"fsdp {run.written.fsdp.enabled} with ckpt_format {given}" if run.written.fsdp.enabled != (given == "fsdp_dtensor") else None


@rule(
    "fsdp-cdmc", "error", "Megatron-FSDP with CUDA_DEVICE_MAX_CONNECTIONS=1", why="It needs several queues; TP and CP on Hopper want one.",
    fix="unset it, or do not combine FSDP with TP/CP on Hopper", where="config", fields="fsdp.enabled env", source=ARGS,
    fails={"fsdp": {"enabled": True, "sharding": "optim_grads_params"}, "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, passes={},
)  # fmt: skip
def _cdmc(run: Run) -> str | None:
    return "Megatron-FSDP with CUDA_DEVICE_MAX_CONNECTIONS=1" if run.written.fsdp.enabled and run.written.env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1" else None


@rule(
    "fsdp-compat", "error", "Megatron-FSDP with what it excludes", why="No tp-pp-dp mapping, no hybrid CP, Adam or SGD only.",
    fix="remove the excluded feature", where="config", fields="fsdp.enabled optimizer.type dist.use_tp_pp_dp_mapping", source=ARGS,
    fails={"fsdp": {"enabled": True, "sharding": "optim_grads_params"}, "optimizer": {"type": "muon"}}, passes={},
)  # fmt: skip
def _compat(run: Run) -> str | None:
    if not run.written.fsdp.enabled:
        return None
    m = run.written.megatron
    bad = [("optimizer " + run.optimizer, run.optimizer not in ("adam", "sgd")), ("tp-pp-dp mapping", bool(m.get("dist.use_tp_pp_dp_mapping"))),
           ("hybrid CP", bool(m.get("model.hybrid_context_parallel")))]  # fmt: skip
    names = [n for n, hit in bad if hit]
    return f"Megatron-FSDP excludes {', '.join(names)}" if names else None


@rule(
    "fsdp-default-strategy", "warning", "Megatron-FSDP without a sharding strategy shards nothing in Bridge",
    why="data_parallel_sharding_strategy is no_shard in the config class and optim_grads_params on the command line.",
    fix="set fsdp.sharding optim_grads_params", where="silently", fields="fsdp.sharding", source="megatron-core 0.19.2 distributed/distributed_data_parallel_config.py",
    frontends=("bridge",), fails={"fsdp": {"enabled": True}}, passes={"fsdp": {"enabled": True, "sharding": "optim_grads_params"}},
    repair=lambda run: {"fsdp": {"sharding": "optim_grads_params"}}, effect="changes memory",
)  # fmt: skip
def _strategy(run: Run) -> str | None:
    return "fsdp.sharding is unset: no_shard" if run.written.fsdp.enabled and run.written.fsdp.sharding is None else None
