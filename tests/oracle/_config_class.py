"""A resolved run as keyword arguments of the real config classes of any core from 0.14, and what the class says."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from megatron.core.transformer import transformer_config as core
from torch.nn import functional

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.resolve import Run

QUICK_GELU = getattr(core, "quick_gelu", functional.gelu)
MESSAGE = 110
FP8 = {"fp8_delayed": "delayed", "fp8_tensorwise": "tensorwise", "fp8_blockwise": "blockwise", "mxfp8": "mxfp8"}
DEVICE = {"use_cpu_initialization": True, "perform_initialization": False, "bias_activation_fusion": False}
NOT_FIELDS = {"qk_layernorm_span", "max_position_embeddings", "activation_func", "window_size", "moe_layer_freq"}
MESH = (
    "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size", "cp_comm_type",
    "virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
    "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
)  # fmt: skip


def outcome(run: Run, bridge: Any = None) -> str:
    """ "ok", or what the class said; Bridge's classes where the front end is Bridge and `bridge` is its module."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _build(run, bridge if run.bridge else None)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MESSAGE]
    return "ok"


def _build(run: Run, bridge: Any) -> None:
    own = bridge or core
    kind = own.MLATransformerConfig if run.arch.multi_latent_attention else own.TransformerConfig
    known = kind.__dataclass_fields__
    fields = {**_shape(run.arch), **DEVICE, **_mesh(run), **_training(run), **_graphs(run, known)}
    fields |= {**_precision(run), **_further(run)}
    if fields.get("experimental_attention_variant") and "experimental_attention_variant" not in known:
        raise TypeError("this core has no field experimental_attention_variant")
    config = kind(**{name: value for name, value in fields.items() if name in known})
    if bridge:
        config.finalize()


def _shape(arch: Architecture) -> dict[str, Any]:
    fields = {name: _plain(getattr(arch, name)) for name in Architecture.model_fields if name not in NOT_FIELDS}
    functions = {"silu": functional.silu, "gelu": functional.gelu, "quick_gelu": QUICK_GELU}
    fields["activation_func"] = functions[arch.activation_func]
    freq = arch.moe_layer_freq
    fields["moe_layer_freq"] = freq if isinstance(freq, int) else list(freq[: arch.num_layers])
    fields["moe_grouped_gemm"] = bool(arch.num_moe_experts)
    return {name: value for name, value in fields.items() if value is not None}


def _mesh(run: Run) -> dict[str, Any]:
    c = run.written
    fields = {name: _plain(getattr(c, name)) for name in MESH if getattr(c, name) is not None}
    fields["account_for_embedding_in_pipeline_split"] = run.account_embedding
    fields["account_for_loss_in_pipeline_split"] = run.account_loss
    sp = run.sequence_parallel if c.sequence_parallel is None else c.sequence_parallel
    return {**fields, "sequence_parallel": sp, "pipeline_dtype": torch.bfloat16}


def _training(run: Run) -> dict[str, Any]:
    c = run.written
    fields: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    if c.recompute is not None:
        fields |= {f"recompute_{name}": _plain(getattr(c.recompute, name)) for name in type(c.recompute).model_fields}
    flex = run.dispatcher in ("deepep", "hybridep", "ncclep")
    fields["moe_token_dispatcher_type"] = "flex" if flex else run.dispatcher
    if flex:
        fields |= {"moe_flex_dispatcher_backend": run.dispatcher}
    if c.activation_offload.modules:
        fields |= {"fine_grained_activation_offloading": True, "offload_modules": list(c.activation_offload.modules)}
    return fields | {
        "moe_expert_capacity_factor": c.moe.capacity_factor, "moe_pad_expert_input_to_capacity": c.moe.pad_to_capacity,
        "overlap_moe_expert_parallel_comm": bool(c.overlap.ep_a2a), "delay_wgrad_compute": bool(c.overlap.delay_wgrad),
        "moe_shared_expert_overlap": bool(c.overlap.shared_expert), "overlap_p2p_comm": bool(c.overlap.p2p),
    }  # fmt: skip


def _graphs(run: Run, known: Any) -> dict[str, Any]:
    """CUDA graphs in the spelling of this core: modules, or the scope before 0.18."""
    graph = run.written.cuda_graph
    if graph.impl != "none" and "cuda_graph_impl" not in known:
        raise TypeError("this core has no field cuda_graph_impl")
    fields: dict[str, Any] = {"cuda_graph_impl": graph.impl}
    if "cuda_graph_modules" in known:
        return {**fields, "cuda_graph_modules": list(graph.modules)}
    scope = "attn" if graph.modules == ("attn",) else list(graph.modules)
    return {**fields, "cuda_graph_scope": scope} if graph.modules else fields


def _precision(run: Run) -> dict[str, Any]:
    fields: dict[str, Any] = {"bf16": True, "params_dtype": torch.bfloat16}
    if run.precision in FP8:
        fields |= {"fp8": "hybrid" if run.precision == "fp8_delayed" else "e4m3", "fp8_recipe": FP8[run.precision]}
    if run.precision == "nvfp4":
        fields |= {"fp4": "e2m1", "fp4_recipe": "nvfp4"}
    return fields


def _further(run: Run) -> dict[str, Any]:
    paths = run.written.megatron.items()
    own = {path.removeprefix("model."): value for path, value in paths if path.startswith("model.")}
    return {name: _plain(value) for name, value in own.items() if name not in Architecture.model_fields}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
