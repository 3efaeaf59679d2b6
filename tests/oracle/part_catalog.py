"""The catalog against Megatron Bridge and transformers: what Bridge makes of each model's public config.json.

`fields`: Bridge's conversion, field by field. `recipe`: what Bridge's pretraining recipe of the model (where there is
none, the conversion) sets beside the shape. `totals`: parameters of the transformers model of the same config.json.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import _env

_env.prepare(bridge=True)
_env.cpu_as_device()

import torch  # noqa: E402
import transformers  # noqa: E402
from megatron.bridge import AutoBridge  # noqa: E402

from moe_long_context.catalog.architecture import Architecture  # noqa: E402
from moe_long_context.catalog.loader import model_entry  # noqa: E402

GOLDEN = "catalog_bridge-0.6.2.json"
CONFIGS = Path(__file__).parents[1] / "catalog" / "hf_configs"
RECIPES = {
    "deepseek-v2": "deepseek.h100.deepseek_v2:deepseek_v2_pretrain_128gpu_h100_bf16_config",
    "deepseek-v2-lite": "deepseek.h100.deepseek_v2:deepseek_v2_lite_pretrain_8gpu_h100_bf16_config",
    "deepseek-v3": "deepseek.h100.deepseek_v3:deepseek_v3_pretrain_1024gpu_h100_bf16_config",
    "glm-4.5": "glm.h100.glm45:glm45_355b_pretrain_128gpu_h100_bf16_config",
    "glm-4.5-air": "glm.h100.glm45:glm45_air_106b_pretrain_32gpu_h100_bf16_config",
    "glm-5.2": "glm.h100.glm5:glm52_pretrain_416gpu_h100_bf16_config",
    "gpt-oss-120b": "gpt_oss.h100.gpt_oss:gpt_oss_120b_pretrain_64gpu_h100_bf16_config",
    "gpt-oss-20b": "gpt_oss.h100.gpt_oss:gpt_oss_20b_pretrain_16gpu_h100_bf16_config",
    "kimi-k2": "kimi.h100.kimi_k2:kimi_k2_pretrain_512gpu_h100_bf16_config",
    "llama3-405b": "llama.h100.llama3:llama31_405b_pretrain_256gpu_h100_bf16_config",
    "llama3-70b": "llama.h100.llama3:llama3_70b_pretrain_32gpu_h100_bf16_config",
    "llama3-8b": "llama.h100.llama3:llama3_8b_pretrain_2gpu_h100_bf16_config",
    "moonlight-16b-a3b": "moonlight.h100.moonlight_16b:moonlight_16b_pretrain_16gpu_h100_bf16_config",
    "nemotron-3-nano-30b-a3b": "nemotronh.h100.nemotron_3_nano:nemotron_3_nano_pretrain_8gpu_h100_bf16_config",
    "nemotron-3.5-lightning": "nemotronh.h100.nemotron_3_nano:nemotron_3_5_lightning_pretrain_config",
    "nemotron-3-super-120b-a12b": "nemotronh.nemotron_3_super:nemotron_3_super_pretrain_config",
    "olmoe-1b-7b": "olmoe.h100.olmoe_7b:olmoe_7b_pretrain_8gpu_h100_bf16_config",
    "qwen3-235b-a22b": "qwen.h100.qwen3_moe:qwen3_235b_a22b_pretrain_256gpu_h100_bf16_config",
    "qwen3-30b-a3b": "qwen.h100.qwen3_moe:qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config",
    "qwen3-next-80b-a3b": "qwen.h100.qwen3_next:qwen3_next_80b_a3b_pretrain_32gpu_h100_bf16_config",
}
BESIDE_SHAPE = (
    "activation_func_clamp_value",
    "apply_rope_fusion",
    "attention_softmax_in_fp32",
    "bias_activation_fusion",
    "bias_dropout_fusion",
    "cp_comm_type",
    "cross_entropy_fusion_impl",
    "cross_entropy_loss_fusion",
    "fp32_residual_connection",
    "layernorm_zero_centered_gamma",
    "masked_softmax_fusion",
    "moe_aux_loss_coeff",
    "moe_flex_dispatcher_backend",
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_router_dtype",
    "moe_router_load_balancing_type",
    "moe_shared_expert_overlap",
    "moe_token_dispatcher_type",
    "mtp_loss_scaling_factor",
    "persist_layer_norm",
)
KIMI = {"kimi_k2": ("deepseek_v3", "KimiK2ForCausalLM")}
"""model_type that transformers does not know: what its remote code derives from, and the name Bridge registers."""


def record() -> dict[str, Any]:
    """Fields, recipe settings and totals of every model that the framework can convert or build."""
    AutoBridge.from_hf_pretrained = classmethod(  # type: ignore[method-assign]
        lambda cls, name, **_: cls.from_hf_config(hf_config(model_entry(str(name)).id))
    )
    models = sorted(file.stem for file in CONFIGS.glob("*.json"))
    converted = [model for model in models if _supported(model)]
    return {
        "unsupported": sorted({*models} - {*converted}),
        "fields": {model: _shape(_convert(model)) for model in converted},
        "recipe": {model: _beside(_recipe(model)) for model in converted},
        "totals": {model: _total(model) for model in models},
    }


def hf_config(model: str) -> Any:
    """The transformers config object of a public config.json; of multimodal models the text part."""
    data = json.loads((CONFIGS / f"{model}.json").read_text(encoding="utf-8"))
    name = data["architectures"][0].replace("ForConditionalGeneration", "ForCausalLM")
    data = data.get("text_config", data)
    kind, name = KIMI.get(data["model_type"], (data["model_type"], name))
    values = {key: value for key, value in data.items() if key not in ("model_type", "architectures")}
    config = transformers.AutoConfig.for_model(kind, **values)
    config.architectures = [name]
    return config


def _supported(model: str) -> bool:
    try:
        AutoBridge.from_hf_config(hf_config(model))
    except ValueError as error:
        assert "is not yet supported" in str(error)
        return False
    return True


def _convert(model: str) -> Any:
    return AutoBridge.from_hf_config(hf_config(model)).to_megatron_provider(load_weights=False)


def _recipe(model: str) -> Any:
    if model not in RECIPES:
        return _convert(model)
    module, function = RECIPES[model].split(":")
    return getattr(importlib.import_module(f"megatron.bridge.recipes.{module}"), function)().model


def _shape(provider: Any) -> dict[str, Any]:
    """The architecture fields that the provider has, as plain values, under the names of plain RoPE and MLA."""
    fields = {name: _plain(getattr(provider, name)) for name in Architecture.model_fields if hasattr(provider, name)}
    if fields["position_embedding_type"] == "yarn":
        fields["rotary_scaling_factor"] = provider.yarn_rotary_scaling_factor
        fields["original_max_position_embeddings"] = provider.yarn_original_max_position_embeddings
    return fields


def _beside(provider: Any) -> dict[str, Any]:
    return {name: _plain(getattr(provider, name)) for name in BESIDE_SHAPE if hasattr(provider, name)}


def _plain(value: Any) -> Any:
    return value.__name__ if callable(value) else value


def _total(model: str) -> int:
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(hf_config(model))
    return sum(parameter.numel() for parameter in built.parameters())
