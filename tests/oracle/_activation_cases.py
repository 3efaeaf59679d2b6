"""Layer types, recompute sets and layouts of which kept activations are recorded: full widths, few experts."""

from __future__ import annotations

from typing import Any

LENGTHS = (64, 128)
FULL: dict[str, Any] = {"granularity": "full", "method": "uniform", "num_layers": 1}
BLOCK: dict[str, Any] = {"granularity": "full", "method": "block", "num_layers": 1}
MOE: tuple[Any, ...] = (
    None, ["core_attn"], ["layernorm"], ["moe_act"], ["moe"], ["moe_act", "layernorm"], ["moe", "layernorm"],
    ["core_attn", "moe_act", "layernorm"], FULL, BLOCK,
)  # fmt: skip
DENSE: tuple[Any, ...] = (None, ["core_attn"], ["layernorm"], ["mlp"], ["core_attn", "mlp"], FULL, BLOCK)
MLA: tuple[Any, ...] = (["mla_up_proj"], ["mla_up_proj", "layernorm"])
SHARED: tuple[Any, ...] = (["shared_experts"], ["shared_experts", "moe_act", "layernorm"])
MLA_MOE: tuple[Any, ...] = (
    ["mla_up_proj", "moe_act", "layernorm"], ["mla_up_proj", "moe", "layernorm"],
    ["mla_up_proj", "moe_act", "layernorm", "shared_experts", "core_attn"],
)  # fmt: skip
GDN: tuple[Any, ...] = (["gdn_norm_out"], ["gdn_norm_out", "moe_act", "layernorm", "shared_experts"])
HYBRID: dict[str, Any] = {"mtp_use_repeated_layer": False}
FEW: tuple[Any, ...] = (None, ["layernorm"], ["moe_act"], ["moe"])

MODELS: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "gqa+moe": ("qwen3-30b-a3b", {"num_moe_experts": 16}, MOE),
    "gqa+moe, 128 experts": ("qwen3-30b-a3b", {}, FEW),
    "mla+dense": ("deepseek-v3", {"moe_layer_freq": [0]}, (*DENSE, *MLA)),
    "mla+moe+shared": ("deepseek-v3", {"num_moe_experts": 16}, (*MOE, *SHARED, *MLA, *MLA_MOE)),
    "mla without q lora": ("moonlight-16b-a3b", {"num_moe_experts": 16}, (*MOE, *SHARED, *MLA, *MLA_MOE)),
    "gdn+moe+shared": ("qwen3-next-80b-a3b", {"num_moe_experts": 16}, (*MOE, *SHARED, *GDN)),
    "gated gqa+moe+shared": ("qwen3-next-80b-a3b", {"num_moe_experts": 16, "linear_attention_freq": [0]}, (*MOE, *SHARED)),
    "gqa+moe, sink and biases": ("gpt-oss-20b", {"num_moe_experts": 8, "window_attn_skip_freq": None, "window_size": None}, MOE),
    "gqa+moe, sliding window": ("gpt-oss-20b", {"num_moe_experts": 8, "window_attn_skip_freq": None}, MOE),
    "gqa+dense": ("llama3-8b", {}, DENSE),
    "gqa+moe+shared, sigmoid router": ("glm-4.5-air", {"num_moe_experts": 16}, (*MOE, *SHARED)),
    "gqa without rotary embedding": ("nemotron-3-nano-30b-a3b", {**HYBRID, "hybrid_layer_pattern": "*"}, (None, ["core_attn"], FULL)),
    "moe+shared, squared relu": ("nemotron-3-nano-30b-a3b", {**HYBRID, "hybrid_layer_pattern": "E", "num_moe_experts": 16}, (*FEW, *SHARED)),
}  # fmt: skip
"""Name -> (catalog model, its changes, recompute sets)."""
LAYOUTS: dict[str, tuple[str, dict[str, Any], tuple[Any, ...]]] = {
    "no auxiliary loss": ("gqa+moe", {"megatron": {"model.moe_aux_loss_coeff": 0.0}}, FEW),
    "activation not fused": ("gqa+moe", {"megatron": {"model.bias_activation_fusion": False}}, (*FEW, ["moe_act", "layernorm"])),
    "shared, activation not fused": ("mla+moe+shared", {"megatron": {"model.bias_activation_fusion": False}}, (*FEW, *SHARED)),
    "dense, activation not fused": ("gqa+dense", {"megatron": {"model.bias_activation_fusion": False}}, (None, ["mlp"])),
    "squared relu not fused": ("moe+shared, squared relu", {"megatron": {"model.use_fused_weighted_squared_relu": False}}, FEW),
    "allgather": ("gqa+moe", {"dispatcher": "allgather"}, FEW),
    "tp2": ("gqa+moe", {"tp": 2, "etp": 1}, MOE),
    "tp4": ("gqa+moe", {"tp": 4, "etp": 1}, FEW),
    "tp4 etp4": ("gqa+moe", {"tp": 4, "etp": 4}, MOE),
    "tp2 allgather": ("gqa+moe", {"tp": 2, "etp": 1, "dispatcher": "allgather"}, FEW),
    "tp2 etp2 allgather": ("gqa+moe", {"tp": 2, "etp": 2, "dispatcher": "allgather"}, FEW),
    "tp2 mla": ("mla+moe+shared", {"tp": 2, "etp": 1}, (*FEW, *SHARED, *MLA)),
    "tp2 mla dense": ("mla+dense", {"tp": 2}, (None, ["mlp"], ["mla_up_proj"])),
    "tp2 gdn": ("gdn+moe+shared", {"tp": 2, "etp": 1}, (*FEW, *GDN)),
    "tp2 gpt-oss": ("gqa+moe, sink and biases", {"tp": 2, "etp": 1}, FEW),
    "tp4 dense": ("gqa+dense", {"tp": 4}, DENSE),
}
"""Name -> (entry of MODELS, layout, recompute sets)."""

