"""The scaled-down twin of a run: the same kinds of layers in the same order, few and narrow, on one device.

What stays: attention kind, dense and MoE layers, experts and routing, MTP, recompute, loss, precision-free bf16. What
goes: every parallel size, offload, FP8 and graphs, which one small device cannot show.
"""

from __future__ import annotations

from typing import Any

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig

HIDDEN, FFN, EXPERT_FFN, HEADS, HEAD_DIM, VOCAB = 128, 256, 64, 8, 16, 512
EXPERTS, SEQUENCE, ROUTER_GROUPS = 8, 64, 2
MLA = {"q_lora_rank": 48, "kv_lora_rank": 32, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 16}
LINEAR = {
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
}
MAMBA = {"mamba_num_heads": 8, "mamba_head_dim": 16, "mamba_state_dim": 16, "mamba_num_groups": 2}


def smoke_run(run: Run) -> Run:
    """The twin of a run, resolved."""
    return resolve(smoke_config(run))


def smoke_config(run: Run) -> RunConfig:
    """The configuration of the twin."""
    recompute = run.written.recompute.model_dump(exclude_none=True) if run.written.recompute else None
    return RunConfig.read({
        "model": small_shape(run.arch),
        "gpu": run.written.gpu if isinstance(run.written.gpu, str) else dict(run.written.gpu or {}),
        "num_gpus": 1,
        "gpus_per_node": 1,
        "seq_length": SEQUENCE,
        "micro_batch_size": 1,
        "global_batch_size": 2,
        "precision": "bf16",
        "recompute": recompute,
        "dispatcher": "alltoall" if run.arch.is_moe else None,
        "loss": run.loss,
        "moe": run.written.moe.model_dump(exclude_defaults=True),
    })  # fmt: skip


def small_shape(arch: Architecture) -> dict[str, Any]:
    """The architecture with few layers of every kind it has, and tiny sizes."""
    keep = kept_layers(arch)
    shape = {name: value for name, value in arch.model_dump().items() if value is not None}
    groups = HEADS if arch.num_query_groups == arch.num_attention_heads else HEADS // 4
    shape |= {
        "num_layers": len(keep), "hidden_size": HIDDEN, "ffn_hidden_size": FFN, "num_attention_heads": HEADS,
        "num_query_groups": groups, "kv_channels": HEAD_DIM, "vocab_size": VOCAB, "max_position_embeddings": SEQUENCE,
    }  # fmt: skip
    if arch.num_moe_experts:
        shape |= _experts(arch, keep)
    if arch.multi_latent_attention:
        shape |= {k: v for k, v in MLA.items() if getattr(arch, k) is not None}
        shape |= {"original_max_position_embeddings": SEQUENCE}
    if arch.window_size:
        shape["window_size"] = SEQUENCE // 4
    if arch.experimental_attention_variant == "gated_delta_net":
        shape |= LINEAR
    if arch.hybrid_layer_pattern:
        shape |= {**MAMBA, "hybrid_layer_pattern": "".join(arch.hybrid_layer_pattern[i] for i in keep)}
    return shape


def kept_layers(arch: Architecture) -> list[int]:
    """Indices of two layers of every kind, in their order; all of one period where kinds alternate."""
    period = arch.linear_attention_freq or arch.window_attn_skip_freq or arch.no_rope_freq
    if period and isinstance(period, int) and not arch.hybrid_layer_pattern:
        return list(range(min(period, arch.num_layers)))
    seen: dict[Any, int] = {}
    keep = []
    for index, kind in enumerate(arch.layer_kinds):
        seen[kind] = seen.get(kind, 0) + 1
        if seen[kind] <= 2:
            keep.append(index)
    return keep


def _experts(arch: Architecture, keep: list[int]) -> dict[str, Any]:
    topk = min(arch.moe_router_topk, EXPERTS // 2)
    out: dict[str, Any] = {"num_moe_experts": EXPERTS, "moe_router_topk": topk, "moe_ffn_hidden_size": EXPERT_FFN}
    if not arch.hybrid_layer_pattern:
        out["moe_layer_freq"] = [int(arch.moe_layers[i]) for i in keep]
    if arch.moe_shared_expert_intermediate_size:
        out["moe_shared_expert_intermediate_size"] = EXPERT_FFN
    if arch.moe_router_num_groups:
        out |= {"moe_router_num_groups": ROUTER_GROUPS, "moe_router_group_topk": 1}
        out["moe_router_topk"] = min(topk, EXPERTS // ROUTER_GROUPS)
    if arch.moe_latent_size:
        out["moe_latent_size"] = HIDDEN // 2
    return out
