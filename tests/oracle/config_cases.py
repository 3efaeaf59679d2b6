"""Random run configurations biased to the edges of the rules, and what the rules say of the config classes' own checks.

Case `index` is the same on every machine; nothing here needs torch, so the fast tests replay the recorded outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random
from typing import Any

from moe_long_context.config.resolve import Run, resolve
from moe_long_context.rules.registry import all_rules, errors_only

SEED = "config-classes-3"
CASES = 6000
MAX_CHANGES = 4
CLASS_SOURCES = ("transformer_config.py __post_init__", "pipeline_parallel_layer_layout.py", "model_parallel_config.py")
MODELS = (
    "qwen3-30b-a3b", "qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v2-lite", "deepseek-v3", "moonlight-16b-a3b",
    "qwen3-next-80b-a3b", "gpt-oss-20b", "mixtral-8x7b", "llama3-70b", "qwen2-57b-a14b", "glm-4.5-air",
)  # fmt: skip
RECOMPUTE = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "gdn_norm_out")
OFFLOAD = ("core_attn", "attn_proj", "expert_fc1", "fused_group_mlp", "moe_act", "attn_norm", "mlp_norm", "qkv_linear")
GRAPHS = ("attn", "mlp", "moe", "moe_router", "moe_preprocess")
SIZES = (1, 1, 2, 2, 3, 4, 6, 8, 16)
FP8 = ("fp8_tensorwise", "fp8_delayed", "fp8_blockwise", "mxfp8", "nvfp4")
Draw = Callable[[Random], dict[str, Any]]


@lru_cache(maxsize=1)
def class_rules() -> frozenset[str]:
    """Ids of the error rules whose condition the config classes themselves check."""
    refusing = (rule for rule in all_rules().values() if rule.severity == "error" or rule.escalates)
    errors = (rule for rule in refusing if rule.where == "config")
    return frozenset(rule.id for rule in errors if any(name in rule.source for name in CLASS_SOURCES))


def refused_by(run: Run) -> list[str]:
    """The rules by which this package says that the config class refuses the run."""
    return sorted(class_rules().intersection(errors_only(run)))


def case(index: int, older_core: str | None = None) -> Run:
    """The run of one case; for an older core by the command line's classes, which Bridge 0.6.2 does not carry."""
    random = Random(f"{SEED}:{index}")
    config: dict[str, Any] = {
        "model": random.choice(MODELS), "gpu": "H100", "num_gpus": 64, "seq_length": 8192, "gbs": 512,
        "frontend": random.choice(("bridge", "bridge", "megatron_lm")), "dispatcher": "alltoall",
    }  # fmt: skip
    for draw in random.sample(DRAWS, random.randint(1, MAX_CHANGES)):
        config = _merged(config, draw(random))
    config = _merged(config, {"megatron": {"rerun_state_machine.check_for_nan_in_loss": False}})
    if older_core:
        config |= {"frontend": "megatron_lm", "versions": {"megatron_core": older_core}}
    return resolve(config)


