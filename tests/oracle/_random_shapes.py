"""Seeded random small models and layouts: combinations of shape options that no catalog model has."""

from __future__ import annotations

import random
from typing import Any

Written = dict[str, Any]
SEED = 20261201
RANDOM_RUNS = 400


def random_runs(count: int) -> dict[str, Written]:
    """`count` run configurations; some are refused by the framework, which is for the caller to see."""
    draw = random.Random(SEED)
    return {f"random {index}": _run(draw) for index in range(count)}


def _run(draw: random.Random) -> Written:
    layers = draw.choice([4, 8])
    shape = _attention(draw, layers) | _ffn(draw, layers)
    pp = draw.choice([1, 1, 2, 4])
    sizes = {
        "tp": draw.choice([1, 2, 4]),
        "pp": pp,
        "vpp": draw.choice([1, 2]) if pp > 1 and layers % (2 * pp) == 0 else 1,
        "ep": draw.choice([1, 2, 4]) if "num_moe_experts" in shape else 1,
        "etp": draw.choice([1, 2]),
        "num_gpus": 64,
    }
    vocab = {"should_pad": draw.random() < 0.5, "divisible_by": draw.choice([64, 128])}
    return {"model": shape, "gpu": "H100", "seq_length": 256, "vocab": vocab, **sizes}


def _attention(draw: random.Random, layers: int) -> Written:
    shape: Written = {
        "num_layers": layers,
        "hidden_size": draw.choice([64, 128]),
        "num_attention_heads": 8,
        "num_query_groups": draw.choice([1, 2, 4, 8]),
        "kv_channels": draw.choice([16, 24]),
        "vocab_size": draw.choice([256, 1000, 1024]),
        "normalization": draw.choice(["RMSNorm", "RMSNorm", "LayerNorm"]),
        "share_embeddings_and_output_weights": draw.random() < 0.3,
        "mtp_num_layers": draw.choice([None, None, 1, 2]),
    }
    kind = draw.choice(["gqa", "gqa", "mla", "gdn", "dsa"])
    if kind in ("mla", "dsa"):
        shape |= {
            "multi_latent_attention": True,
            "qk_layernorm": kind == "dsa" or draw.random() < 0.7,
            "q_lora_rank": 32 if kind == "dsa" else draw.choice([None, 32]),
            "kv_lora_rank": 24,
            "qk_head_dim": 16,
            "qk_pos_emb_head_dim": 8,
            "v_head_dim": draw.choice([16, 20]),
        }
    if kind == "dsa":
        shape |= {
            "experimental_attention_variant": "dsa",
            "dsa_indexer_n_heads": 4,
            "dsa_indexer_head_dim": 16,
            "dsa_indexer_topk": 32,
        }
    if kind == "gdn":
        shape |= {
            "experimental_attention_variant": "gated_delta_net",
            "linear_attention_freq": draw.choice([2, 4]),
            "linear_key_head_dim": 16,
            "linear_value_head_dim": draw.choice([16, 32]),
            "linear_num_key_heads": 4,
            "linear_num_value_heads": draw.choice([4, 8]),
        }
    if kind in ("gqa", "gdn"):
        shape |= {
            "qk_layernorm": draw.random() < 0.5,
            "add_qkv_bias": draw.random() < 0.3,
            "attention_output_gate": draw.random() < 0.3,
            "softmax_type": draw.choice(["vanilla", "vanilla", "learnable"]),
        }
    return shape


def _ffn(draw: random.Random, layers: int) -> Written:
    gated = draw.random() < 0.7
    shape: Written = {
        "ffn_hidden_size": draw.choice([96, 128]),
        "gated_linear_unit": gated,
        "activation_func": "silu" if gated else "squared_relu",
        "add_bias_linear": draw.random() < 0.3,
    }
    if draw.random() < 0.75:
        shape |= {
            "num_moe_experts": draw.choice([4, 8]),
            "moe_router_topk": 2,
            "moe_ffn_hidden_size": draw.choice([32, 48]),
            "moe_layer_freq": draw.choice([1, 2, (0,) * 2 + (1,) * (layers - 2)]),
            "moe_router_enable_expert_bias": draw.random() < 0.4,
            "moe_router_score_function": "sigmoid",
            "moe_latent_size": draw.choice([None, None, 16]),
        }
        if draw.random() < 0.5:
            shape |= {"moe_shared_expert_intermediate_size": 32, "moe_shared_expert_gate": draw.random() < 0.5}
    return shape
