"""What each Hugging Face `model_type` means in Megatron-Core's fields: one short function a family, found in FAMILIES.

Follows the provider_bridge methods of megatron-bridge 0.6.2 (megatron/bridge/models/<family>); families that Bridge
does not convert say so in the notes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moe_long_context.errors import BadValueError, shorten

Fields = dict[str, Any]

NO_BRIDGE = "Megatron Bridge 0.6.2 has no conversion for this architecture; the shape follows its transformers model"
BLOCK_LETTERS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


class Config:
    """A parsed config.json section: typed access, and a record of what was missing."""

    def __init__(self, data: dict[str, Any], notes: list[str]) -> None:
        self.data = data
        self.notes = notes
        self.missing: list[str] = []

    def need(self, *names: str) -> int:
        """The first of these whole numbers that is given; all are recorded as missing when none is."""
        for name in names:
            value = self.number(name)
            if value is not None:
                return value
        self.missing.append(" or ".join(names))
        return 1

    def number(self, name: str) -> int | None:
        """A whole number, or None when absent or null.

        Raises:
            BadValueError: something else.
        """
        value = self.data.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or int(value) != value:
            raise BadValueError(f"{name} must be a whole number, got {shorten(value)}.", given=shorten(value))
        return int(value)

    def real(self, name: str, default: float) -> float:
        """A number, or the default when absent or null."""
        value = self.data.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadValueError(f"{name} must be a number, got {shorten(value)}.", given=shorten(value))
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A switch, or the default when absent or null."""
        value = self.data.get(name)
        return default if value is None else bool(value)

    def names(self, name: str) -> list[str]:
        """A list of words, empty when absent."""
        value = self.data.get(name)
        return [str(x) for x in value] if isinstance(value, list) else []

    @property
    def rope(self) -> dict[str, Any]:
        """rope_parameters (transformers 5) or rope_scaling (4), empty when neither is given."""
        for key in ("rope_parameters", "rope_scaling"):
            value = self.data.get(key)
            if isinstance(value, dict):
                return value
        return {}