ENDS: dict[str, Any] = {
    "model": "deepseek-v3", "gpu": "H100", "num_gpus": 1, "num_layers": 1, "mbs": 1, "gbs": 1, "moe_layer_freq": [0, 0],
    "dispatcher": "alltoall", "num_moe_experts": 16, "seq_length": 64,
}  # fmt: skip
"""One dense layer with embedding, final norm and head, for what MTP and the head add."""
ENDS_SETS = {f"mtp {mtp}, {recompute or 'none'}": (mtp, recompute) for mtp in (0, 1) for recompute in (None, "full")}
ENDS_VOCAB = 512


def cases() -> dict[str, tuple[dict[str, Any], tuple[Any, ...]]]:
    """Name -> (run without recompute and length, recompute sets)."""
    out = {name: (_run(model, changes, {}), sets) for name, (model, changes, sets) in MODELS.items()}
    for name, (base, layout, sets) in LAYOUTS.items():
        model, changes, _ = MODELS[base]
        out[f"{base}; {name}"] = (_run(model, changes, layout), sets)
    return out


def _run(model: str, changes: dict[str, Any], layout: dict[str, Any]) -> dict[str, Any]:
    moe = {"moe_layer_freq": 1} if "num_moe_experts" in changes else {}
    tp = layout.get("tp", 1)
    fixed = {"gpu": "H100", "num_gpus": tp, "num_layers": 1, "mtp": 0, "mbs": 1, "gbs": 1, "sp": tp > 1}
    return {"model": model, **fixed, **moe, "dispatcher": "alltoall", **changes, **layout}


def label(recompute: Any) -> str:
    """How a recompute set is named in the golden file."""
    if recompute is None:
        return "none"
    return f"full {recompute['method']}" if isinstance(recompute, dict) else "+".join(recompute)
