"""Real Megatron Bridge providers from the project's own resolved runs, and the models they build on the meta device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from megatron.core import activations, parallel_state
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.enums import AttnBackend
from torch.nn import functional

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.resolve import Run

ACTIVATIONS = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "quick_gelu": activations.quick_gelu,
    "squared_relu": activations.squared_relu,
}
NOT_FIELDS = {"qk_layernorm_span", "max_position_embeddings", "activation_func", "window_size", "moe_layer_freq"}
OFF = {
    "moe_permute_fusion": False,
    "apply_rope_fusion": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
    "gradient_accumulation_fusion": False,
    "persist_layer_norm": False,
    "perform_initialization": False,
    "cross_entropy_loss_fusion": False,
    "use_cpu_initialization": True,
    "attention_backend": AttnBackend.auto,
}
"""Switches that need a GPU or an extension and change no parameter."""


def provider_of(run: Run, **changes: Any) -> Any:
    """Bridge's provider class for this kind of model with the run's fields and `changes`, finalized."""
    from megatron.bridge.models.gpt_provider import GPTModelProvider
    from megatron.bridge.models.hybrid.hybrid_provider import HybridModelProvider
    from megatron.bridge.models.mla_provider import MLAModelProvider

    arch = run.arch
    kind: Any = MLAModelProvider if arch.multi_latent_attention else GPTModelProvider
    kind = HybridModelProvider if arch.hybrid_layer_pattern else kind
    known = set(kind.__dataclass_fields__)
    fields = {**_shape(arch), **_layout(run), **OFF, "transformer_impl": "transformer_engine"}
    if not arch.hybrid_layer_pattern:
        fields["transformer_layer_spec"] = _spec(arch)
    fields |= changes
    provider = kind(**{name: value for name, value in fields.items() if name in known})
    provider.bf16, provider.params_dtype, provider.pipeline_dtype = True, torch.bfloat16, torch.bfloat16
    provider.finalize()
    return provider


def _shape(arch: Architecture) -> dict[str, Any]:
    fields = {name: getattr(arch, name) for name in Architecture.model_fields if name not in NOT_FIELDS}
    if isinstance(fields["linear_attention_freq"], tuple):
        fields["linear_attention_freq"] = list(fields["linear_attention_freq"])
    fields["activation_func"] = ACTIVATIONS[arch.activation_func]
    fields["window_size"] = None if arch.window_size is None else (arch.window_size - 1, 0)
    freq = arch.moe_layer_freq
    fields["moe_layer_freq"] = freq if isinstance(freq, int) else list(freq[: arch.num_layers])
    fields["moe_grouped_gemm"] = bool(arch.num_moe_experts)
    if arch.position_embedding_type == "yarn":
        fields["yarn_rotary_scaling_factor"] = arch.rotary_scaling_factor
        fields["yarn_original_max_position_embeddings"] = arch.original_max_position_embeddings
        fields |= {"yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0, "yarn_correction_range_round_to_int": False}
    if arch.multi_latent_attention and arch.original_max_position_embeddings is None:
        del fields["original_max_position_embeddings"]
    return fields


def _layout(run: Run) -> dict[str, Any]:
    written, sizes = run.written, run.sizes
    names = (
        "pipeline_model_parallel_layout",
        "num_layers_in_first_pipeline_stage",
        "num_layers_in_last_pipeline_stage",
    )
    accounts = ("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split")
    return {
        "tensor_model_parallel_size": sizes.tp,
        "sequence_parallel": sizes.tp > 1,
        "context_parallel_size": sizes.cp,
        "pipeline_model_parallel_size": sizes.pp,
        "virtual_pipeline_model_parallel_size": sizes.vpp if sizes.vpp > 1 else None,
        "expert_model_parallel_size": sizes.ep,
        "expert_tensor_parallel_size": sizes.etp,
        "vocab_size": run.padded_vocab_size,
        "should_pad_vocab": False,
        "seq_length": run.seq_length,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        **{name: getattr(written, name) for name in names},
        **{name: bool(getattr(written, name)) for name in accounts},
    }


def _spec(arch: Architecture) -> Any:
    """The layer spec that Bridge's conversion of this family uses."""
    if arch.experimental_attention_variant:
        from megatron.core.models.gpt import experimental_attention_variant_module_specs as variants

        return variants.get_transformer_block_with_experimental_attention_variant_spec
    if arch.qk_layernorm_span == "rank":
        from megatron.bridge.models.minimax_m2.minimax_m2_provider import minimax_m2_layer_spec

        return minimax_m2_layer_spec
    if arch.qk_layernorm_span == "all":
        from megatron.bridge.models.olmoe.olmoe_provider import olmoe_layer_spec

        return olmoe_layer_spec

    def block(config: Any, vp_stage: int | None = None) -> Any:
        return gpt_layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=True, qk_l2_norm=config.qk_l2_norm, vp_stage=vp_stage
        )

    return block


def build_chunks(provider: Any) -> Iterator[Any]:
    """The models of this rank, one per virtual stage, built by the provider on the meta device."""
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    model_parallel_cuda_manual_seed(1)
    vpp = provider.virtual_pipeline_model_parallel_size
    for stage in range(vpp or 1):
        if vpp:
            parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
        with torch.device("meta"):
            yield provider.provide(vp_stage=stage if vpp else None)
