"""The Hugging Face configs that Bridge's recipes ask the hub for, from the catalog, and a cluster that is not there.

install()                        AutoBridge.from_hf_pretrained answers from the catalog
cluster(world, gpu)              world size and GPU identity for the duration of a validation
"""

from __future__ import annotations

import contextlib
import os
import types
import unittest.mock
from collections.abc import Iterator
from typing import Any

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.catalog.loader import gpu as gpu_named
from moe_long_context.catalog.loader import model_entry
from moe_long_context.units import GIB

BLACKWELL, HOPPER, AMPERE = 10, 9, 8


def install() -> None:
    """Route AutoBridge.from_hf_pretrained to configs built from the catalog."""
    from megatron.bridge import AutoBridge

    def from_catalog(cls: Any, path: str, **kwargs: Any) -> Any:
        return cls.from_hf_config(hf_config(str(path)))

    AutoBridge.from_hf_pretrained = classmethod(from_catalog)


def hf_config(hub_id: str) -> Any:
    """The transformers config of a catalog model, by its hub name."""
    import transformers

    arch = model_entry(hub_id).architecture
    kind, values, more = _family(hub_id, arch)
    rope = {"rope_scaling": more.pop("rope_scaling")} if "rope_scaling" in more else {}
    config = getattr(transformers, kind)(**_common(arch), **values, **rope)
    for name, value in more.items():
        setattr(config, name, value)
    config.architectures = [kind.removesuffix("Config") + "ForCausalLM"]
    config._name_or_path = hub_id
    config.torch_dtype = "bfloat16"
    return config


def _common(a: Architecture) -> dict[str, Any]:
    return {
        "vocab_size": a.vocab_size, "hidden_size": a.hidden_size, "intermediate_size": a.ffn_hidden_size,
        "num_hidden_layers": a.num_layers, "num_attention_heads": a.num_attention_heads,
        "num_key_value_heads": a.num_query_groups, "rms_norm_eps": a.layernorm_epsilon,
        "max_position_embeddings": a.max_position_embeddings or 4096, "rope_theta": a.rotary_base,
        "tie_word_embeddings": a.share_embeddings_and_output_weights,
    }  # fmt: skip


def _family(hub_id: str, a: Architecture) -> tuple[str, dict[str, Any], dict[str, Any]]:
    name = hub_id.lower()
    if a.hybrid_layer_pattern:
        return "NemotronHConfig", _nemotron(a), {}
    if "gpt-oss" in name:
        return "GptOssConfig", _gpt_oss(a), {}
    if a.experimental_attention_variant == "gated_delta_net":
        return "Qwen3NextConfig", _qwen_next(a), {}
    if a.experimental_attention_variant == "dsa":
        return (
            "GlmMoeDsaConfig",
            {**_deepseek(a), **_dsa(a)},
            {
                "num_nextn_predict_layers": a.mtp_num_layers or 0,
                "indexer_rope_interleave": True,
            },
        )
    if a.multi_latent_attention:
        v2 = "deepseek-v2" in name
        extra = {"num_nextn_predict_layers": a.mtp_num_layers or 0, "aux_loss_alpha": 0.0001}
        return "DeepseekV2Config" if v2 else "DeepseekV3Config", _deepseek(a), extra
    if "glm-4.5" in name:
        return "Glm4MoeConfig", _glm(a), {"num_nextn_predict_layers": a.mtp_num_layers or 0}
    if "olmoe" in name:
        values = {"num_experts": a.num_moe_experts, "num_experts_per_tok": a.moe_router_topk}
        return "OlmoeConfig", values, {"intermediate_size": a.moe_ffn_hidden_size}
    return "Qwen3MoeConfig", _qwen(a), {}


def _qwen(a: Architecture) -> dict[str, Any]:
    return {
        "head_dim": a.kv_channels, "num_experts": a.num_moe_experts, "num_experts_per_tok": a.moe_router_topk,
        "moe_intermediate_size": a.moe_ffn_hidden_size, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "attention_bias": a.add_qkv_bias,
    }  # fmt: skip


def _qwen_next(a: Architecture) -> dict[str, Any]:
    return {
        "head_dim": a.kv_channels, "num_experts": a.num_moe_experts, "num_experts_per_tok": a.moe_router_topk,
        "moe_intermediate_size": a.moe_ffn_hidden_size,
        "shared_expert_intermediate_size": a.moe_shared_expert_intermediate_size,
        "linear_conv_kernel_dim": a.linear_conv_kernel_dim, "linear_key_head_dim": a.linear_key_head_dim,
        "linear_value_head_dim": a.linear_value_head_dim, "linear_num_key_heads": a.linear_num_key_heads,
        "linear_num_value_heads": a.linear_num_value_heads, "full_attention_interval": a.linear_attention_freq,
        "decoder_sparse_step": 1, "norm_topk_prob": True, "partial_rotary_factor": a.rotary_percent,
    }  # fmt: skip


