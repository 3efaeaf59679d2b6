"""Transformer Engine's modules as far as what they keep for backward, on top of the shapes of `_modules`.

Each class keeps the tensors that its TE 2.14 counterpart saves in bf16, and computes the same function:

    norm             input, reciprocal deviation                      pytorch/ops, module/layernorm.py
    linear           input                                            module/linear.py
    norm + linear    norm input, deviation, norm output               module/layernorm_linear.py
    grouped linear   permuted input                                   module/grouped_linear.py
    attention        q, k, v, output, log-sum-exp                     attention/dot_product_attention (flash, fused)
    delta rule       q, k, v, beta, decay summed in chunks, A         flash-linear-attention ops/gated_delta_rule
    convolution      input                                            flash-linear-attention modules/conv
    q, k L2 norm     output, reciprocal deviation                     flash-linear-attention modules/l2norm.py

Megatron-Core's own code does everything else: router, dispatcher, permutation, SwiGLU, MLA, recompute.
"""

from __future__ import annotations

import importlib
import math
from functools import partial
from typing import Any

import _modules
import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from torch.nn.functional import silu

CHUNK = 64
"""Tokens in a chunk of the delta rule's kernel."""


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, eps: float) -> Any:
        deviation = torch.rsqrt(x.float().pow(2).mean(-1) + eps)
        ctx.save_for_backward(x, weight, deviation)
        return (x.float() * deviation.unsqueeze(-1)).to(x.dtype) * weight

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight, deviation = ctx.saved_tensors
        deviation = deviation.unsqueeze(-1)
        unit = x.float() * deviation
        weight_grad = (grad.float() * unit).reshape(-1, x.shape[-1]).sum(0).to(weight.dtype)
        scaled = grad.float() * weight.float()
        return (deviation * (scaled - unit * (scaled * unit).mean(-1, keepdim=True))).to(x.dtype), weight_grad, None


class Norm(_modules.Norm):
    """TENorm."""

    def __init__(self, config: Any, hidden_size: int, **rest: Any) -> None:
        super().__init__(config, hidden_size, **rest)
        torch.nn.init.ones_(self.weight)
        self.eps = config.layernorm_epsilon

    def forward(self, x: Any) -> Any:
        """RMSNorm over the last dimension."""
        return _RmsNorm.apply(x, self.weight, self.eps)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.reshape(-1, grad.shape[-1]).t() @ x.reshape(-1, x.shape[-1])


class Linear(_modules.Linear):
    """TELinear in duplicated mode."""

    def forward(self, x: Any) -> tuple[Any, None]:
        """x @ weight.T."""
        return _Product.apply(x, self.weight), None


class NormColumn(_modules.NormColumn):
    """TELayerNormColumnParallelLinear."""

    def __init__(self, input_size: int, output_size: int, *, config: Any, **rest: Any) -> None:
        super().__init__(input_size, output_size, config=config, **rest)
        torch.nn.init.ones_(self.layer_norm_weight)
        self.eps = config.layernorm_epsilon

    def forward(self, x: Any, *args: Any, **rest: Any) -> Any:
        """Norm, then the column-parallel linear."""
        return ColumnParallelLinear.forward(self, _RmsNorm.apply(x, self.layer_norm_weight, self.eps), *args, **rest)


class _GroupedProduct(torch.autograd.Function):
    """Zeros in place of the experts' product, which is most of the work and decides no size."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return x.new_zeros(x.shape[0], weight.shape[0])

    backward = _Product.backward


class _GroupedForward:
    """Every expert uses the first one's weight: what is kept for backward does not depend on it."""

    def forward(self: Any, x: Any, splits: Any, *args: Any, **rest: Any) -> tuple[Any, None]:
        out = _GroupedProduct.apply(x, self.weight0)
        return (out + self.bias0 if hasattr(self, "bias0") else out), None


class GroupedColumn(_GroupedForward, _modules.GroupedColumn):
    """TEColumnParallelGroupedLinear."""


class GroupedRow(_GroupedForward, _modules.GroupedRow):
    """TERowParallelGroupedLinear."""


class _Flash(torch.autograd.Function):
    """Causal attention over [s, b, n, d] with an optional window and sink."""

    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, scale: float, window: int | None) -> Any:
        ctx.scale, ctx.window = scale, window
        out, lse = _attend(q, k, v, scale, window)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        with torch.enable_grad():
            inputs = [t.detach().requires_grad_() for t in ctx.saved_tensors[:3]]
            out, _ = _attend(*inputs, ctx.scale, ctx.window)
            return (*torch.autograd.grad(out, inputs, grad), None, None)


