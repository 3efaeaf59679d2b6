"""The nested sections of a run configuration. Field names and meanings are those of the contract; None = not given."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Dtype = Literal["fp32", "bf16", "fp16", "fp8"]


class Section(BaseModel):
    """Base: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _words(value: Any) -> Any:
    if value is None or value == "none":
        return ()
    if isinstance(value, str):
        return tuple(w for w in value.replace("+", ",").replace(" ", ",").split(",") if w)
    return value


class Recompute(Section):
    """Activation recompute, Megatron-Core's recompute_* fields."""

    granularity: Literal["selective", "full"] | None = Field(
        default=None, description="what is recomputed: named modules, or whole layers"
    )
    method: Literal["uniform", "block"] | None = Field(default=None, description="only with full")
    num_layers: int | None = Field(default=None, ge=1, le=1024, description="only with full")
    modules: tuple[str, ...] | None = Field(
        default=None, max_length=32, description="only with selective; None = the framework's default [core_attn]"
    )

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return {"granularity": "selective", "modules": tuple(value)}
        if isinstance(value, str):
            if value in ("none", ""):
                return {}
            if value in ("full", "selective"):
                return {"granularity": value}
            return {"granularity": "selective", "modules": _words(value)}
        if isinstance(value, dict) and value.get("granularity") == "none":
            return {**value, "granularity": None}
        if isinstance(value, dict) and value.get("modules") and "granularity" not in value:
            return {**value, "granularity": "selective"}
        return value

    @field_validator("modules", mode="before")
    @classmethod
    def _modules(cls, value: Any) -> Any:
        return value if value is None else _words(value)


class Optimizer(Section):
    """Optimizer, its sharding, dtypes and CPU offload."""

    type: Literal["adam", "sgd", "muon", "dist_muon", "lion", "soap"] | None = None
    distributed: bool | None = None
    cpu_offload: bool | None = Field(
        default=None, description="optimizer_cpu_offload; None = on when a fraction is set"
    )
    cpu_offload_fraction: float | None = Field(default=None, ge=0, le=1)
    precision_aware: bool | None = None
    grad_dtype: Dtype | None = None
    moment_dtype: Dtype | None = None
    master_dtype: Dtype | None = None


class ActivationOffload(Section):
    """Fine-grained activation offload (offload_modules)."""

    modules: tuple[str, ...] = Field(default=(), max_length=32)

    @field_validator("modules", mode="before")
    @classmethod
    def _modules(cls, value: Any) -> Any:
        return _words(value)


class CudaGraph(Section):
    """CUDA graphs (cuda_graph_impl, cuda_graph_modules)."""

    impl: Literal["none", "local", "transformer_engine", "full_iteration"] = "none"
    modules: tuple[str, ...] = Field(default=(), max_length=32)

    @field_validator("modules", mode="before")
    @classmethod
    def _modules(cls, value: Any) -> Any:
        return _words(value)


class Overlap(Section):
    """Communication overlap switches."""

    ep_a2a: bool | None = Field(default=None, description="overlap_moe_expert_parallel_comm")
    delay_wgrad: bool | None = Field(default=None, description="delay_wgrad_compute")
    grad_reduce: bool | None = Field(default=None, description="overlap_grad_reduce")
    param_gather: bool | None = Field(default=None, description="overlap_param_gather")
    shared_expert: bool | None = Field(default=None, description="moe_shared_expert_overlap")
    tp_comm: bool | None = Field(default=None, description="tp_comm_overlap")
    p2p: bool | None = Field(default=None, description="overlap_p2p_comm")


class Data(Section):
    """Shape of the batches."""

    packed: bool = False
    variable_length: bool = False


class Moe(Section):
    """Routing load and capacity."""

    capacity_factor: float | None = Field(default=None, ge=0.0, le=1024)
    pad_to_capacity: bool = False
    token_imbalance: float = Field(default=1.0, ge=1.0, le=1024, description="tokens of the fullest rank over the mean")


class Vocab(Section):
    """Vocabulary padding: Bridge does not pad by default, Megatron-LM pads to divisible_by * TP."""

    should_pad: bool | None = None
    divisible_by: int | None = Field(default=None, ge=1, le=1 << 20)


class Peft(Section):
    """Parameter-efficient fine-tuning."""

    type: Literal["none", "lora", "dora"] = "none"
    rank: int | None = Field(default=None, ge=1, le=65536)
    target_modules: tuple[str, ...] = Field(default=(), max_length=64)

    @field_validator("target_modules", mode="before")
    @classmethod
    def _modules(cls, value: Any) -> Any:
        return _words(value)


class Fsdp(Section):
    """Megatron-FSDP in place of the distributed optimizer."""

    enabled: bool = False
    sharding: Literal["no_shard", "optim", "optim_grads", "optim_grads_params"] | None = None


class Versions(Section):
    """Framework versions the run is meant for; None = the newest known to the rules."""

    megatron_core: str | None = Field(default=None, max_length=40)
    megatron_bridge: str | None = Field(default=None, max_length=40)
    transformer_engine: str | None = Field(default=None, max_length=40)
    torch: str | None = Field(default=None, max_length=40)

    @field_validator("*", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return str(value) if isinstance(value, float) else value
