"""Transformer Engine's modules as far as their parameters go, put behind Megatron-Core's own TE layer specs.

Shapes, biases and tensor-parallel splits follow megatron-core 0.19.2 extensions/transformer_engine.py: TELinear in
duplicated mode is whole on every rank, column and row linears are Megatron-Core's own classes, grouped linears split
over expert tensor parallelism. Nothing here can run a forward; the activations part has classes that can.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
from megatron.core.models.backends import BackendSpecProvider
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from torch.nn import Module, Parameter


class Norm(Module):
    """TENorm: RMSNorm has a weight, LayerNorm a weight and a bias."""

    def __init__(self, config: Any, hidden_size: int, **rest: Any) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        if config.normalization == "LayerNorm":
            self.bias = Parameter(torch.empty(hidden_size, dtype=config.params_dtype))


class Linear(Module):
    """TELinear with parallel_mode "duplicated"."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, bias: bool = False, **rest: Any) -> None:
        super().__init__()
        assert rest.get("parallel_mode", "duplicated") == "duplicated"
        self.weight = Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
        if bias:
            self.bias = Parameter(torch.empty(output_size, dtype=config.params_dtype))


class Column(ColumnParallelLinear):
    """TEColumnParallelLinear."""

    def __init__(self, *args: Any, name: Any = None, parallel_mode: Any = None, **rest: Any) -> None:
        super().__init__(*args, **rest)


class Row(RowParallelLinear):
    """TERowParallelLinear."""

    def __init__(self, *args: Any, name: Any = None, parallel_mode: Any = None, **rest: Any) -> None:
        super().__init__(*args, **rest)


class NormColumn(Column):
    """TELayerNormColumnParallelLinear: the norm of its input in front."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **rest: Any) -> None:
        super().__init__(input_size, output_size, config=config, **rest)
        self.layer_norm_weight = Parameter(torch.empty(input_size, dtype=config.params_dtype))
        if config.normalization == "LayerNorm":
            self.layer_norm_bias = Parameter(torch.empty(input_size, dtype=config.params_dtype))


class _Grouped(Module):
    """TEGroupedLinear: one weight, and one bias, per local expert."""

    splits_output = True

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        bias: bool,
        pg_collection: Any,
        **_: Any,
    ) -> None:
        super().__init__()
        ranks = pg_collection.expt_tp.size()
        out, width = (output_size // ranks, input_size) if self.splits_output else (output_size, input_size // ranks)
        for index in range(num_gemms):
            weight = Parameter(torch.empty(out, width, dtype=config.params_dtype))
            weight.allreduce = False  # type: ignore[attr-defined]
            setattr(self, f"weight{index}", weight)
            if bias:
                setattr(self, f"bias{index}", Parameter(torch.empty(out, dtype=config.params_dtype)))


class GroupedColumn(_Grouped):
    """TEColumnParallelGroupedLinear."""


class GroupedRow(_Grouped):
    """TERowParallelGroupedLinear."""

    splits_output = False


class Attention(Module):
    """TEDotProductAttention: no parameter except the learned softmax offset, one a head of the rank."""

    def __init__(self, config: Any, *args: Any, pg_collection: Any = None, **rest: Any) -> None:
        super().__init__()
        if config.softmax_type == "learnable":
            self.softmax_offset = Parameter(torch.empty(config.num_attention_heads // pg_collection.tp.size()))


class GatedNorm(Module):
    """mamba_ssm's gated RMSNorm."""

    def __init__(self, hidden_size: int, dtype: Any = None, **rest: Any) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(hidden_size, dtype=dtype))


class SpecProvider(BackendSpecProvider):
    """What TESpecProvider offers, with the classes above."""

    def linear(self) -> Any:
        return Linear

    def column_parallel_linear(self) -> Any:
        return Column

    def row_parallel_linear(self) -> Any:
        return Row

    def fuse_layernorm_and_linear(self) -> bool:
        return True

    def column_parallel_layer_norm_linear(self) -> Any:
        return NormColumn

    def layer_norm(self, rms_norm: bool = False, for_qk: bool = False, has_residual: bool = False) -> Any:
        return Norm

    def core_attention(self) -> Any:
        return Attention

    def grouped_mlp_modules(self, moe_use_grouped_gemm: bool) -> Any:
        experts = importlib.import_module("megatron.core.transformer.moe.experts")
        modules = experts.GroupedMLPSubmodules(linear_fc1=GroupedColumn, linear_fc2=GroupedRow)
        return partial(experts.TEGroupedMLP, submodules=modules)

    def activation_func(self) -> Any:
        return None


TE_NAMES = {
    "TENorm": Norm,
    "LayerNormImpl": Norm,
    "TELinear": Linear,
    "TEColumnParallelLinear": Column,
    "TERowParallelLinear": Row,
    "TELayerNormColumnParallelLinear": NormColumn,
    "TEDotProductAttention": Attention,
    "TESpecProvider": SpecProvider,
}
USERS = (
    "megatron.core.extensions.transformer_engine",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.gpt.moe_module_specs",
    "megatron.core.models.gpt.experimental_attention_variant_module_specs",
    "megatron.core.transformer.multi_latent_attention",
    "megatron.core.transformer.experimental_attention_variant.absorbed_mla",
    "megatron.core.transformer.multi_token_prediction",
    "megatron.core.transformer.transformer_block",
    "megatron.core.transformer.moe.moe_layer",
    "megatron.core.models.hybrid.hybrid_block",
    "megatron.core.models.hybrid.hybrid_layer_specs",
)


def install() -> None:
    """Let every Megatron-Core module that asks for Transformer Engine's classes get these."""
    for user in USERS:
        module = importlib.import_module(user)
        for name, stand_in in TE_NAMES.items():
            setattr(module, name, stand_in)
    core: Any = importlib.import_module("megatron.core")
    importlib.import_module("megatron.core.transformer.mla_qk_norm_config").get_backend = (  # type: ignore[attr-defined]
        lambda implementation: SpecProvider()
    )
    core.transformer.moe.moe_layer.HAVE_TE = True
    _kernels_present()
    importlib.reload(importlib.import_module("megatron.core.models.hybrid.hybrid_layer_specs"))


def _kernels_present() -> None:
    """Gated delta net and Mamba refuse to be built without their kernels, which are never called here."""
    common: Any = importlib.import_module("megatron.core.ssm.gated_delta_net.common")
    gdn: Any = importlib.import_module("megatron.core.ssm.gated_delta_net.gdn")
    mamba: Any = importlib.import_module("megatron.core.ssm.mamba_mixer")
    common.HAVE_FLA = mamba.HAVE_MAMBA_SSM = True
    gdn.chunk_gated_delta_rule = gdn.torch_chunk_gated_delta_rule
    mamba.ExtendedRMSNorm = GatedNorm
