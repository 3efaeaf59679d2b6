"""Fields of Bridge's ConfigContainer, in any release's spelling, as a run configuration. Shared by all readers."""

from __future__ import annotations

from typing import Any

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.formats.migrations import migrate, migration_note
from moe_long_context.config.formats.model_identity import identify
from moe_long_context.config.formats.precision import read_precision
from moe_long_context.config.framework_fields import by_path
from moe_long_context.config.run_config import RunConfig

RENAMED = {
    "train.micro_batch_size": "micro_batch_size",
    "train.global_batch_size": "global_batch_size",
    "dataset.seq_length": "seq_length",
    "dataset.sequence_length": "seq_length",
    "model.seq_length": "seq_length",
    "optimizer.optimizer": "optimizer.type",
    "ddp.use_distributed_optimizer": "optimizer.distributed",
    "optimizer.use_distributed_optimizer": "optimizer.distributed",
    "optimizer.use_precision_aware_optimizer": "optimizer.precision_aware",
    "optimizer.main_grads_dtype": "optimizer.grad_dtype",
    "optimizer.exp_avg_dtype": "optimizer.moment_dtype",
    "optimizer.main_params_dtype": "optimizer.master_dtype",
    "optimizer.optimizer_cpu_offload": "optimizer.cpu_offload",
    "optimizer.optimizer_offload_fraction": "optimizer.cpu_offload_fraction",
    "model.overlap_moe_expert_parallel_comm": "overlap.ep_a2a",
    "comm_overlap.overlap_moe_expert_parallel_comm": "overlap.ep_a2a",
    "model.delay_wgrad_compute": "overlap.delay_wgrad",
    "ddp.delay_wgrad_compute": "overlap.delay_wgrad",
    "comm_overlap.delay_wgrad_compute": "overlap.delay_wgrad",
    "ddp.overlap_grad_reduce": "overlap.grad_reduce",
    "comm_overlap.overlap_grad_reduce": "overlap.grad_reduce",
    "ddp.overlap_param_gather": "overlap.param_gather",
    "optimizer.overlap_param_gather": "overlap.param_gather",
    "comm_overlap.overlap_param_gather": "overlap.param_gather",
    "model.tp_comm_overlap": "overlap.tp_comm",
    "comm_overlap.tp_comm_overlap": "overlap.tp_comm",
    "model.overlap_p2p_comm": "overlap.p2p",
    "comm_overlap.overlap_p2p_comm": "overlap.p2p",
    "ddp.data_parallel_sharding_strategy": "fsdp.sharding",
    "ddp.use_megatron_fsdp": "fsdp.enabled",
    "dist.use_megatron_fsdp": "fsdp.enabled",
    "dataset.inter_document_masking": "data.packed",
    "dataset.enable_offline_packing": "data.packed",
    "dataset.enable_in_batch_packing": "data.packed",
}
ONLY_WHEN_TRUE = ("fsdp.enabled", "data.packed")
DERIVED = frozenset({
    "model.cuda_graph_scope", "model.use_te_rng_tracker", "rng.te_rng_tracker", "model.variable_seq_lengths",
    "comm_overlap.batch_p2p_comm", "model.batch_p2p_comm", "comm_overlap.data_parallel_size", "model.bf16",
    "optimizer.bf16", "model.params_dtype", "optimizer.params_dtype", "model.pipeline_dtype", "model.autocast_dtype",
    "optimizer.exp_avg_sq_dtype", "model.moe_enable_deepep", "tokenizer.tensor_model_parallel_size",
    "dataset.data_parallel_size", "dataset.context_parallel_size",
    "model.fp8", "model.fp8_recipe", "model.fp4", "optimizer.fp8_recipe", "ddp.grad_reduce_in_fp32",
    "ddp.fp8_param_gather", "ddp.fp4_param_gather", "model.fp8_param", "model.fp4_param",
})  # fmt: skip
KEPT_AT_DEFAULT = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
                   "expert_model_parallel_size", "expert_tensor_parallel_size")  # fmt: skip