def _deepseek(a: Architecture) -> dict[str, Any]:
    dense = next((i for i, moe in enumerate(a.moe_layers) if moe), 0)
    out: dict[str, Any] = {
        "moe_intermediate_size": a.moe_ffn_hidden_size, "n_routed_experts": a.num_moe_experts,
        "num_experts_per_tok": a.moe_router_topk, "first_k_dense_replace": dense, "norm_topk_prob": True,
        "n_shared_experts": (a.moe_shared_expert_intermediate_size or 0) // (a.moe_ffn_hidden_size or 1),
        "routed_scaling_factor": a.moe_router_topk_scaling_factor or 1.0, "n_group": a.moe_router_num_groups or 1,
        "topk_group": a.moe_router_group_topk or 1, "kv_lora_rank": a.kv_lora_rank, "q_lora_rank": a.q_lora_rank,
        "qk_rope_head_dim": a.qk_pos_emb_head_dim, "qk_nope_head_dim": a.qk_head_dim, "v_head_dim": a.v_head_dim,
    }  # fmt: skip
    if a.rope_type == "yarn":
        out["rope_scaling"] = {
            "rope_type": "yarn", "factor": a.rotary_scaling_factor, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
            "mscale_all_dim": 1.0, "original_max_position_embeddings": a.original_max_position_embeddings or 4096,
        }  # fmt: skip
    return out


def _dsa(a: Architecture) -> dict[str, Any]:
    return {
        "index_n_heads": a.dsa_indexer_n_heads, "index_head_dim": a.dsa_indexer_head_dim,
        "index_topk": a.dsa_indexer_topk,
    }  # fmt: skip


def _glm(a: Architecture) -> dict[str, Any]:
    dense = next((i for i, moe in enumerate(a.moe_layers) if moe), 0)
    return {
        "head_dim": a.kv_channels, "moe_intermediate_size": a.moe_ffn_hidden_size,
        "n_routed_experts": a.num_moe_experts, "num_experts_per_tok": a.moe_router_topk, "n_shared_experts": 1,
        "first_k_dense_replace": dense, "partial_rotary_factor": a.rotary_percent, "use_qk_norm": a.qk_layernorm,
        "attention_bias": a.add_qkv_bias, "norm_topk_prob": True, "n_group": 1, "topk_group": 1,
        "routed_scaling_factor": a.moe_router_topk_scaling_factor or 1.0,
    }  # fmt: skip


def _gpt_oss(a: Architecture) -> dict[str, Any]:
    return {
        "head_dim": a.kv_channels, "num_local_experts": a.num_moe_experts, "num_experts_per_tok": a.moe_router_topk,
        "sliding_window": a.window_size,
    }  # fmt: skip


def _nemotron(a: Architecture) -> dict[str, Any]:
    return {
        "head_dim": a.kv_channels, "hybrid_override_pattern": a.hybrid_layer_pattern,
        "mamba_num_heads": a.mamba_num_heads, "mamba_head_dim": a.mamba_head_dim, "ssm_state_size": a.mamba_state_dim,
        "n_groups": a.mamba_num_groups, "n_routed_experts": a.num_moe_experts,
        "num_experts_per_tok": a.moe_router_topk, "moe_intermediate_size": a.moe_ffn_hidden_size,
        "moe_shared_expert_intermediate_size": a.moe_shared_expert_intermediate_size,
    }  # fmt: skip


@contextlib.contextmanager
def cluster(world: int, gpu: str) -> Iterator[None]:
    """World size and GPU identity for the duration of a validation; the environment is restored after it."""
    import megatron.bridge.training.config as bridge_config
    import torch
    from megatron.core.transformer import transformer_config

    card = gpu_named(gpu)
    major = card.compute_capability or {"hopper": HOPPER, "ampere": AMPERE}.get(card.architecture, BLACKWELL)
    properties = types.SimpleNamespace(
        name=f"NVIDIA {card.id}", major=major, minor=0, total_memory=int(card.memory_gib * GIB),
        multi_processor_count=132,
    )  # fmt: skip
    patch, saved = unittest.mock.patch.object, dict(os.environ)
    try:
        with (
            patch(bridge_config, "get_world_size_safe", return_value=world),
            patch(torch.cuda, "get_device_properties", return_value=properties),
            patch(torch.cuda, "get_device_capability", return_value=(major, 0)),
            patch(transformer_config, "_validate_dsa_kernel_backend_dependencies"),
        ):
            yield
    finally:
        os.environ.clear()
        os.environ.update(saved)
