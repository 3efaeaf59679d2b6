"""`Architecture`: the shape of a model in Megatron-Core's own field names, and which kind each layer is.

Owns nothing but shape; parameters, activations and FLOPs are computed elsewhere from it.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from moe_long_context.errors import shorten

MAX_LAYERS = 1024
MAX_DIM = 1 << 20
MAX_VOCAB = 1 << 24

AttentionKind = Literal["gqa", "mla", "gdn", "mamba", "none"]
FfnKind = Literal["dense", "moe", "none"]

_FREQ_TERM = re.compile(r"^\[\s*([01](?:\s*,\s*[01])*)\s*\](?:\s*\*\s*(\d{1,4}))?$")


class LayerKind(NamedTuple):
    """What one decoder layer is made of. Layers of equal kind cost the same."""

    attention: AttentionKind
    ffn: FfnKind
    windowed: bool = False
    indexer: bool = False


class Architecture(BaseModel):
    """Model shape. Sizes are element counts; names and defaults are those of Megatron-Core's TransformerConfig."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_layers: int = Field(ge=1, le=MAX_LAYERS)
    hidden_size: int = Field(ge=1, le=MAX_DIM)
    ffn_hidden_size: int = Field(ge=1, le=MAX_DIM, description="width of the dense MLP layers")
    num_attention_heads: int = Field(ge=1, le=4096)
    num_query_groups: int = Field(ge=1, le=4096)
    kv_channels: int = Field(ge=1, le=8192)
    vocab_size: int = Field(ge=1, le=MAX_VOCAB)
    max_position_embeddings: int | None = Field(default=None, ge=1, description="context the model was trained for")

    normalization: Literal["RMSNorm", "LayerNorm"] = "RMSNorm"
    layernorm_epsilon: float = 1e-6
    share_embeddings_and_output_weights: bool = False
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    gated_linear_unit: bool = True
    activation_func: Literal["silu", "gelu", "quick_gelu", "squared_relu"] = "silu"
    qk_layernorm: bool = False
    qk_layernorm_span: Literal["head", "rank", "all"] = Field(
        default="head",
        description="what one Q or K norm covers: a head; the heads of a TP rank (MiniMax-M2); all heads (OLMoE)",
    )
    qk_l2_norm: bool = False
    attention_output_gate: bool = False

    position_embedding_type: Literal["rope", "yarn", "mrope", "none", "learned_absolute"] = "rope"
    rotary_base: float = Field(default=10000.0, gt=0)
    rotary_percent: float = Field(default=1.0, gt=0, le=1)
    rope_type: Literal["rope", "yarn"] = "rope"
    rotary_scaling_factor: float = Field(default=1.0, gt=0)
    original_max_position_embeddings: int | None = Field(default=None, ge=1)
    no_rope_freq: int | None = Field(default=None, ge=1)

    softmax_type: Literal["vanilla", "off-by-one", "learnable"] = "vanilla"
    window_size: int | None = Field(
        default=None, ge=1, description="tokens a windowed layer sees, its own included; Megatron-Core writes (n-1, 0)"
    )
    window_attn_skip_freq: int | None = Field(
        default=None, ge=1, description="every n-th layer is not windowed; None with a window = all windowed"
    )

    multi_latent_attention: bool = False
    q_lora_rank: int | None = Field(default=None, ge=1, le=MAX_DIM)
    kv_lora_rank: int | None = Field(default=None, ge=1, le=MAX_DIM)
    qk_head_dim: int | None = Field(default=None, ge=1, le=8192)
    qk_pos_emb_head_dim: int | None = Field(default=None, ge=1, le=8192)
    v_head_dim: int | None = Field(default=None, ge=1, le=8192)

    experimental_attention_variant: Literal["gated_delta_net", "dsa"] | None = None
    linear_attention_freq: int | tuple[int, ...] | None = Field(
        default=None, description="every n-th layer is softmax attention; or one entry a layer, 1 = linear"
    )
    linear_conv_kernel_dim: int = Field(default=4, ge=1, le=64)
    linear_key_head_dim: int = Field(default=128, ge=1, le=8192)
    linear_value_head_dim: int = Field(default=128, ge=1, le=8192)
    linear_num_key_heads: int = Field(default=16, ge=1, le=4096)
    linear_num_value_heads: int = Field(default=32, ge=1, le=4096)
    dsa_indexer_n_heads: int | None = Field(default=None, ge=1, le=4096)
    dsa_indexer_head_dim: int | None = Field(default=None, ge=1, le=8192)
    dsa_indexer_topk: int | None = Field(default=None, ge=1)
    dsa_indexer_topk_freq: int = Field(default=1, ge=1)
    dsa_indexer_skip_topk_offset: int = Field(default=0, ge=0)

    num_moe_experts: int | None = Field(default=None, ge=1, le=65536)
    moe_router_topk: int = Field(default=2, ge=1, le=65536)
    moe_ffn_hidden_size: int | None = Field(default=None, ge=1, le=MAX_DIM)
    moe_shared_expert_intermediate_size: int | None = Field(default=None, ge=1, le=MAX_DIM)
    moe_shared_expert_gate: bool = False
    moe_layer_freq: int | tuple[int, ...] = 1
    moe_router_score_function: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    moe_router_enable_expert_bias: bool = False
    moe_router_pre_softmax: bool = False
    moe_router_num_groups: int | None = Field(default=None, ge=1)
    moe_router_group_topk: int | None = Field(default=None, ge=1)
    moe_router_topk_scaling_factor: float | None = None
    moe_latent_size: int | None = Field(default=None, ge=1, le=MAX_DIM)

    mtp_num_layers: int | None = Field(default=None, ge=1, le=16)
    mtp_use_repeated_layer: bool = Field(default=False, description="all MTP depths share one set of weights")
    mtp_hybrid_override_pattern: str | None = Field(
        default=None, max_length=64, description="layers of one MTP depth of a hybrid model"
    )

    hybrid_layer_pattern: str | None = Field(
        default=None, max_length=MAX_LAYERS, description="M = Mamba, * = attention, - = dense MLP, E = MoE"
    )
    mamba_num_heads: int | None = Field(default=None, ge=1, le=8192)
    mamba_head_dim: int = Field(default=64, ge=1, le=8192)
    mamba_state_dim: int = Field(default=128, ge=1, le=8192)
    mamba_num_groups: int = Field(default=8, ge=1, le=4096)

    @field_validator("moe_layer_freq", mode="before")
    @classmethod
    def _read_freq(cls, value: Any) -> Any:
        return layer_freq_from_text(value) if isinstance(value, str) else value

    @field_validator("window_size", mode="before")
    @classmethod
    def _read_window(cls, value: Any) -> Any:
        pair = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], int)
        return value[0] + 1 if pair else value

    @model_validator(mode="after")
    def _whole(self) -> Architecture:
        if self.multi_latent_attention and None in (
            self.kv_lora_rank, self.qk_head_dim, self.qk_pos_emb_head_dim, self.v_head_dim,
        ):  # fmt: skip
            raise ValueError("MLA needs kv_lora_rank, qk_head_dim, qk_pos_emb_head_dim and v_head_dim")
        if self.num_moe_experts and not self.moe_ffn_hidden_size:
            raise ValueError("num_moe_experts needs moe_ffn_hidden_size")
        if isinstance(self.moe_layer_freq, tuple) and any(x not in (0, 1) for x in self.moe_layer_freq):
            raise ValueError("moe_layer_freq as a list holds only 0 and 1")
        for pattern in (self.hybrid_layer_pattern, self.mtp_hybrid_override_pattern):
            if pattern and set(pattern) - set(_HYBRID):
                raise ValueError("hybrid_layer_pattern and mtp_hybrid_override_pattern hold only M, *, - and E")
        if self.hybrid_layer_pattern and "M" in self.hybrid_layer_pattern and not self.mamba_num_heads:
            raise ValueError("a hybrid_layer_pattern with M needs mamba_num_heads")
        if self.experimental_attention_variant == "dsa" and not (
            self.dsa_indexer_n_heads and self.dsa_indexer_head_dim
        ):
            raise ValueError("dsa needs dsa_indexer_n_heads and dsa_indexer_head_dim")
        return self

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, name) for name in type(self).model_fields))

    def __hash__(self) -> int:
        """Computed once: caches over layouts look the same shape up thousands of times."""
        return self._hash

    @cached_property
    def moe_layers(self) -> tuple[bool, ...]:
        """Whether each decoder layer is MoE, as Megatron-Core reads moe_layer_freq (int n: layer 0, n, 2n ...)."""
        if not self.num_moe_experts:
            return (False,) * self.num_layers
        if isinstance(self.moe_layer_freq, int):
            every = max(self.moe_layer_freq, 1)
            return tuple(i % every == 0 for i in range(self.num_layers))
        return tuple(bool(x) for x in self.moe_layer_freq[: self.num_layers])

    @cached_property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each decoder layer, first to last."""
        if self.hybrid_layer_pattern:
            return tuple(_HYBRID[c] for c in self.hybrid_layer_pattern[: self.num_layers])
        moe = self.moe_layers
        return tuple(
            LayerKind(
                self._attention(i), "moe" if i < len(moe) and moe[i] else "dense", self._windowed(i), self._indexes(i)
            )
            for i in range(self.num_layers)
        )

    def _attention(self, index: int) -> AttentionKind:
        if self.experimental_attention_variant == "gated_delta_net":
            freq = self.linear_attention_freq or 1
            linear = (index + 1) % freq != 0 if isinstance(freq, int) else bool(freq[index : index + 1] == (1,))
            return "gdn" if linear else "gqa"
        return "mla" if self.multi_latent_attention else "gqa"

    def _windowed(self, index: int) -> bool:
        if self.window_size is None:
            return False
        return self.window_attn_skip_freq is None or (index + 1) % self.window_attn_skip_freq != 0

    def _indexes(self, index: int) -> bool:
        """Whether a sparse-attention layer has its own indexer: megatron-core dsa.py, is_dsa_skip_topk_layer."""
        if self.experimental_attention_variant != "dsa":
            return False
        return max(index + 1 - max(self.dsa_indexer_skip_topk_offset, 1), 0) % self.dsa_indexer_topk_freq == 0

    @cached_property
    def mtp_layer_kind(self) -> LayerKind:
        """The layer inside each MTP depth: the last decoder layer's spec, numbered as layer 1 of its own.

        Of a hybrid model, the attention and the feed-forward part of its MTP pattern as one layer.
        """
        if self.mtp_hybrid_override_pattern:
            kinds = [_HYBRID[c] for c in self.mtp_hybrid_override_pattern]
            attention = next((k for k in kinds if k.attention != "none"), kinds[0]).attention
            return LayerKind(attention, next((k for k in kinds if k.ffn != "none"), kinds[0]).ffn)
        last = self.layer_kinds[-1]
        return last._replace(windowed=self._windowed(0), indexer=self._indexes(0))

    @property
    def is_moe(self) -> bool:
        """Whether any layer has experts."""
        return "E" in self.hybrid_layer_pattern if self.hybrid_layer_pattern else any(self.moe_layers)

    @property
    def glu_factor(self) -> int:
        """2 when fc1 holds gate and up side by side, else 1."""
        return 2 if self.gated_linear_unit else 1


_HYBRID = {
    "M": LayerKind("mamba", "none"),
    "*": LayerKind("gqa", "none"),
    "-": LayerKind("none", "dense"),
    "E": LayerKind("none", "moe"),
}


def layer_freq_from_text(text: str) -> int | tuple[int, ...]:
    """Read Megatron-LM's moe_layer_freq notation without evaluating it: "1", "([0]*3+[1]*58)".

    Raises:
        ValueError: anything but an integer or a sum of 0/1 lists times a count.
    """
    text = text.strip()
    if text.isdigit():
        return int(text)
    body = text[1:-1] if text.startswith("(") and text.endswith(")") and text.count("(") == 1 else text
    out: list[int] = []
    for term in body.split("+"):
        match = _FREQ_TERM.match(term.strip())
        if not match:
            raise ValueError(f"moe_layer_freq {shorten(text)!r} is not like 1 or ([0]*3+[1]*58)")
        entries, count = match.group(1).split(","), int(match.group(2) or 1)
        if len(out) + len(entries) * count > MAX_LAYERS:
            raise ValueError(f"moe_layer_freq names more than {MAX_LAYERS} layers")
        out += [int(entry) for entry in entries] * count
    return tuple(out)