def _merged(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    out = dict(base)
    for key, value in change.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = {**out[key], **value} if both else value
    return out


def _some(random: Random, names: tuple[str, ...], most: int = 3) -> list[str]:
    return random.sample(names, random.randint(1, most))


def _model(random: Random, **choices: tuple[Any, ...]) -> dict[str, Any]:
    return {"megatron": {f"model.{name}": random.choice(values) for name, values in choices.items()}}


def _tp(random: Random) -> dict[str, Any]:
    return {"tp": random.choice(SIZES), "sp": random.choice((True, True, False, None))}


def _ep(random: Random) -> dict[str, Any]:
    return {"ep": random.choice((1, 2, 3, 4, 8, 16, 64)), "etp": random.choice((None, 1, 1, 2, 4))}


def _cp(random: Random) -> dict[str, Any]:
    kinds: tuple[Any, ...] = ("p2p", "a2a", "all_gather", ["p2p"] * 48, ["p2p"] * 4, ["a2a"] * 27)
    return {"cp": random.choice(SIZES), "cp_comm_type": random.choice(kinds)}


def _pipeline(random: Random) -> dict[str, Any]:
    return {"pp": random.choice(SIZES), "vpp": random.choice((None, None, 1, 2, 3, 4, 6))}


def _uneven(random: Random) -> dict[str, Any]:
    count = (None, 0, 1, 2, 4, 8, 9, 12)
    return {
        "pp": random.choice((1, 2, 3, 4, 8)), "vpp": random.choice((None, None, 2, 3)),
        "num_layers_in_first_pipeline_stage": random.choice(count),
        "num_layers_in_last_pipeline_stage": random.choice(count),
    }  # fmt: skip


def _account(random: Random) -> dict[str, Any]:
    return {
        "pp": random.choice((1, 2, 4, 5, 7, 8)), "vpp": random.choice((None, 2, 3, 4, 12)),
        "account_for_embedding_in_pipeline_split": random.choice((True, True, False)),
        "account_for_loss_in_pipeline_split": random.choice((True, True, False)),
    }  # fmt: skip


def _layout(random: Random) -> dict[str, Any]:
    layers = random.choice((8, 8, 9))
    body = random.choice((
        "Ett|tt|tt|ttL", "Ett|tt|tt|ttmL", "Ett|tt|tt|tt|mL", "E|tt|tt|tttt|L", "Etttt|ttttL", "tt|tt|tt|tt",
        "Ett|tt|tt|tmtL", "Ett|tt|tt|t|L", "EtttttttL", "Ett|ttL|tt|tt", "Et*8L", "E|t|t|t|t|t|t|tt|L", "Ett|mtt|tt|ttL",
        "Ett|tt|ttt|ttL", "Ett||tt|ttttL", "Ett|tt|tt|ttLm", "EEtt|tt|tt|ttL", "Etx|tt|tt|ttL", "Ett|tt|tt|tt|m|L",
    ))  # fmt: skip
    return {
        "num_layers": layers, "layout": body, "pp": random.choice((1, 2, 2, 3, 4, 4)), "moe_layer_freq": 1,
        "vpp": random.choice((None, None, None, 1, 2)), "mtp_num_layers": random.choice((0, 0, 1, 2)),
    }  # fmt: skip


def _selective(random: Random) -> dict[str, Any]:
    recompute: dict[str, Any] = {"granularity": "selective", "modules": _some(random, RECOMPUTE)}
    if random.random() < 0.2:
        recompute["num_layers"] = 2
    if random.random() < 0.2:
        recompute["method"] = "uniform"
    return {"recompute": recompute}


def _stale_names(random: Random) -> dict[str, Any]:
    return {"recompute": _some(random, ("up_proj", "norm", "moe_layer", "attn", "moe"))}


def _full(random: Random) -> dict[str, Any]:
    recompute = {
        "granularity": "full",
        "method": random.choice((None, "uniform", "block")),
        "num_layers": random.choice((None, 1, 2)),
    }
    recompute["modules"] = random.choice((None, None, ["moe"]))
    return {"recompute": recompute}


def _no_granularity(random: Random) -> dict[str, Any]:
    return {
        "recompute": {
            "granularity": "none",
            "modules": _some(random, RECOMPUTE),
            "method": random.choice((None, "block")),
        }
    }


def _offload(random: Random) -> dict[str, Any]:
    names = (*OFFLOAD, "mlp") if random.random() < 0.1 else OFFLOAD
    return {"activation_offload": {"modules": _some(random, names)}}


def _offload_of_layers(random: Random) -> dict[str, Any]:
    return _model(random, cpu_offloading=(True,), cpu_offloading_num_layers=(0, 2, 48, 64))


def _graph(random: Random) -> dict[str, Any]:
    impl = random.choice(("local", "transformer_engine", "transformer_engine", "full_iteration"))
    modules = _some(random, GRAPHS) if random.random() < 0.8 else []
    return {"cuda_graph": {"impl": impl, "modules": modules}, **_model(random, use_te_rng_tracker=(True,))}


def _captured_dropout(random: Random) -> dict[str, Any]:
    module = random.choice(("core_attn", "mlp", "moe"))
    capacity = {"capacity_factor": 1.0, "pad_to_capacity": True}
    captured = ["attn"] if module == "core_attn" else [module]
    name = random.choice(("attention_dropout", "hidden_dropout", "moe_input_jitter_eps"))
    return {
        "recompute": [module], "moe": capacity, **_model(random, **{name: (0.1,)}),
        "cuda_graph": {"impl": "transformer_engine", "modules": random.choice((captured, []))},
    }  # fmt: skip


def _graph_names(random: Random) -> dict[str, Any]:
    return {"cuda_graph": {"impl": "transformer_engine", "modules": [random.choice(("ffn", "router", "attention"))]}}


def _distributed_activations(random: Random) -> dict[str, Any]:
    full = {"granularity": "full", "method": "uniform", "num_layers": 1}
    recompute = random.choice((full, ["moe_act"], ["core_attn"]))
    return {"tp": 2, "sp": True, "recompute": recompute, **_model(random, distribute_saved_activations=(True, False))}


def _ncclep(random: Random) -> dict[str, Any]:
    offload = {"modules": ["expert_fc1"]} if random.random() < 0.8 else {}
    return {"dispatcher": "ncclep", "ep": 8, "overlap": {"ep_a2a": True}, "activation_offload": offload}


def _two_precisions(random: Random) -> dict[str, Any]:
    return {
        "precision": random.choice(("nvfp4", "bf16")),
        **_model(random, fp8=("e4m3", None), fp8_recipe=("tensorwise",)),
    }


def _gelu(random: Random) -> dict[str, Any]:
    return {
        "activation_func": random.choice(("gelu", "quick_gelu")), "gated_linear_unit": random.choice((True, False)),
        **_model(random, bias_activation_fusion=(True, True, False)),
    }  # fmt: skip


def _router_graph(random: Random) -> dict[str, Any]:
    return {"cuda_graph": {"impl": "transformer_engine", "modules": ["attn", "moe_router", "moe_preprocess"]}}


def _dropout(random: Random) -> dict[str, Any]:
    return _model(random, attention_dropout=(0.0, 0.1), hidden_dropout=(0.0, 0.1), moe_input_jitter_eps=(None, 0.01))


def _dispatcher(random: Random) -> dict[str, Any]:
    return {"dispatcher": random.choice(("allgather", "alltoall", "deepep", "hybridep", "ncclep"))}


def _flex_fields(random: Random) -> dict[str, Any]:
    return _model(
        random, moe_enable_deepep=(True, False), moe_deepep_num_sms=(None, 20), moe_hybridep_num_sms=(None, 16, 20),
    )  # fmt: skip


def _rank_capacity(random: Random) -> dict[str, Any]:
    return _model(
        random, moe_expert_rank_capacity_factor=(None, 1.5), use_transformer_engine_op_fuser=(True, True, False),
        moe_paged_stash=(True, False),
    )  # fmt: skip


def _capacity(random: Random) -> dict[str, Any]:
    kinds = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none", "sinkhorn", "quantile")
    return {
        "moe": {"capacity_factor": random.choice((None, 0.0, 1.0, 1.0)), "pad_to_capacity": random.random() < 0.6},
        "megatron": {"model.moe_router_load_balancing_type": random.choice(kinds)},
    }


def _aux_lists(random: Random) -> dict[str, Any]:
    return _model(
        random, moe_router_load_balancing_type=(["aux_loss", "seq_aux_loss"], ["aux_loss"], "aux_loss"),
        moe_aux_loss_coeff=([0.1, 0.1], [0.1], 0.1),
    )  # fmt: skip


def _router(random: Random) -> dict[str, Any]:
    return {
        "moe_router_topk": random.choice((1, 2, 4)), "moe_router_pre_softmax": random.choice((True, False)),
        "moe_router_score_function": random.choice(("softmax", "sigmoid", "sqrtsoftplus")),
        "moe_router_enable_expert_bias": random.choice((True, False)),
    }  # fmt: skip


def _groups(random: Random) -> dict[str, Any]:
    return {
        "moe_router_group_topk": random.choice((None, 1, 2, 4, 8)),
        "moe_router_num_groups": random.choice((None, 2, 4, 7, 8)),
    }


def _shared(random: Random) -> dict[str, Any]:
    change: dict[str, Any] = {"overlap": {"shared_expert": random.random() < 0.8}}
    if random.random() < 0.5:
        change["moe_shared_expert_intermediate_size"] = 1024
    return change


def _overlap(random: Random) -> dict[str, Any]:
    overlap = {"ep_a2a": random.random() < 0.8, "delay_wgrad": random.random() < 0.5}
    return {"ep": random.choice((1, 4, 8)), "overlap": overlap}


def _overlap_fields(random: Random) -> dict[str, Any]:
    return _model(
        random, overlap_dispatch_backward_with_experts_wgrad=(True, False),
        ep_overlap_early_attn_memory_release=(True, False),
    )  # fmt: skip


def _deferred(random: Random) -> dict[str, Any]:
    return _model(
        random, defer_embedding_wgrad_compute=(True, True, False), wgrad_deferral_limit=(0, 0, -1, 22),
        gradient_accumulation_fusion=(True, True, False),
    )  # fmt: skip


def _p2p(random: Random) -> dict[str, Any]:
    return {
        "pp": random.choice((1, 2, 4)),
        "overlap": {"p2p": random.choice((True, False))},
        **_model(random, overlap_p2p_comm_warmup_flush=(True, False), batch_p2p_comm=(True, False)),
    }


def _precision(random: Random) -> dict[str, Any]:
    return {"precision": random.choice(FP8)}


def _fp8_fields(random: Random) -> dict[str, Any]:
    return _model(
        random, first_last_layers_bf16=(True, False), num_layers_at_start_in_bf16=(0, 1, 40),
        num_layers_at_end_in_bf16=(0, 1, -1), moe_router_padding_for_quantization=(True, False),
    )  # fmt: skip


def _rope(random: Random) -> dict[str, Any]:
    return {"rope_type": random.choice(("rope", "yarn")), **_model(random, apply_rope_fusion=(True, False))}


def _fusions(random: Random) -> dict[str, Any]:
    return _model(
        random, moe_permute_fusion=(True, False), bias_activation_fusion=(True, False),
        fused_single_qkv_rope=(True, False), rotary_interleaved=(True, False, False),
        distribute_saved_activations=(True, False), variable_seq_lengths=(True, False),
    )  # fmt: skip


def _shape(random: Random) -> dict[str, Any]:
    return {
        "num_attention_heads": random.choice((12, 16, 32)), "num_query_groups": random.choice((2, 4, 6, 8)),
        "num_layers": random.choice((8, 12, 24)), "moe_layer_freq": 1, "add_bias_linear": random.choice((True, False)),
    }  # fmt: skip


def _grouped(random: Random) -> dict[str, Any]:
    return _model(random, moe_grouped_gemm=(True, False, False))


def _mtp(random: Random) -> dict[str, Any]:
    return {"mtp_num_layers": random.choice((0, 1, 2))}


DRAWS: list[Draw] = [
    _tp, _tp, _ep, _ep, _cp, _pipeline, _pipeline, _uneven, _account, _layout, _layout, _selective, _selective, _stale_names,
    _full, _no_granularity, _offload, _offload, _offload_of_layers, _graph, _graph, _router_graph, _dropout, _dispatcher,
    _dispatcher, _flex_fields, _rank_capacity, _capacity, _aux_lists, _router, _groups, _shared, _overlap, _overlap,
    _overlap_fields, _deferred, _p2p, _precision, _precision, _fp8_fields, _rope, _fusions, _shape, _grouped, _mtp,
    _captured_dropout, _graph_names, _distributed_activations, _ncclep, _two_precisions, _gelu,
]  # fmt: skip