def run_from_fields(written: dict[str, Any], model: Any = None) -> RunConfig:
    """A run configuration from Bridge fields by dotted path.

    `model` is the catalog id when the form names one; otherwise the model is recognised by its shape.

    Raises:
        InputError: values that cannot be a run.
    """
    fields, done = migrate(written)
    notes = [migration_note(m) for m in done]
    out: dict[str, Any] = {}
    shape = _take_shape(fields)
    out.update(identify(shape, model or fields.pop("model.hf_model_id", None), notes))
    out.update(_dispatcher(fields))
    out.update(read_precision(fields))
    out.update(_loss(fields))
    out.update(_offload(fields))
    if fields.get("model.recompute_granularity") != "selective":
        fields.pop("model.recompute_modules", None)
    out.update(_peft(fields, notes))
    out.update(_environment(fields))
    _plain(fields, out, notes)
    return RunConfig.read({**out, **({"reader_notes": tuple(notes[:256])} if notes else {})})


def _take_shape(fields: dict[str, Any]) -> dict[str, Any]:
    names = [n for n in Architecture.model_fields if n not in ("mtp_num_layers", "max_position_embeddings")]
    return {name: fields.pop(f"model.{name}") for name in names if f"model.{name}" in fields}


def _dispatcher(fields: dict[str, Any]) -> dict[str, Any]:
    kind = fields.pop("model.moe_token_dispatcher_type", None)
    backend = fields.pop("model.moe_flex_dispatcher_backend", None)
    if kind is None:
        return {}
    return {"dispatcher": (backend or "deepep") if kind == "flex" else kind}


def _loss(fields: dict[str, Any]) -> dict[str, Any]:
    fused = fields.pop("model.cross_entropy_loss_fusion", None)
    implementation = fields.pop("model.cross_entropy_fusion_impl", None)
    out: dict[str, Any] = {} if fused is None else {"loss": "fused" if fused else "eager"}
    if fused and implementation == "te":
        out["megatron.model.cross_entropy_fusion_impl"] = "te"
    return out


def _offload(fields: dict[str, Any]) -> dict[str, Any]:
    on = fields.pop("model.fine_grained_activation_offloading", None)
    modules = fields.pop("model.offload_modules", None)
    return {"activation_offload.modules": modules} if modules and on is not False else {}


def _peft(fields: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    peft = {path[5:]: fields.pop(path) for path in list(fields) if path.startswith("peft.")}
    kind = str(peft.pop("_target_", "") or fields.pop("peft", None) or "").rsplit(".", 1)[-1].lower()
    if kind not in ("lora", "dora"):
        if kind not in ("", "none"):
            notes.append(f"peft {kind} is not modelled")
        return {}
    out: dict[str, Any] = {"peft.type": kind}
    if peft.get("dim"):
        out["peft.rank"] = peft["dim"]
    if peft.get("target_modules"):
        out["peft.target_modules"] = peft["target_modules"]
    return out


def _environment(fields: dict[str, Any]) -> dict[str, Any]:
    given = fields.pop("env_vars", None)
    env = dict(given) if isinstance(given, dict) else {}
    env.update({path[9:]: fields.pop(path) for path in list(fields) if path.startswith("env_vars.")})
    return {"env": {str(k): v for k, v in env.items()}} if env else {}


def _plain(fields: dict[str, Any], out: dict[str, Any], notes: list[str]) -> None:
    """Everything else: renamed, or kept by its path where it differs from the released default."""
    known = by_path()
    unread: list[str] = []
    for path, value in fields.items():
        if path in DERIVED:
            continue
        if isinstance(value, dict | set) or _nested(value):
            unread.append(path)
        elif path in RENAMED:
            _renamed(out, RENAMED[path], value)
        elif path not in known:
            unread.append(path)
        elif value != known[path].default or path.rpartition(".")[2] in KEPT_AT_DEFAULT:
            out[path] = value
    if unread:
        notes.append("not read: " + ", ".join(sorted(unread)))


def _nested(value: Any) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _renamed(out: dict[str, Any], target: str, value: Any) -> None:
    if value is None:
        return
    if (target in ONLY_WHEN_TRUE and not value) or (target == "fsdp.sharding" and value == "no_shard"):
        return
    out[target] = bool(out.get(target)) or value if isinstance(value, bool) else value
