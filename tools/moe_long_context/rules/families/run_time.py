"""Memory traps, multi-token prediction, checkpoints and environment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.families.moe import core_before
from moe_long_context.rules.rule import rule
from moe_long_context.units import GIB, gib

if TYPE_CHECKING:
    from moe_long_context.memory.states import StateBytes

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 32768, "cp": 4, "ep": 8, "gbs": 64, "dispatcher": "alltoall"}
DSV3: dict[str, Any] = {**BASE, "model": "deepseek-v3", "num_gpus": 256, "ep": 32}
ARGS = "megatron-core 0.19.2 megatron/training/arguments.py validate_args"
ALLOC = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def _expandable(run: Run) -> bool:
    return any("expandable_segments:true" in run.written.env.get(name, "").lower() for name in ALLOC)


@rule(
    "logits-memory", "warning", "logits and loss take a large share of the last stage", why="MBS*seq/CP tokens x vocab/TP, several copies, again for each MTP depth.",
    fix="raise CP or TP, use a linear-fused or chunked loss", where="first forward", fields="loss context_parallel_size tensor_model_parallel_size",
    source="megatron-core 0.19.2 tensor_parallel/cross_entropy.py", fails={"cp": 1, "loss": "eager"}, passes={"cp": 8, "loss": "linear_fused"}, needs=("model", "seq_length", "gpu"),
)  # fmt: skip
def _logits(run: Run) -> str | None:
    from moe_long_context.memory.loss import loss_bytes

    loss = loss_bytes(run)
    share = loss.peak / run.gpu.memory_bytes
    return f"{gib(loss.peak):.1f} GiB of logits and loss ({loss.impl}), {share:.0%} of the GPU" if share > 0.08 else None


@rule(
    "fused-ce-is-not-a-memory-fix", "info", "fused cross-entropy does not save memory", why="The native fusion needs about 10 bytes per logit, the eager loss 6.",
    fix="use loss linear_fused or chunked for memory", where="silently", fields="loss model.cross_entropy_fusion_impl",
    source="NovaSky-AI/SkyRL pull 1841: fused takes 1.66 times the eager loss", fails={"cp": 1, "loss": "fused", "megatron": {"model.cross_entropy_fusion_impl": "native"}},
    passes={"loss": "linear_fused"}, needs=("seq_length",),
)  # fmt: skip
def _fused(run: Run) -> str | None:
    native = run.written.loss == "fused" and run.cross_entropy_fusion_impl == "native"
    return "native fused cross-entropy takes more memory than the eager loss" if native and run.tokens_per_cp_rank >= 16384 else None


@rule(
    "ce-fusion-te", "error", "TE cross-entropy on the command line", why="0.19 refuses it there for instability; core only warns.", fix="use the native fusion, or loss eager",
    where="command line", fields="model.cross_entropy_fusion_impl loss", source=ARGS, frontends=("megatron_lm",), since="0.19.2",
    fails={"frontend": "megatron_lm", "loss": "fused", "megatron": {"model.cross_entropy_fusion_impl": "te"}}, passes={"frontend": "megatron_lm", "loss": "fused"},
)  # fmt: skip
def _te_loss(run: Run) -> str | None:
    return "cross_entropy_fusion_impl te is refused by the 0.19 command line" if run.loss == "fused" and run.cross_entropy_fusion_impl == "te" else None


@rule(
    "mtp-memory", "warning", "each MTP depth adds a layer and its own logits", why="They stand on the stage that holds the loss.", fix="give that stage fewer decoder layers, or drop MTP",
    where="silently", fields="mtp_num_layers pipeline_model_parallel_layout", source="megatron-core 0.19.2 transformer/multi_token_prediction.py",
    fails={"base": DSV3}, passes={}, needs=("model", "seq_length"),
)  # fmt: skip
def _mtp(run: Run) -> str | None:
    return f"{run.mtp} MTP depth(s) at {run.seq_length} tokens: {run.mtp} more layer(s) and logits on the last stage" if run.mtp and run.seq_length >= 16384 else None


@rule(
    "mtp-packing-cp", "error", "MTP mixes packed neighbours on old cores", why="Label rolling learned packing and CP in 0.16.", fix="use core 0.16 or newer", where="silently",
    fields="mtp_num_layers data.packed", source="megatron-core 0.19.2 transformer/multi_token_prediction.py roll_tensor", until="0.15.0",
    correction="an error, not a note: it trains other targets than asked",
    fails={"base": DSV3, "data": {"packed": True}, "versions": {"megatron_core": "0.15.0"}}, passes={"versions": {"megatron_core": "0.15.0"}}, needs=("model",),
)  # fmt: skip
def _mtp_packing(run: Run) -> str | None:
    return "MTP with packed data before core 0.16" if run.mtp and run.written.data.packed else None


@rule(
    "mtp-position-embedding", "error", "MTP with another position embedding", why="The command line accepts rope or none.", fix="use rope", where="command line",
    fields="mtp_num_layers model.position_embedding_type", source=ARGS, frontends=("megatron_lm",),
    fails={"base": DSV3, "frontend": "megatron_lm", "position_embedding_type": "learned_absolute"}, passes={"base": DSV3, "frontend": "megatron_lm"}, needs=("model",),
)  # fmt: skip
def _mtp_position(run: Run) -> str | None:
    kind = run.arch.position_embedding_type
    return f"MTP with position embedding {kind}" if run.mtp and kind not in ("rope", "none") else None


@rule(
    "dropless-imbalance", "warning", "dropless experts size their buffers by what is routed", why="Early in training a rank can get 1.3 to 3 times the mean.",
    fix="leave headroom: see stress_peak_gib of `memory`, or set a capacity factor", where="first forward", fields="moe.token_imbalance moe.capacity_factor",
    source="public reports; Megatron-Core MoE guide", fails={}, passes={"moe": {"capacity_factor": 1.0, "pad_to_capacity": True}}, needs=("model", "seq_length"),
)  # fmt: skip
def _dropless(run: Run) -> str | None:
    plain = run.arch.is_moe and run.written.moe.capacity_factor is None and run.written.moe.token_imbalance == 1.0
    return "dropless MoE: the fullest rank decides the peak" if plain and run.seq_length >= 4096 else None


@rule(
    "ckpt-reshard", "warning", "optimizer states reshard over DP only", why="Weights of torch_dist reshard over TP, PP, EP and CP; optimizer states by default do not.",
    fix="set dist_ckpt_optim_fully_reshardable before you change the layout", where="first forward", fields="checkpoint.load checkpoint.dist_ckpt_optim_fully_reshardable",
    source="megatron-core 0.19.2 optimizer/distrib_optimizer.py", since="0.15.0", fails={"megatron": {"checkpoint.load": "ckpt", "checkpoint.load_optim": True}}, passes={},
)  # fmt: skip
def _reshard(run: Run) -> str | None:
    m = run.written.megatron
    given = m.get("checkpoint.dist_ckpt_optim_fully_reshardable")
    bad = given is False or (m.get("checkpoint.load") and m.get("checkpoint.load_optim") and not given)
    return "a resumed optimizer must keep TP, PP and EP" if bad else None


@rule(
    "ckpt-context-extension", "warning", "resuming at another sequence length", why="Consumed samples, learning-rate steps and dataset indices were built for the old length.",
    fix="start a new schedule from the weights (finetune), with a rebuilt index", where="silently", fields="checkpoint.load seq_length checkpoint.finetune",
    source="megatron-core 0.19.2 megatron/training/checkpointing.py", fails={"megatron": {"checkpoint.load": "ckpt"}}, passes={"megatron": {"checkpoint.load": "ckpt", "checkpoint.finetune": True}},
    needs=("seq_length",),
)  # fmt: skip
def _extension(run: Run) -> str | None:
    m = run.written.megatron
    return f"resuming at {run.seq_length} tokens: schedules count samples" if m.get("checkpoint.load") and not m.get("checkpoint.finetune") and run.seq_length >= 32768 else None


@rule(
    "ckpt-async-worker", "error", "asynchronous save without its conditions", why="It needs torch_dist or fsdp_dtensor, a save path and the persistent worker.",
    fix="set checkpoint.ckpt_format torch_dist and use_persistent_ckpt_worker", where="config", fields="checkpoint.async_save", source="megatron-bridge 0.6.2 training/config.py CheckpointConfig",
    frontends=("bridge",), fails={"megatron": {"checkpoint.async_save": True, "checkpoint.ckpt_format": "torch"}},
    passes={"megatron": {"checkpoint.async_save": True, "checkpoint.save": "out", "checkpoint.ckpt_format": "torch_dist"}},
)  # fmt: skip
def _async(run: Run) -> str | None:
    m = run.written.megatron
    if not m.get("checkpoint.async_save"):
        return None
    if m.get("checkpoint.ckpt_format", "torch_dist") not in ("torch_dist", "fsdp_dtensor"):
        return f"async_save with ckpt_format {m['checkpoint.ckpt_format']}"
    return "async_save without use_persistent_ckpt_worker" if m.get("checkpoint.use_persistent_ckpt_worker") is False else None


@rule(
    "cdmc-tp-cp", "warning", "CUDA_DEVICE_MAX_CONNECTIONS is not 1 with TP or CP", why="Before Blackwell the command line insists, so that communication is queued before compute.",
    fix="export CUDA_DEVICE_MAX_CONNECTIONS=1", where="command line", fields="env tensor_model_parallel_size context_parallel_size", source=ARGS, frontends=("megatron_lm",),
    fails={"frontend": "megatron_lm"}, passes={"frontend": "megatron_lm", "env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, needs=("gpu",),
    repair=lambda run: {"env": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}, escalates=lambda run: bool(run.written.env),
    correction="an error where the environment is given and lacks it; where no environment is given, a reminder",
)  # fmt: skip
def _connections(run: Run) -> str | None:
    s = run.sizes
    exempt = run.written.fsdp.enabled or run.written.overlap.ep_a2a or run.gpu.compute_capability >= 10
    if exempt or (s.tp == 1 and s.cp == 1) or run.written.env.get("CUDA_DEVICE_MAX_CONNECTIONS") == "1":
        return None
    return f"TP={s.tp}, CP={s.cp} on {run.gpu.id} without CUDA_DEVICE_MAX_CONNECTIONS=1"


@rule(
    "expandable-segments-nccl-ub", "error", "user buffers with expandable segments", why="Registered buffers need torch 2.11.", fix="drop one of them, or use torch 2.11",
    where="config", fields="ddp.nccl_ub env versions.torch", source="megatron-core 0.19.2 distributed/distributed_data_parallel_config.py",
    fails={"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "megatron": {"ddp.nccl_ub": True}}, passes={"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}},
)  # fmt: skip
def _user_buffers(run: Run) -> str | None:
    torch = run.written.versions.torch or "0"
    new = tuple(int(p) for p in torch.split(".")[:2] if p.isdigit()) >= (2, 11) and not core_before(run, "0.18.0")
    return "ddp.nccl_ub with expandable_segments:True" if run.written.megatron.get("ddp.nccl_ub") and _expandable(run) and not new else None


@rule(
    "expandable-segments-recommended", "info", "expandable segments are not set", why="Dropless MoE at long sequence fragments the allocator; Bridge's common environment sets them.",
    fix="set env PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (with graphs also NCCL_GRAPH_REGISTER=0)", where="silently", fields="env",
    source="megatron-bridge 0.6.2 recipes common environment", fails={}, passes={"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}, needs=("seq_length",), frontends=("megatron_lm", "bridge"),
)  # fmt: skip
def _recommended(run: Run) -> str | None:
    return "long dropless MoE without expandable_segments:True" if run.arch.is_moe and run.seq_length >= 32768 and not _expandable(run) else None


@rule(
    "env-precedence", "info", "exported values win over the recipe's", why="Bridge applies its env_vars with setdefault.", fix="unset stale exports in the job script", where="silently",
    fields="env", source="megatron-bridge 0.6.2 training/config.py env_vars", frontends=("bridge",), fails={"megatron": {"env_vars.NCCL_DEBUG": "INFO"}}, passes={},
)  # fmt: skip
def _precedence(run: Run) -> str | None:
    return "env_vars of the configuration lose against the shell's" if any(p.startswith("env_vars.") for p in run.written.megatron) else None


@rule(
    "nvte-mismatch", "error", "environment and configuration disagree", why="TransformerEngine compares NVTE_APPLY_QK_LAYER_SCALING and determinism with the config.",
    fix="make them agree", where="model build", fields="env model.deterministic_mode model.apply_query_key_layer_scaling", source="megatron-core 0.19.2 extensions/transformer_engine.py",
    fails={"env": {"NVTE_APPLY_QK_LAYER_SCALING": "1"}}, passes={},
)  # fmt: skip
def _nvte(run: Run) -> str | None:
    m, env = run.written.megatron, run.written.env
    scaled = bool(m.get("model.apply_query_key_layer_scaling"))
    if (env.get("NVTE_APPLY_QK_LAYER_SCALING") == "1") != scaled and ("NVTE_APPLY_QK_LAYER_SCALING" in env or scaled):
        return f"NVTE_APPLY_QK_LAYER_SCALING={env.get('NVTE_APPLY_QK_LAYER_SCALING', 'unset')} with apply_query_key_layer_scaling={scaled}"
    loose = m.get("model.deterministic_mode") and env.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO") != "0"
    return "deterministic_mode without NVTE_ALLOW_NONDETERMINISTIC_ALGO=0" if loose else None


@rule(
    "timeout-first-step", "warning", "ten minutes may not cover the first step of a large job", why="Index building, kernel compilation and checkpoint loading count.",
    fix="raise dist.distributed_timeout_minutes", where="launch", fields="dist.distributed_timeout_minutes", source="megatron-core 0.19.2 megatron/training/config",
    fails={"num_gpus": 512, "base": DSV3}, passes={"megatron": {"dist.distributed_timeout_minutes": 60}}, needs=("num_gpus",),
)  # fmt: skip
def _timeout(run: Run) -> str | None:
    given = run.written.megatron.get("dist.distributed_timeout_minutes", 10)
    return f"{run.num_gpus} GPUs with a {given}-minute timeout" if run.num_gpus >= 512 and isinstance(given, int | float) and given <= 10 else None


@rule(
    "dynamic-cp-absent", "info", "dynamic context parallelism is in no release", why="Bridge refers to it as optional.", fix="use hybrid_context_parallel", where="config",
    fields="model.dynamic_context_parallel", source="megatron-core 0.14 to 0.19.2", fails={"megatron": {"model.dynamic_context_parallel": True}}, passes={},
)  # fmt: skip
def _dynamic(run: Run) -> str | None:
    return "no released core has dynamic_context_parallel" if run.written.megatron.get("model.dynamic_context_parallel") else None


@rule(
    "python-version", "info", "the releases need Python 3.12", why="megatron-core 0.19.2 says 3.12 or newer, megatron-bridge 0.6.2 below 3.13, and neither pins the other.",
    fix="use the NeMo container, or Python 3.12", where="launch", fields="versions.megatron_core", source="megatron-core 0.19.2 and megatron-bridge 0.6.2 metadata",
    fails={"versions": {"megatron_core": "0.19.2"}}, passes={}, correction="a note: a configuration does not say which Python runs it",
)  # fmt: skip
def _python(run: Run) -> str | None:
    return "core 0.19.2 and Bridge 0.6.2 want Python 3.12" if run.written.versions.megatron_core else None


def _stage_states(run: Run) -> list[StateBytes]:
    from moe_long_context.memory.parameters import stage_parameters
    from moe_long_context.memory.peft import adapter_parameters
    from moe_long_context.memory.states import stage_states

    stages = stage_parameters(run)
    return [stage_states(run, s, adapter_parameters(run, run.partition.of_rank(r))) for r, s in enumerate(stages)]


def _weights_alone(run: Run) -> bool:
    """Whether the weights by themselves do not fit; FSDP may shard them further than is written."""
    return not run.written.fsdp.enabled and max(s.weights for s in _stage_states(run)) > run.gpu.memory_bytes


@rule(
    "weights-exceed-memory", "warning", "weights, gradients and states exceed the GPU before any activation",
    why="No recompute or context parallelism can help: they shard over PP, EP, ETP and TP only. An error where the weights alone exceed it.",
    fix="raise PP, EP or TP, use more GPUs, bf16 gradients and moments, or offload the optimizer", where="model build",
    fields="pipeline_model_parallel_size expert_model_parallel_size optimizer.cpu_offload_fraction", source="this package: memory.states (counts checked against real Megatron-Core)",
    fails={"base": DSV3, "num_gpus": 8, "ep": 8, "cp": 1}, passes={"base": DSV3, "pp": 8, "cp": 32, "layout": "Et|(tt|)*30mL", "optimizer": {"cpu_offload_fraction": 1.0, "precision_aware": True}},
    needs=("model", "gpu", "num_gpus"), escalates=_weights_alone,
)  # fmt: skip
def _weights(run: Run) -> str | None:
    if not (run.sizes.fits_attention and run.sizes.fits_expert):
        return None
    worst = max(_stage_states(run), key=lambda s: s.total)
    if worst.total <= run.gpu.memory_bytes:
        return None
    return f"{worst.total / GIB:.1f} GiB of states, {worst.weights / GIB:.1f} of them weights, on a {run.gpu.memory_gib:.0f} GiB GPU"