def _attend(q: Any, k: Any, v: Any, scale: float, window: int | None) -> tuple[Any, Any]:
    repeat = q.shape[2] // k.shape[2]
    q, k, v = (t.permute(1, 2, 0, 3).float() for t in (q, k, v))
    scores = q @ k.repeat_interleave(repeat, 1).transpose(-1, -2) * scale
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    if window is not None:
        hidden |= torch.ones_like(hidden).tril(-window - 1)
    scores = scores.masked_fill(hidden, float("-inf"))
    lse = torch.logsumexp(scores, -1)
    out = (torch.exp(scores - lse.unsqueeze(-1)) @ v.repeat_interleave(repeat, 1)).permute(2, 0, 1, 3)
    return out.to(torch.bfloat16).contiguous(), lse


class Attention(_modules.Attention):
    """TEDotProductAttention: the sink only changes the softmax, not what is kept."""

    def __init__(self, config: Any, *args: Any, softmax_scale: Any = None, k_channels: Any = None, **rest: Any) -> None:
        super().__init__(config, *args, **rest)
        self.scale = softmax_scale or 1.0 / math.sqrt(k_channels or config.kv_channels)
        self.window = config.window_size[0] if config.window_size else None

    def forward(self, q: Any, k: Any, v: Any, *args: Any, **rest: Any) -> Any:
        """[s, b, heads * dv]."""
        out = _Flash.apply(q, k, v, self.scale, self.window)
        return out.reshape(*out.shape[:2], -1)


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
        summed = g.cumsum(1)
        inverse = torch.zeros(*k.shape[:3], CHUNK, dtype=k.dtype)
        ctx.save_for_backward(q, k, v, summed, beta, inverse)
        return v.clone()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        q, k, _, g, beta, _ = ctx.saved_tensors
        return torch.zeros_like(q), torch.zeros_like(k), grad, torch.zeros_like(g), torch.zeros_like(beta)


def delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any, **rest: Any) -> tuple[Any, None]:
    """chunk_gated_delta_rule's kept tensors; the output's values are not the kernel's."""
    return _DeltaRule.apply(q, k, v, g, beta), None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        return silu(x * weight[:, -1])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, weight = ctx.saved_tensors
        with torch.enable_grad():
            inputs = x.detach().requires_grad_(), weight.detach().requires_grad_()
            return torch.autograd.grad(silu(inputs[0] * inputs[1][:, -1]), inputs, grad)


def convolution(x: Any, weight: Any, **rest: Any) -> tuple[Any, None]:
    """causal_conv1d's kept tensor, which its input guard copies; only the newest tap is computed."""
    return _Convolution.apply(x.contiguous(), weight), None


class _L2Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        deviation = torch.rsqrt(x.float().pow(2).sum(-1) + 1e-6)
        out = (x.float() * deviation.unsqueeze(-1)).to(x.dtype)
        ctx.save_for_backward(out, deviation)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        out, deviation = ctx.saved_tensors
        along = (grad.float() * out.float()).sum(-1, keepdim=True)
        return ((grad.float() - out.float() * along) * deviation.unsqueeze(-1)).to(out.dtype)


class SpecProvider(_modules.SpecProvider):
    """What TESpecProvider offers, with the classes above."""

    def linear(self) -> Any:
        return Linear

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


def install() -> None:
    """Let every Megatron-Core module that asks for Transformer Engine's classes get these."""
    _modules.TE_NAMES |= {
        "TENorm": Norm,
        "LayerNormImpl": Norm,
        "TELinear": Linear,
        "TELayerNormColumnParallelLinear": NormColumn,
        "TEDotProductAttention": Attention,
        "TESpecProvider": SpecProvider,
    }
    _modules.SpecProvider = SpecProvider  # type: ignore[misc]
    _modules.install()
    gdn: Any = importlib.import_module("megatron.core.ssm.gated_delta_net.gdn")
    common: Any = importlib.import_module("megatron.core.ssm.gated_delta_net.common")
    gdn.chunk_gated_delta_rule, gdn.causal_conv1d, common.l2norm = delta_rule, convolution, _L2Norm.apply
