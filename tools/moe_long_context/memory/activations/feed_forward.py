"""Rows of the second half of a layer: its norm, a dense MLP, or router, dispatch, experts and shared experts."""

from __future__ import annotations

from moe_long_context.memory.activations.attention import norm
from moe_long_context.memory.activations.facts import BF16, FP32, INT32, INT64, Facts, SavedTensor

MLP = frozenset({"mlp"})
MOE = frozenset({"moe"})
ACT = frozenset({"moe", "moe_act"})
SHARED = frozenset({"moe", "shared_experts"})


def dense(x: Facts) -> list[SavedTensor]:
    """A dense MLP with its norm fused into fc1; recomputing it frees the norm's output too."""
    a, width = x.arch, x.arch.ffn_hidden_size / x.tp
    return [
        *norm(x, "pre_mlp_layernorm", "mlp_norm", fused=True, freed=MLP),
        SavedTensor("fc1 output", "mlp", "[t, 2f]", x.t * width * a.glu_factor * BF16, MLP),
        SavedTensor("fc2 input", "mlp", "[t, f]", x.t * width * x.linear_bytes, MLP),
        *_halves(x, "activation", "mlp", x.t * width, MLP),
    ]


def _halves(x: Facts, name: str, module: str, elements: float, freed: frozenset[str]) -> list[SavedTensor]:
    """What a gated activation that is not fused keeps beside fc1's output: both factors of its product, the activated
    half and the linear half plus glu_linear_offset (megatron-core transformer/mlp.py, moe/experts.py `glu`)."""
    if x.activation_fused or x.arch.glu_factor == 1:
        return []
    size = elements * BF16
    return [SavedTensor(f"{name}, {half} half", module, "[t, f]", size, freed) for half in ("activated", "linear")]


def moe(x: Facts) -> list[SavedTensor]:
    """A MoE layer; what stays under `moe` recompute is the input of the norm and the norm's output."""
    rows = norm(x, "pre_mlp_layernorm", "mlp_norm", fused=False)
    return [*rows, *_router(x), *_experts(x), *_shared_experts(x)]


def _router(x: Facts) -> list[SavedTensor]:
    """Scores, top-k and auxiliary loss of the unfused router (megatron-core transformer/moe/{router,moe_utils}.py)."""
    a = x.arch
    experts, k = a.num_moe_experts or 0, a.moe_router_topk
    sums = a.moe_router_score_function == "sigmoid"
    sizes = {"top-k indices": ("[s, k]", k * INT64), "top-k scores": ("[s, k]", k * FP32)}
    if sums or a.moe_router_pre_softmax:
        sizes["expert scores"] = ("[s, E]", experts * FP32)
    if sums and k > 1:
        sizes["sum of top-k scores"] = ("[s]", FP32)
    if a.moe_router_num_groups and a.moe_router_group_topk:
        best = a.moe_router_num_groups * (k // a.moe_router_group_topk)
        sizes["best experts of each group"] = ("[s, groups, k / kept groups]", best * INT64)
        sizes["kept groups"] = ("[s, kept groups]", a.moe_router_group_topk * INT64)
        sizes["mask of kept groups"] = ("[s, E]", experts)
    if x.aux_loss:
        sizes["auxiliary loss: indices"] = ("[s, k]", k * INT64)
        sizes["auxiliary loss: scores"] = ("[s, E]", experts * FP32)
        if sums:
            sizes["auxiliary loss: sum of scores"] = ("[s]", FP32)
    return [SavedTensor(name, "router", shape, x.s * size, MOE) for name, (shape, size) in sizes.items()]


def _experts(x: Facts) -> list[SavedTensor]:
    """Fused permutation and grouped linears; a clamped activation keeps fc1's output before and after the clamp."""
    a, d = x.arch, x.dispatched
    width, hidden = (a.moe_ffn_hidden_size or 0) / x.etp, a.moe_latent_size or a.hidden_size
    fc1, module = d * width * a.glu_factor * BF16, "experts"
    rows = [
        SavedTensor(
            "permutation map", "token_dispatcher", "[s, 2E + 1]",
            x.s * (2 * (a.num_moe_experts or 0) + 1) * INT32, MOE,
        ),
        SavedTensor(
            "expert fc1 input", module, "[D, h]", d * hidden * x.linear_bytes, MOE, frozenset({"expert_fc1"})
        ),
        SavedTensor("expert fc1 output", module, "[D, 2f]", fc1, MOE, frozenset({"moe_act"})),
        SavedTensor("expert probabilities", module, "[D]", d * x.router_bytes, MOE),
        SavedTensor("expert fc2 input", module, "[D, f]", d * width * x.linear_bytes, ACT),
    ]  # fmt: skip
    if x.clamped:
        clamped = fc1 if x.activation_fused else fc1 / a.glu_factor
        rows.append(SavedTensor("expert fc1 output, clamped", module, "[D, 2f]", clamped, ACT))
    if not x.activation_fused:
        rows.append(SavedTensor("expert activation before its probability", module, "[D, f]", d * width * BF16, ACT))
    return rows + _halves(x, "expert activation", module, d * width, ACT)


def _shared_experts(x: Facts) -> list[SavedTensor]:
    """Shared experts and their sigmoid gate."""
    a, module = x.arch, "shared_experts"
    if not a.moe_shared_expert_intermediate_size:
        return []
    width = a.moe_shared_expert_intermediate_size / x.tp
    rows = [
        SavedTensor("shared fc1 output", module, "[t, 2f]", x.t * width * a.glu_factor * BF16, SHARED),
        SavedTensor("shared fc2 input", module, "[t, f]", x.t * width * x.linear_bytes, SHARED),
        *_halves(x, "shared activation", module, x.t * width, SHARED),
    ]
    if x.keeps_both_copies:
        size = x.s * a.hidden_size * x.linear_bytes
        rows.append(SavedTensor("shared fc1 input, quantized", module, "[s, h]", size, SHARED))
    if a.moe_shared_expert_gate:
        rows += [
            SavedTensor("shared expert output", module, "[s, h]", x.s * a.hidden_size * BF16, SHARED),
            SavedTensor("shared expert gate", module, "[s]", x.s * BF16, SHARED),
        ]
    return rows
