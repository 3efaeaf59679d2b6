"""Model FLOPs by the counters of Megatron Bridge and Megatron-LM: every catalog model, 4K to 1M tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import _env

_env.prepare(bridge=True)

from megatron.bridge.training.utils.flop_utils import num_floating_point_operations  # noqa: E402
from megatron.core.models.hybrid.hybrid_layer_allocation import Symbols  # noqa: E402
from megatron.training import training as megatron_lm  # noqa: E402

from moe_long_context.catalog.architecture import Architecture  # noqa: E402
from moe_long_context.catalog.loader import model_entry, model_ids  # noqa: E402

GOLDEN = "flops_bridge-0.6.2.json"
LENGTHS = tuple(4096 << i for i in range(9))
SEQUENCES = 8
TENSOR_PARALLEL = (1, 8)


def config_for(arch: Architecture, seq_length: int, tp: int) -> Any:
    """The fields of a ConfigContainer that the counter reads."""
    model = SimpleNamespace(**{name: getattr(arch, name) for name in Architecture.model_fields})
    model.moe_layer_freq = [int(x) for x in arch.moe_layers] if arch.num_moe_experts else 1
    if isinstance(arch.linear_attention_freq, tuple):
        model.linear_attention_freq = list(arch.linear_attention_freq)
    if arch.hybrid_layer_pattern and arch.mtp_hybrid_override_pattern:
        depths = ["", *[arch.mtp_hybrid_override_pattern] * (arch.mtp_num_layers or 0)]
        model.hybrid_layer_pattern = arch.hybrid_layer_pattern + Symbols.MTP_SEPARATOR.join(depths)
    model.seq_length, model.tensor_model_parallel_size, model.make_vocab_size_divisible_by = seq_length, tp, 128
    return SimpleNamespace(model=model, peft=None, dataset=None)


class Arguments(SimpleNamespace):
    """Command-line arguments of Megatron-LM: what is not set is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def arguments_for(arch: Architecture, seq_length: int, tp: int) -> Arguments:
    """The arguments that Megatron-LM's counter reads."""
    args = Arguments(**vars(config_for(arch, seq_length, tp).model))
    args.num_experts, args.swiglu = arch.num_moe_experts, arch.gated_linear_unit
    args.group_query_attention = not arch.multi_latent_attention
    args.padded_vocab_size = -(-arch.vocab_size // (128 * tp)) * 128 * tp
    args.is_hybrid_model = bool(arch.hybrid_layer_pattern)
    return args


def record() -> dict[str, Any]:
    """Model id -> one count for each length and TP."""
    cases = {
        model: {
            f"{length}/tp{tp}": num_floating_point_operations(
                config_for(model_entry(model).architecture, length, tp), SEQUENCES
            )
            for length in LENGTHS
            for tp in TENSOR_PARALLEL
        }
        for model in model_ids()
    }
    lm_cases = {
        model: {
            f"{length}/tp1": megatron_lm.num_floating_point_operations(
                arguments_for(model_entry(model).architecture, length, 1), SEQUENCES
            )
            for length in LENGTHS
        }
        for model in model_ids()
    }
    return {"sequences": SEQUENCES, "flops": cases, "megatron_lm": lm_cases}
