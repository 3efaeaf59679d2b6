"""Model FLOPs as Megatron counts them, so that TFLOP/s/GPU means what Megatron prints.

Owns the counter only; what the GPU really executes (recompute, FP8 casts, padding) is `speed.layers`.
Source: megatron-bridge 0.6.2 megatron/bridge/training/utils/flop_utils.py, num_floating_point_operations, term by term
and in its order, so that the result is equal to the last bit.

Conventions of the counter, kept as they are:
- causal attention counts half of the S x S square; backward counts twice the forward; recompute is not counted;
- an MTP depth counts one more layer of the last layer's kind and one more logits GEMM;
- gated-delta-net counts a state of head dimension squared per value head, whatever the chunk size of the kernel;
- a sliding window counts its exact average causal context in GQA layers; the vocabulary counts as padded;
- DSA counts as full MLA attention; a hybrid (Mamba) pattern counts Mamba with an inner width of twice the hidden size.
"""

from __future__ import annotations

from functools import lru_cache

from moe_long_context.catalog.architecture import Architecture

FORWARD_AND_BACKWARD = 3
FMA = 2
MAKE_VOCAB_SIZE_DIVISIBLE_BY = 128


def padded_vocab(vocab_size: int, tp: int, divisible_by: int = MAKE_VOCAB_SIZE_DIVISIBLE_BY) -> int:
    """The vocabulary as the counter pads it: up to a multiple of `divisible_by` * TP, even where the model does not.

    Source: megatron/bridge/utils/vocab_utils.py, calculate_padded_vocab_size.
    """
    multiple = divisible_by * tp
    return -(-vocab_size // multiple) * multiple


@lru_cache(maxsize=4096)
def flops_per_token(arch: Architecture, seq_length: int, vocab_size: int) -> float:
    """Model FLOPs of one token's forward and backward; `vocab_size` is already padded."""
    if arch.hybrid_layer_pattern:
        return _hybrid(arch, seq_length, vocab_size)
    depths = arch.mtp_num_layers or 0
    hidden = arch.hidden_size
    return (
        FORWARD_AND_BACKWARD * FMA * hidden * _mlp_terms(arch, depths)
        + _attention_terms(arch, seq_length, depths)
        + FORWARD_AND_BACKWARD * FMA * depths * (3 * hidden + 2 * hidden * hidden)
        + FORWARD_AND_BACKWARD * FMA * hidden * vocab_size * (depths + 1)
    )


def model_flops(arch: Architecture, seq_length: int, sequences: int, tp: int = 1) -> float:
    """Model FLOPs of a step of `sequences` sequences, as num_floating_point_operations(cfg, batch_size) gives them."""
    tokens = sequences * seq_length
    if arch.hybrid_layer_pattern:
        return _hybrid_exact(arch, seq_length, sequences, padded_vocab(arch.vocab_size, tp))
    return tokens * flops_per_token(arch, seq_length, padded_vocab(arch.vocab_size, tp))


def megatron_lm_flops(arch: Architecture, seq_length: int, sequences: int, tp: int = 1) -> float:
    """Model FLOPs of a step by Megatron-LM's counter, which differs from Bridge's in two places.

    It counts windowed layers as full attention, and takes the kind of an MTP layer in a gated-delta-net model from its
    position in the pattern instead of from the last layer. Equal up to the order of the additions.
    Source: megatron-core 0.19.2 megatron/training/training.py, num_floating_point_operations.
    """
    total = model_flops(arch.model_copy(update={"window_size": None}), seq_length, sequences, tp)
    depths, freq = arch.mtp_num_layers or 0, arch.linear_attention_freq
    if arch.experimental_attention_variant != "gated_delta_net" or not isinstance(freq, int):
        return total
    layers = arch.num_layers
    linear = sum((layers + depth + 1) % freq != 0 for depth in range(depths))
    swapped = linear - depths * (arch.layer_kinds[-1].attention == "gdn")
    return total + sequences * seq_length * swapped * (_gdn(arch) - _gqa(arch, seq_length, 1))


def _mlp_terms(arch: Architecture, depths: int) -> float:
    """Sum over layers of FFN width x projections [elements per hidden unit]: 3 projections with a gate, 2 without."""
    projections = 3 if arch.gated_linear_unit else 2
    moe = sum(arch.moe_layers)
    last_is_moe = int(arch.moe_layers[-1]) if arch.num_moe_experts else 0
    moe += last_is_moe * depths
    dense = arch.num_layers - sum(arch.moe_layers) + (1 - last_is_moe) * depths
    if not arch.num_moe_experts:
        dense, moe = arch.num_layers, 0
    width, shared = arch.moe_ffn_hidden_size or arch.ffn_hidden_size, arch.moe_shared_expert_intermediate_size or 0
    topk = arch.moe_router_topk if arch.num_moe_experts else 0
    routed: float = width * topk * projections
    if arch.moe_latent_size is not None:
        routed = routed * arch.moe_latent_size / arch.hidden_size + 2 * arch.moe_latent_size
    return (arch.ffn_hidden_size * projections) * dense + routed * moe + (shared * projections) * moe


def _attention_terms(arch: Architecture, seq_length: int, depths: int) -> float:
    layers = arch.num_layers + depths
    term = _mla(arch, seq_length, layers) if arch.multi_latent_attention else _gqa(arch, seq_length, layers)
    if arch.experimental_attention_variant != "gated_delta_net":
        return term
    pattern = [int(kind.attention == "gdn") for kind in arch.layer_kinds]
    gdn_layers = sum(pattern) + pattern[-1] * depths
    return _gdn(arch) * gdn_layers + term / layers * (layers - gdn_layers)


def _mla(arch: Architecture, seq_length: int, layers: int) -> float:
    """MLA: low-rank q and kv (each with its norm), rope key, output projection, half the S x S core."""
    hidden, heads = arch.hidden_size, arch.num_attention_heads
    nope, rope, value = arch.qk_head_dim or 0, arch.qk_pos_emb_head_dim or 0, arch.v_head_dim or 0
    if arch.q_lora_rank is None:
        query = hidden * heads * (nope + rope)
    else:
        query = arch.q_lora_rank * (hidden + heads * (nope + rope) + 1)
    key_value = (arch.kv_lora_rank or 0) * (hidden + heads * (nope + value) + 1)
    core = seq_length * (heads * (nope + rope)) / 2 + seq_length * heads * value / 2
    per_layer = query + key_value + hidden * rope + (heads * value) * hidden
    return FORWARD_AND_BACKWARD * FMA * layers * (per_layer + core)


def _gqa(arch: Architecture, seq_length: int, layers: int) -> float:
    """GQA: q, k, v and output projections, the optional output gate, and the causal core (windowed where it is)."""
    hidden = arch.hidden_size
    query = arch.kv_channels * arch.num_attention_heads
    key = arch.kv_channels * arch.num_query_groups
    gate = query if arch.attention_output_gate else 0
    projections = hidden * (query + key + key + gate) + query * hidden
    full = query * seq_length / 2 * 2
    if arch.window_size is None:
        return FORWARD_AND_BACKWARD * FMA * layers * (projections + full)
    freq = arch.window_attn_skip_freq
    windowed = layers if freq is None else sum((i + 1) % freq != 0 for i in range(layers))
    local = query * window_context(arch.window_size, seq_length) * 2
    return FORWARD_AND_BACKWARD * FMA * (
        (layers - windowed) * (projections + full) + windowed * (projections + local)
    )  # fmt: skip


def window_context(window: int, seq_length: int) -> float:
    """Average keys a query sees under a causal window of W keys: W - W(W-1)/(2T), or T/2 when the window covers T."""
    if window < seq_length:
        return window - window * (window - 1) / (2 * seq_length)
    return seq_length / 2


def _gdn(arch: Architecture) -> float:
    """Gated delta net: input projections (q, k, v, z, b, a), short convolution, state update, output projection."""
    key = arch.linear_key_head_dim * arch.linear_num_key_heads
    value = arch.linear_value_head_dim * arch.linear_num_value_heads
    heads = arch.linear_num_value_heads
    return FORWARD_AND_BACKWARD * FMA * (
        arch.hidden_size * (2 * key + 2 * value + 2 * heads)
        + arch.linear_conv_kernel_dim * (2 * key + value)
        + heads * (arch.linear_value_head_dim**2) * 4
        + arch.hidden_size * value
    )  # fmt: skip


def _hybrid(arch: Architecture, seq_length: int, vocab_size: int) -> float:
    return _hybrid_exact(arch, seq_length, 1, vocab_size) / seq_length


def _hybrid_exact(arch: Architecture, seq_length: int, sequences: int, vocab_size: int) -> float:
    """A hybrid pattern, MTP depths appended: M = Mamba, * = attention, - = dense MLP, E = MoE."""
    main, hidden = arch.hybrid_layer_pattern or "", arch.hidden_size
    depths = arch.mtp_num_layers or 0
    pattern = main + (arch.mtp_hybrid_override_pattern or "") * depths
    attention, windowed = pattern.count("*"), _hybrid_windowed(arch, main)
    forward = (
        (attention - windowed) * _hybrid_attention(arch, seq_length, sequences, seq_length)
        + (_hybrid_windowed_flops(arch, seq_length, sequences, windowed) if windowed else 0)
        + pattern.count("-") * _hybrid_mlp(arch, seq_length, sequences)
        + pattern.count("M") * _hybrid_mamba(arch, seq_length, sequences)
        + pattern.count("E") * _hybrid_moe(arch, seq_length, sequences)
        + 0
        + (2 * sequences * seq_length * hidden * vocab_size * (1 + depths))
    )
    return forward * FORWARD_AND_BACKWARD


def _hybrid_windowed(arch: Architecture, pattern: str) -> int:
    if arch.window_size is None:
        return 0
    freq = arch.window_attn_skip_freq
    return sum(c == "*" and (freq is None or number % freq != 0) for number, c in enumerate(pattern, start=1))


def _hybrid_windowed_flops(arch: Architecture, seq_length: int, sequences: int, layers: int) -> float:
    context = 2 * window_context(arch.window_size or seq_length, seq_length)
    return layers * _hybrid_attention(arch, seq_length, sequences, context)


def _hybrid_attention(arch: Architecture, seq_length: int, sequences: int, context: float) -> float:
    hidden, heads = arch.hidden_size, arch.num_attention_heads
    ratio = arch.kv_channels * heads / hidden
    return (
        4 * sequences * seq_length * hidden * ratio * (hidden + (hidden * (arch.num_query_groups / heads)))
        + 2 * sequences * seq_length * hidden * ratio * context
    )


def _hybrid_mlp(arch: Architecture, seq_length: int, sequences: int) -> float:
    scale = 3.0 / 2.0 if arch.gated_linear_unit else 1.0
    expansion = arch.ffn_hidden_size / arch.hidden_size
    return 4 * expansion * scale * sequences * seq_length * arch.hidden_size**2


def _hybrid_mamba(arch: Architecture, seq_length: int, sequences: int) -> float:
    """Input projection, scan and output projection; the counter takes 2 x hidden as inner width whatever the heads."""
    hidden, state = arch.hidden_size, arch.mamba_state_dim
    inner = 2 * hidden
    heads = arch.mamba_num_heads or 128
    return (
        (2 * sequences * seq_length * hidden * (2 * inner + 2 * arch.mamba_num_groups * state + heads))
        + (7 * sequences * seq_length * inner * state)
        + (2 * sequences * seq_length * inner * hidden)
    )


def _hybrid_moe(arch: Architecture, seq_length: int, sequences: int) -> float:
    scale = 3.0 / 2.0 if arch.gated_linear_unit else 1.0
    width = arch.moe_ffn_hidden_size or arch.ffn_hidden_size
    routed_hidden = arch.hidden_size if arch.moe_latent_size is None else arch.moe_latent_size
    routed = 4 * sequences * seq_length * routed_hidden * width * arch.moe_router_topk * scale
    if arch.moe_latent_size is not None:
        routed += 4 * sequences * seq_length * arch.hidden_size * arch.moe_latent_size
    shared = 4 * sequences * seq_length * arch.hidden_size * (arch.moe_shared_expert_intermediate_size or 0) * scale
    return routed + shared
