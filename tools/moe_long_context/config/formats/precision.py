"""Bridge's mixed-precision names and fields as the run configuration's `precision`, and back.

Source: Megatron Bridge 0.6.2 training/mixed_precision.py.
"""

from __future__ import annotations

from typing import Any

MIXED_PRECISION = {
    "bf16": "bf16_mixed",
    "fp8_tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "fp8_delayed": "bf16_with_fp8_delayed_scaling_mixed",
    "fp8_blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
REGISTRY: dict[str, dict[str, Any]] = {
    "bf16": {},
    "fp8_tensorwise": {
        "fp8": "hybrid", "fp8_recipe": "tensorwise", "first_last_layers_bf16": True,
        "num_layers_at_start_in_bf16": 1, "num_layers_at_end_in_bf16": 1, "fp8_param_gather": True,
    },
    "fp8_delayed": {
        "fp8": "hybrid", "fp8_recipe": "delayed", "fp8_margin": 0, "fp8_amax_history_len": 1024,
        "fp8_amax_compute_algo": "max", "fp8_param_gather": True,
    },
    "fp8_blockwise": {"fp8": "hybrid", "fp8_recipe": "blockwise", "fp8_param_gather": False},
    "mxfp8": {
        "fp8": "e4m3", "fp8_recipe": "mxfp8", "fp8_param_gather": True, "reuse_grad_buf_for_mxfp8_param_ag": True,
    },
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4", "fp8_param_gather": False, "fp4_param_gather": True},
}  # fmt: skip
_FP8_RECIPES = {
    "tensorwise": "fp8_tensorwise",
    "delayed": "fp8_delayed",
    "blockwise": "fp8_blockwise",
    "mxfp8": "mxfp8",
}
_DTYPES = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.uint8": "fp8",
           "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}  # fmt: skip
_SETTLED = (
    "fp8", "fp8_recipe", "fp4", "fp4_recipe", "bf16", "fp32", "fp16", "params_dtype", "pipeline_dtype",
    "autocast_dtype", "autocast_enabled", "fp8_param", "fp4_param", "loss_scale", "initial_loss_scale",
    "min_loss_scale", "loss_scale_window", "hysteresis", "first_last_layers_bf16", "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16", "fp8_amax_history_len", "fp8_amax_compute_algo", "fp8_margin", "fp8_wgrad",
    "reuse_grad_buf_for_mxfp8_param_ag",
)  # fmt: skip


def dtype_name(value: Any) -> Any:
    """ "bf16" for any of the framework's spellings of torch.bfloat16; other values unchanged."""
    return _DTYPES.get(value, value) if isinstance(value, str) else value


def read_precision(fields: dict[str, Any]) -> dict[str, Any]:
    """Take the mixed-precision fields out of `fields`; what they say about precision and gradients."""
    for path in list(fields):
        if path.endswith("_dtype"):
            fields[path] = dtype_name(fields[path])
    name = fields.pop("mixed_precision", None)
    settled = {key: fields.pop(f"mixed_precision.{key}", None) for key in _SETTLED}
    out: dict[str, Any] = {}
    precision = _named(name) or _from_formats(settled) or _from_formats(_model_formats(fields))
    if precision:
        out["precision"] = precision
    if fields.pop("mixed_precision.grad_reduce_in_fp32", None) is False:
        fields["optimizer.main_grads_dtype"] = "bf16"
    return out


def _named(name: Any) -> str | None:
    if not isinstance(name, str):
        return None
    wanted = name.replace("-", "_")
    return next((precision for precision, released in MIXED_PRECISION.items() if released == wanted), None)


def _model_formats(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: fields.get(f"model.{key}") for key in ("fp8", "fp8_recipe", "fp4", "bf16")}


def _from_formats(values: dict[str, Any]) -> str | None:
    if values.get("fp4"):
        return "nvfp4"
    if values.get("fp8"):
        return _FP8_RECIPES.get(str(values.get("fp8_recipe")), "fp8_delayed")
    return "bf16" if values.get("bf16") else None
