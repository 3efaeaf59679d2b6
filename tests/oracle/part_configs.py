"""Random run configurations against the real config classes: Megatron-Core's own, and Bridge's with `finalize()`.

Accept or refuse must be what the rules of the package say, case by case.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import _env

_env.pretend_te()

import _models  # noqa: E402
import config_cases  # noqa: E402
import torch  # noqa: E402
from megatron.bridge.models import transformer_config as bridge  # noqa: E402
from megatron.core.transformer import transformer_config as core  # noqa: E402

from moe_long_context.catalog.architecture import Architecture  # noqa: E402
from moe_long_context.config.resolve import Run  # noqa: E402

GOLDEN = "configs_core-0.19.2.json"
MESSAGE = 110
MESSAGES = 120
FP8 = {"fp8_delayed": "delayed", "fp8_tensorwise": "tensorwise", "fp8_blockwise": "blockwise", "mxfp8": "mxfp8"}
DEVICE = {"use_cpu_initialization": True, "perform_initialization": False, "bias_activation_fusion": False}


def outcome(run: Run) -> str:
    """ "ok", or what the real config class said."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _build(run)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MESSAGE]
    return "ok"


def _build(run: Run) -> None:
    own = core if run.written.frontend == "megatron_lm" else bridge
    kind = own.MLATransformerConfig if run.arch.multi_latent_attention else own.TransformerConfig
    fields = {**_models._shape(run.arch), **_activation(run.arch), **DEVICE, **_mesh(run), **_training(run), **_precision(run), **_further(run)}
    known = kind.__dataclass_fields__
    config = kind(**{name: value for name, value in fields.items() if name in known})
    if own is bridge:
        config.finalize()


def _activation(arch: Architecture) -> dict[str, Any]:
    """The config class compares with its own quick_gelu, which the gpt-oss provider of Bridge takes too."""
    return {"activation_func": core.quick_gelu} if arch.activation_func == "quick_gelu" else {}


def _mesh(run: Run) -> dict[str, Any]:
    c = run.written
    names = (
        "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size", "cp_comm_type",
        "virtual_pipeline_model_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size",
        "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage", "pipeline_model_parallel_layout",
    )  # fmt: skip
    fields = {name: _plain(getattr(c, name)) for name in names if getattr(c, name) is not None}
    fields["account_for_embedding_in_pipeline_split"] = run.account_embedding
    fields["account_for_loss_in_pipeline_split"] = run.account_loss
    sp = run.sequence_parallel if c.sequence_parallel is None else c.sequence_parallel
    return {**fields, "sequence_parallel": sp, "pipeline_dtype": torch.bfloat16}


def _training(run: Run) -> dict[str, Any]:
    c = run.written
    fields: dict[str, Any] = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    if c.recompute is not None:
        fields |= {f"recompute_{name}": _plain(getattr(c.recompute, name)) for name in type(c.recompute).model_fields}
    flex = run.dispatcher in ("deepep", "hybridep", "ncclep")
    fields["moe_token_dispatcher_type"] = "flex" if flex else run.dispatcher
    if flex:
        fields["moe_flex_dispatcher_backend"] = run.dispatcher
    if c.activation_offload.modules:
        fields |= {"fine_grained_activation_offloading": True, "offload_modules": list(c.activation_offload.modules)}
    fields |= {"cuda_graph_impl": c.cuda_graph.impl, "cuda_graph_modules": list(c.cuda_graph.modules)}
    fields |= {
        "moe_expert_capacity_factor": c.moe.capacity_factor, "moe_pad_expert_input_to_capacity": c.moe.pad_to_capacity,
        "overlap_moe_expert_parallel_comm": bool(c.overlap.ep_a2a), "delay_wgrad_compute": bool(c.overlap.delay_wgrad),
        "moe_shared_expert_overlap": bool(c.overlap.shared_expert), "overlap_p2p_comm": bool(c.overlap.p2p),
    }  # fmt: skip
    return fields


def _precision(run: Run) -> dict[str, Any]:
    fields: dict[str, Any] = {"bf16": True, "params_dtype": torch.bfloat16}
    if run.precision in FP8:
        fields |= {"fp8": "hybrid" if run.precision == "fp8_delayed" else "e4m3", "fp8_recipe": FP8[run.precision]}
    if run.precision == "nvfp4":
        fields |= {"fp4": "e2m1", "fp4_recipe": "nvfp4"}
    return fields


def _further(run: Run) -> dict[str, Any]:
    paths = run.written.megatron.items()
    own = {path.removeprefix("model."): value for path, value in paths if path.startswith("model.")}
    return {name: _plain(value) for name, value in own.items() if name not in Architecture.model_fields}


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def record() -> dict[str, Any]:
    """How many were tried, refused and judged otherwise; accept (1) or refuse (0) of each; the messages met."""
    outcomes, wrong, messages = [], {}, Counter[str]()
    for index in range(config_cases.CASES):
        run = config_cases.case(index)
        said, rules = outcome(run), config_cases.refused_by(run)
        outcomes.append("1" if said == "ok" else "0")
        messages[said.split("(")[0][:60]] += said != "ok"
        if (said == "ok") == bool(rules):
            wrong[str(index)] = {"framework": said, "rules": rules}
    return {
        "seed": config_cases.SEED, "tried": len(outcomes), "refused": outcomes.count("0"),
        "disagreements": len(wrong), "cases": wrong, "accepted": "".join(outcomes),
        "messages": dict(sorted((+messages).items())[:MESSAGES]),
    }  # fmt: skip