def _common(c: Config) -> Fields:
    """What Bridge's CONFIG_MAPPING reads for every family."""
    rope = Config({**c.rope, **{k: v for k, v in c.data.items() if k in ("rope_theta", "partial_rotary_factor")}}, [])
    heads, hidden = c.need("num_attention_heads"), c.need("hidden_size")
    return {
        "num_layers": c.need("num_hidden_layers"),
        "hidden_size": hidden,
        "ffn_hidden_size": c.number("intermediate_size") or 4 * hidden,
        "num_attention_heads": heads,
        "num_query_groups": c.number("num_key_value_heads") or heads,
        "kv_channels": c.number("head_dim") or max(hidden // heads, 1),
        "vocab_size": c.need("vocab_size"),
        "max_position_embeddings": c.number("max_position_embeddings"),
        "layernorm_epsilon": c.real("rms_norm_eps", 1e-6),
        "share_embeddings_and_output_weights": c.flag("tie_word_embeddings"),
        "add_qkv_bias": c.flag("attention_bias"),
        "rotary_base": rope.real("rope_theta", 10000.0),
        "rotary_percent": rope.real("partial_rotary_factor", 1.0),
    }


def _dense(c: Config) -> Fields:
    return _common(c) | {"add_bias_linear": c.flag("mlp_bias")}


def _dense_qwen2(c: Config) -> Fields:
    return _common(c) | {"add_qkv_bias": True}


def _dense_qwen3(c: Config) -> Fields:
    return _common(c) | {"add_qkv_bias": False, "qk_layernorm": True}


def _experts(c: Config) -> Fields:
    return {
        "num_moe_experts": c.need("num_experts", "num_local_experts", "n_routed_experts"),
        "moe_router_topk": c.need("num_experts_per_tok"),
        "moe_ffn_hidden_size": c.need("moe_intermediate_size", "intermediate_size"),
    }


def _groups(c: Config) -> Fields:
    scaling = c.data.get("routed_scaling_factor")
    return {
        "moe_router_num_groups": c.number("n_group"),
        "moe_router_group_topk": c.number("topk_group"),
        "moe_router_topk_scaling_factor": None if scaling is None else c.real("routed_scaling_factor", 1.0),
    }


def _dense_first(c: Config) -> Fields:
    """The first layers dense, the rest MoE; `mlp_layer_types` says it layer by layer in newer files."""
    layers = c.need("num_hidden_layers")
    kinds = c.names("mlp_layer_types")
    dense = kinds.count("dense") if kinds else c.need("first_k_dense_replace")
    return {"moe_layer_freq": tuple([0] * dense + [1] * (layers - dense))}


def _mla(c: Config) -> Fields:
    rope = Config(c.rope, [])
    yarn = str(c.rope.get("type") or c.rope.get("rope_type")) == "yarn"
    return {
        "multi_latent_attention": True,
        "qk_layernorm": True,
        "add_qkv_bias": False,
        "share_embeddings_and_output_weights": False,
        "q_lora_rank": c.number("q_lora_rank"),
        "kv_lora_rank": c.need("kv_lora_rank"),
        "qk_head_dim": c.need("qk_nope_head_dim"),
        "qk_pos_emb_head_dim": c.need("qk_rope_head_dim"),
        "v_head_dim": c.need("v_head_dim"),
        "kv_channels": c.need("qk_rope_head_dim"),
        "rope_type": "yarn",
        "rotary_scaling_factor": rope.real("factor", 1.0) if yarn else 1.0,
        "original_max_position_embeddings": rope.number("original_max_position_embeddings") if yarn else None,
    }


def _deepseek_v2(c: Config) -> Fields:
    shared = {"moe_shared_expert_intermediate_size": c.need("moe_intermediate_size") * c.need("n_shared_experts")}
    return (
        _common(c)
        | _experts(c)
        | _groups(c)
        | _dense_first(c)
        | _mla(c)
        | shared
        | {"moe_router_pre_softmax": True, "moe_router_score_function": "softmax"}
    )


def _deepseek_v3(c: Config) -> Fields:
    return _deepseek_v2(c) | {
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "mtp_num_layers": c.number("num_nextn_predict_layers") or None,
    }


def _sparse_attention(c: Config) -> Fields:
    if c.number("num_nextn_predict_layers"):
        c.notes.append("MTP is counted; Bridge's conversion leaves it out unless model.mtp_num_layers is set")
    return _deepseek_v3(c) | {
        "experimental_attention_variant": "dsa",
        "dsa_indexer_n_heads": c.need("index_n_heads"),
        "dsa_indexer_head_dim": c.need("index_head_dim"),
        "dsa_indexer_topk": c.need("index_topk"),
        "dsa_indexer_topk_freq": c.number("index_topk_freq") or 1,
        "dsa_indexer_skip_topk_offset": c.number("index_skip_topk_offset") or 0,
    }


def _glm4_moe(c: Config) -> Fields:
    return (
        _common(c)
        | _experts(c)
        | _groups(c)
        | _dense_first(c)
        | {
            "qk_layernorm": c.flag("use_qk_norm"),
            "share_embeddings_and_output_weights": False,
            "moe_shared_expert_intermediate_size": c.need("moe_intermediate_size"),
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
            "mtp_num_layers": c.number("num_nextn_predict_layers") or None,
        }
    )


def _qwen3_moe(c: Config) -> Fields:
    if c.names("mlp_only_layers") or (c.number("decoder_sparse_step") or 1) != 1:
        c.notes.append("mlp_only_layers and decoder_sparse_step are counted; Bridge makes every layer MoE")
    return (
        _common(c)
        | _experts(c)
        | _sparse_steps(c)
        | {
            "add_qkv_bias": False,
            "qk_layernorm": True,
            "moe_router_pre_softmax": not c.flag("norm_topk_prob"),
        }
    )


def _sparse_steps(c: Config) -> Fields:
    """transformers: layer i is MoE unless listed, when (i + 1) % decoder_sparse_step == 0."""
    step = c.number("decoder_sparse_step") or 1
    listed = set(c.names("mlp_only_layers"))
    pattern = tuple(
        int((i + 1) % step == 0 and str(i) not in listed) for i in range(min(c.need("num_hidden_layers"), 1024))
    )
    return {"moe_layer_freq": 1 if all(pattern) else pattern}


def _qwen2_moe(c: Config) -> Fields:
    c.notes.append(NO_BRIDGE)
    return (
        _common(c)
        | _experts(c)
        | _sparse_steps(c)
        | {
            "add_qkv_bias": c.flag("qkv_bias", True),
            "moe_shared_expert_intermediate_size": c.need("shared_expert_intermediate_size"),
            "moe_shared_expert_gate": True,
            "moe_router_pre_softmax": not c.flag("norm_topk_prob"),
        }
    )


def _gated_delta_net(c: Config) -> Fields:
    kinds = c.names("layer_types")
    freq: int | tuple[int, ...] = c.number("full_attention_interval") or 4
    if kinds:
        pattern = tuple(int(kind == "linear_attention") for kind in kinds)
        freq = _period(pattern)
    return {
        "experimental_attention_variant": "gated_delta_net",
        "linear_attention_freq": freq,
        "linear_conv_kernel_dim": c.number("linear_conv_kernel_dim") or 4,
        "linear_key_head_dim": c.number("linear_key_head_dim") or 128,
        "linear_value_head_dim": c.number("linear_value_head_dim") or 128,
        "linear_num_key_heads": c.number("linear_num_key_heads") or 16,
        "linear_num_value_heads": c.number("linear_num_value_heads") or 32,
        "attention_output_gate": True,
        "qk_layernorm": True,
    }


def _period(pattern: tuple[int, ...]) -> int | tuple[int, ...]:
    """The interval n when every n-th entry is 0 and all others 1, else the pattern itself."""
    first = pattern.index(0) + 1 if 0 in pattern else len(pattern) + 1
    regular = all(bool(x) == ((i + 1) % first != 0) for i, x in enumerate(pattern))
    return first if regular else pattern


def _qwen3_next(c: Config) -> Fields:
    c.notes.append("one MTP layer is counted: the checkpoint holds it, config.json does not say so")
    return (
        _common(c)
        | _experts(c)
        | _gated_delta_net(c)
        | {
            "add_qkv_bias": False,
            "moe_shared_expert_intermediate_size": c.need("shared_expert_intermediate_size"),
            "moe_shared_expert_gate": True,
            "mtp_num_layers": c.number("num_nextn_predict_layers") or 1,
        }
    )


def _qwen3_5(c: Config) -> Fields:
    mtp = {"mtp_num_layers": c.number("mtp_num_hidden_layers") or None}
    return _common(c) | {"rotary_percent": _partial(c, 0.25)} | _gated_delta_net(c) | mtp


def _qwen3_5_moe(c: Config) -> Fields:
    return (
        _qwen3_5(c)
        | _experts(c)
        | {
            "moe_shared_expert_intermediate_size": c.need("shared_expert_intermediate_size"),
            "moe_shared_expert_gate": True,
        }
    )


def _partial(c: Config, default: float) -> float:
    return Config({**c.data, **c.rope}, []).real("partial_rotary_factor", default)


def _gpt_oss(c: Config) -> Fields:
    rope = Config(c.rope, [])
    return (
        _common(c)
        | _experts(c)
        | {
            "add_bias_linear": True,
            "add_qkv_bias": False,
            "share_embeddings_and_output_weights": False,
            "activation_func": "quick_gelu",
            "softmax_type": "learnable",
            "window_size": c.need("sliding_window"),
            "window_attn_skip_freq": 2,
            "position_embedding_type": "yarn",
            "rope_type": "yarn",
            "rotary_scaling_factor": rope.real("factor", 32.0),
            "original_max_position_embeddings": rope.number("original_max_position_embeddings") or 4096,
        }
    )


def _mixtral(c: Config) -> Fields:
    c.notes.append(NO_BRIDGE)
    if c.number("sliding_window"):
        c.notes.append("sliding_window is not used")
    return _common(c) | _experts(c)


def _minimax_m2(c: Config) -> Fields:
    if c.number("num_mtp_modules"):
        c.notes.append("num_mtp_modules is left out, as in Bridge's conversion")
    fields = _common(c)
    rotary = c.number("rotary_dim")
    return (
        fields
        | _experts(c)
        | {
            "add_qkv_bias": False,
            "qk_layernorm": True,
            "qk_layernorm_span": "rank",
            "rotary_percent": rotary / fields["kv_channels"] if rotary else fields["rotary_percent"],
            "moe_router_score_function": "sigmoid",
            "moe_router_enable_expert_bias": True,
        }
    )


def _olmoe(c: Config) -> Fields:
    return (
        _common(c)
        | _experts(c)
        | {
            "share_embeddings_and_output_weights": False,
            "qk_layernorm": True,
            "qk_layernorm_span": "all",
            "moe_router_pre_softmax": True,
        }
    )


def _llama4(c: Config) -> Fields:
    c.notes.append(NO_BRIDGE)
    c.notes.append("chunked attention is counted as full attention: Megatron-Core's GPT model has no chunked attention")
    step = c.number("interleave_moe_layer_step") or 1
    pattern = tuple(int((i + 1) % step == 0) for i in range(min(c.need("num_hidden_layers"), 1024)))
    return (
        _common(c)
        | _experts(c)
        | {
            "ffn_hidden_size": c.need("intermediate_size_mlp"),
            "moe_ffn_hidden_size": c.need("intermediate_size"),
            "moe_shared_expert_intermediate_size": c.need("intermediate_size"),
            "moe_layer_freq": 1 if all(pattern) else pattern,
            "moe_router_score_function": "sigmoid",
            "qk_l2_norm": c.flag("use_qk_norm"),
            "no_rope_freq": c.number("no_rope_layer_interval") or 4,
        }
    )


def _nemotron_h(c: Config) -> Fields:
    pattern = c.data.get("hybrid_override_pattern") or _letters(c, "layers_block_type")
    depths = c.number("num_nextn_predict_layers") or None
    mtp = c.data.get("mtp_hybrid_override_pattern") or _letters(c, "mtp_layers_block_type")
    fields = _common(_with_layers(c, len(pattern)))
    return (
        fields
        | (_experts(c) | _groups(c) | _hybrid_moe(c) if "E" in pattern else {})
        | {
            "hybrid_layer_pattern": pattern or None,
            "layernorm_epsilon": c.real("layer_norm_epsilon", 1e-5),
            "add_bias_linear": c.flag("use_bias"),
            "gated_linear_unit": False,
            "activation_func": "squared_relu",
            "position_embedding_type": "none",
            "mamba_num_heads": c.need("mamba_num_heads"),
            "mamba_head_dim": c.need("mamba_head_dim"),
            "mamba_state_dim": c.need("ssm_state_size"),
            "mamba_num_groups": c.need("n_groups"),
            "mtp_num_layers": depths,
            "mtp_hybrid_override_pattern": mtp or None if depths else None,
            "mtp_use_repeated_layer": bool(depths) and c.flag("mtp_use_repeated_layer", True),
        }
    )


def _hybrid_moe(c: Config) -> Fields:
    return {
        "moe_shared_expert_intermediate_size": c.number("moe_shared_expert_intermediate_size"),
        "moe_latent_size": c.number("moe_latent_size"),
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
    }


def _letters(c: Config, name: str) -> str:
    try:
        return "".join(BLOCK_LETTERS[kind] for kind in c.names(name))
    except KeyError as error:
        raise BadValueError(
            f"{name} holds {shorten(error.args[0])}.", given=shorten(error.args[0]), allowed=list(BLOCK_LETTERS)
        ) from None


def _with_layers(c: Config, layers: int) -> Config:
    """The same section with the layer count of its pattern, which newer files give instead."""
    filled = Config({"num_hidden_layers": layers or None, **c.data}, c.notes)
    filled.missing = c.missing
    return filled


FAMILIES: dict[str, Callable[[Config], Fields]] = {
    "llama": _dense,
    "mistral": _dense,
    "qwen2": _dense_qwen2,
    "qwen3": _dense_qwen3,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _deepseek_v3,
    "kimi_k2": _deepseek_v3,
    "glm4_moe_lite": _deepseek_v3,
    "glm_moe_dsa": _sparse_attention,
    "deepseek_v32": _sparse_attention,
    "glm4_moe": _glm4_moe,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe": _qwen3_moe,
    "qwen3_vl_moe_text": _qwen3_moe,
    "qwen3_next": _qwen3_next,
    "qwen3_5": _qwen3_5,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe": _qwen3_5_moe,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "gpt_oss": _gpt_oss,
    "mixtral": _mixtral,
    "minimax_m2": _minimax_m2,
    "olmoe": _olmoe,
    "llama4": _llama4,
    "llama4_text": _llama4,
    "nemotron_h": _nemotron_h,
}
