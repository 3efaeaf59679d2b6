"""Activation recompute and activation offload."""

from __future__ import annotations

from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.families.moe import core_before
from moe_long_context.rules.rule import rule
from moe_long_context.rules.versions import core_of

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 32768, "cp": 4, "ep": 8, "gbs": 64, "dispatcher": "alltoall"}
DSV3: dict[str, Any] = {**BASE, "model": "deepseek-v2-lite"}
CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
NAMES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
NEW = {"gdn_norm_out": "0.19.2", "gdp_in_proj": "main", "gdp_qkv": "main", "mhc": "main"}
STALE = {"up_proj": "mla_up_proj", "norm": "layernorm", "moe_layer": "moe", "attn": "core_attn", "act": "moe_act"}
DROPOUTS = {"attention_dropout": {"core_attn"}, "hidden_dropout": {"mlp", "moe"}, "moe_input_jitter_eps": {"moe"}}
"""Random numbers, and the recompute modules that draw them."""
OFFLOAD = ("core_attn", "attn_proj", "expert_fc1", "moe_act", "attn_norm", "mlp_norm", "qkv_linear")
MODULES = "recompute.modules"


def granularity(run: Run) -> str | None:
    """recompute_granularity as written."""
    return run.recompute_granularity


def graphs(run: Run) -> frozenset[str]:
    """Captured module names; an empty set with an impl means whole layers."""
    return frozenset(run.written.cuda_graph.modules)


def graphed(run: Run) -> bool:
    """Whether any CUDA graph is captured."""
    return run.written.cuda_graph.impl != "none"


@rule(
    "recompute-full-needs-method", "error", "full recompute without method or number of layers",
    why="full is said as uniform or block with a count.", fix="add recompute method and num_layers, for example uniform and 1",
    where="config", fields="recompute.method recompute.num_layers", source=CONFIG, fails={"recompute": "full"},
    passes={"recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}},
    repair=lambda run: {"recompute": {"method": "uniform", "num_layers": 1}},
)  # fmt: skip
def _full(run: Run) -> str | None:
    if granularity(run) != "full" or (run.recompute_method and run.recompute_num_layers):
        return None
    return f"recompute_granularity full with method={run.recompute_method}, num_layers={run.recompute_num_layers}"


@rule(
    "recompute-selective-no-numlayers", "error", "selective recompute with a number of layers",
    why="selective names modules, not counts.", fix="remove method and num_layers", where="config",
    fields="recompute.num_layers recompute.method", source=CONFIG,
    fails={"recompute": {"granularity": "selective", "modules": ["moe"], "num_layers": 4}}, passes={"recompute": ["moe"]},
    repair=lambda run: {"recompute": {"num_layers": None, "method": None}},
)  # fmt: skip
def _selective(run: Run) -> str | None:
    bad = granularity(run) == "selective" and run.recompute_num_layers is not None
    return f"selective recompute with num_layers={run.recompute_num_layers}" if bad else None


@rule(
    "recompute-selective-method", "error", "selective recompute with a method",
    why="The command line refuses what the config class accepts.", fix="remove method", where="command line",
    fields="recompute.method", source="megatron-core 0.19.2 megatron/training/arguments.py validate_args", frontends=("megatron_lm",),
    fails={"frontend": "megatron_lm", "recompute": {"granularity": "selective", "modules": ["moe"], "method": "uniform"}},
    passes={"frontend": "megatron_lm", "recompute": ["moe"]}, repair=lambda run: {"recompute": {"method": None}},
    silenced_by=("recompute-selective-no-numlayers",),
)  # fmt: skip
def _selective_method(run: Run) -> str | None:
    bad = granularity(run) == "selective" and run.recompute_method
    return f"selective recompute with method {run.recompute_method}" if bad else None


@rule(
    "recompute-modules-valid-names", "error", "unknown recompute module",
    why="Names are matched exactly: the shorthands up_proj and norm of public guidance are refused.",
    fix="use core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts (gdn_norm_out from 0.19)", where="config",
    fields=MODULES, source=CONFIG, fails={"recompute": ["up_proj", "norm", "moe"]}, passes={"recompute": ["moe_act"]},
    repair=lambda run: {"recompute": {"modules": sorted({STALE.get(m, m) for m in run.recompute_modules})}},
)  # fmt: skip
def _names(run: Run) -> str | None:
    legal = {*NAMES, *(n for n, since in NEW.items() if not core_before(run, since))}
    bad = sorted(run.recompute_modules - legal)
    hints = "".join(f"; {m} is called {STALE[m]}" for m in bad if m in STALE)
    return f"core {core_of(run.written)} has no recompute module {', '.join(bad)}{hints}" if bad else None


@rule(
    "recompute-modules-need-selective", "warning", "recompute modules without selective granularity",
    why="They are read only when granularity is selective.", fix="set recompute.granularity selective", where="silently",
    fields="recompute.granularity recompute.modules", source=CONFIG,
    fails={"recompute": {"granularity": "full", "method": "uniform", "num_layers": 1, "modules": ["moe"]}},
    passes={"recompute": ["moe"]},
)  # fmt: skip
def _unread(run: Run) -> str | None:
    c = run.written.recompute
    return f"recompute modules {list(c.modules)} are not read with granularity {c.granularity}" if c and c.modules and c.granularity != "selective" else None


@rule(
    "recompute-mla-up-proj", "error", "mla_up_proj recompute without MLA", why="There is no such projection.",
    fix="remove mla_up_proj", where="config", fields=MODULES, source=CONFIG, fails={"recompute": ["mla_up_proj"]},
    passes={"base": DSV3, "recompute": ["mla_up_proj"]}, needs=("model",),
    repair=lambda run: {"recompute": {"modules": sorted(run.recompute_modules - {"mla_up_proj"})}},
)  # fmt: skip
def _up(run: Run) -> str | None:
    return "mla_up_proj on a model without MLA" if "mla_up_proj" in run.recompute_modules and not run.arch.multi_latent_attention else None


@rule(
    "recompute-moe-act", "error", "moe_act recompute without grouped GEMM", why="It is implemented in the grouped experts.",
    fix="set moe_grouped_gemm", where="config", fields=f"{MODULES} model.moe_grouped_gemm", source=CONFIG,
    fails={"recompute": ["moe_act"], "megatron": {"model.moe_grouped_gemm": False}}, passes={"recompute": ["moe_act"]},
    repair=lambda run: {"megatron": {"model.moe_grouped_gemm": True}} if run.arch.is_moe else {"recompute": {"modules": sorted(run.recompute_modules - {"moe_act"})}},
)  # fmt: skip
def _act(run: Run) -> str | None:
    if "moe_act" not in run.recompute_modules:
        return None
    if not run.arch.is_moe and "model" not in run.missing:
        return "moe_act on a model without experts"
    return "moe_act needs moe_grouped_gemm" if run.written.megatron.get("model.moe_grouped_gemm") is False else None


@rule(
    "recompute-shared-experts", "error", "shared_experts recompute with shared-expert overlap",
    why="The overlapped path is not checkpointed.", fix="turn moe_shared_expert_overlap off, or drop the module", where="config",
    fields=f"{MODULES} overlap.shared_expert", source=CONFIG,
    fails={"base": DSV3, "recompute": ["shared_experts"], "overlap": {"shared_expert": True}},
    passes={"base": DSV3, "recompute": ["shared_experts"]}, repair=lambda run: {"overlap": {"shared_expert": False}},
)  # fmt: skip
def _shared(run: Run) -> str | None:
    both = "shared_experts" in run.recompute_modules and run.written.overlap.shared_expert
    shared = run.arch.moe_shared_expert_intermediate_size or "model" in run.missing
    return "shared_experts recompute with moe_shared_expert_overlap" if both and shared else None


@rule(
    "recompute-gdn", "error", "gdn_norm_out recompute without gated delta net", why="There is no such norm.",
    fix="remove gdn_norm_out", where="config", fields=MODULES, source=CONFIG, since="0.19.2",
    fails={"recompute": ["gdn_norm_out"]}, passes={"base": {**BASE, "model": "qwen3-next-80b-a3b"}, "recompute": ["gdn_norm_out"]},
    needs=("model",), repair=lambda run: {"recompute": {"modules": sorted(run.recompute_modules - {"gdn_norm_out"})}},
)  # fmt: skip
def _gdn(run: Run) -> str | None:
    gdn = run.arch.experimental_attention_variant == "gated_delta_net"
    return "gdn_norm_out on a model without gated delta net" if "gdn_norm_out" in run.recompute_modules and not gdn else None


@rule(
    "recompute-core-attn-flash", "warning", "core_attn recompute buys almost nothing",
    why="Flash and fused attention keep only the log-sum-exp (and q, k, v are kept anyway); under CP the exchange is repeated.",
    fix="recompute mla_up_proj, moe_act, layernorm, mlp or moe instead", where="silently", fields=MODULES,
    source="megatron-core 0.19.2 transformer/attention.py; measured 0.004 GB on Moonlight (Bridge recompute skill)",
    fails={"recompute": ["core_attn"]}, passes={"recompute": ["moe_act"]},
)  # fmt: skip
def _core(run: Run) -> str | None:
    if "core_attn" not in run.recompute_modules or run.attention_backend in ("unfused", "local"):
        return None
    cp = f", and repeats the CP={run.sizes.cp} exchange" if run.sizes.cp > 1 else ""
    return f"core_attn recompute frees only the log-sum-exp{cp}"


@rule(
    "recompute-mlp-dense-only", "info", "mlp recompute acts on dense layers only", why="It is a no-op on MoE layers.",
    fix="use moe or moe_act for MoE layers", where="silently", fields=MODULES,
    source="megatron-core 0.19.2 transformer/transformer_layer.py", fails={"recompute": ["mlp"]},
    passes={"base": DSV3, "recompute": ["mlp"]}, needs=("model",),
)  # fmt: skip
def _mlp(run: Run) -> str | None:
    dense = any(kind.ffn == "dense" for kind in run.arch.layer_kinds)
    return "mlp recompute does nothing: every layer is MoE" if "mlp" in run.recompute_modules and not dense else None


@rule(
    "recompute-layernorm-fused-noop", "warning", "half of layernorm recompute does nothing here",
    why="In the GQA layer the input norm is fused into linear_qkv; only the pre-MLP norm of MoE layers is a module of its own.",
    fix="expect one norm output per MoE layer, not two", where="silently", fields=MODULES,
    source="megatron-core 0.19.2 models/gpt/gpt_layer_specs.py", fails={"recompute": ["layernorm"]},
    passes={"base": DSV3, "recompute": ["layernorm"]}, needs=("model",),
)  # fmt: skip
def _norm(run: Run) -> str | None:
    on = "layernorm" in run.recompute_modules and not run.arch.multi_latent_attention
    return "the input norm is fused into linear_qkv, so layernorm recompute frees only the pre-MLP norm" if on else None


@rule(
    "recompute-layernorm-graph-flex", "warning", "layernorm recompute is switched off by the router graph",
    why="With TE graphs on moe_router the pre-MLP norm is recomputed only if moe_preprocess is captured too and the dispatcher is alltoall.",
    fix="drop layernorm, or capture moe_preprocess with alltoall", where="silently", fields=f"{MODULES} cuda_graph.modules dispatcher",
    source="megatron-core 0.19.2 transformer/transformer_config.py", since="0.16.1", silenced_by=(),
    fails={"recompute": ["layernorm"], "dispatcher": "hybridep", "cuda_graph": {"impl": "transformer_engine", "modules": ["attn", "moe_router", "moe_preprocess"]}},
    passes={"recompute": ["moe_act"], "cuda_graph": {"impl": "transformer_engine", "modules": ["attn", "moe_router", "moe_preprocess"]}},
)  # fmt: skip
def _norm_graph(run: Run) -> str | None:
    if "layernorm" not in run.recompute_modules or run.written.cuda_graph.impl != "transformer_engine" or "moe_router" not in graphs(run):
        return None
    if run.arch.moe_latent_size or ("moe_preprocess" in graphs(run) and run.dispatcher == "alltoall"):
        return None
    return f"the router graph with {run.dispatcher} disables the pre-MLP layernorm recompute"


@rule(
    "recompute-moe-te-router-graph", "error", "moe recompute with a router graph",
    why="The captured router lies inside the recomputed part.", fix="drop moe recompute, or do not capture moe_router",
    where="config", fields=f"{MODULES} cuda_graph.modules", source=CONFIG, since="0.16.1",
    fails={"recompute": ["moe"], "cuda_graph": {"impl": "transformer_engine", "modules": ["attn", "moe_router"]}},
    passes={"recompute": ["moe"], "cuda_graph": {"impl": "transformer_engine", "modules": ["attn"]}},
)  # fmt: skip
def _moe_graph(run: Run) -> str | None:
    bad = "moe" in run.recompute_modules and run.written.cuda_graph.impl == "transformer_engine" and "moe_router" in graphs(run)
    return "moe recompute with moe_router captured" if bad else None


@rule(
    "recompute-full-graph", "error", "full recompute with layer graphs", why="Only a full-iteration graph may hold it.",
    fix="use cuda_graph impl full_iteration, or selective recompute", where="config", fields="recompute.granularity cuda_graph.impl",
    source=CONFIG, fails={"recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}, "cuda_graph": {"impl": "transformer_engine", "modules": ["attn"]}},
    passes={"recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}},
)  # fmt: skip
def _full_graph(run: Run) -> str | None:
    bad = granularity(run) == "full" and run.written.cuda_graph.impl in ("local", "transformer_engine")
    return f"full recompute with cuda_graph impl {run.written.cuda_graph.impl}" if bad else None


@rule(
    "recompute-dropout-graph", "error", "dropout recomputed inside a captured module",
    why="The replay would draw other random numbers.", fix="set attention_dropout and hidden_dropout to 0", where="config",
    fields="model.attention_dropout cuda_graph.modules", source=CONFIG, since="0.16.1",
    fails={"recompute": ["core_attn"], "cuda_graph": {"impl": "transformer_engine", "modules": ["attn"]}, "megatron": {"model.attention_dropout": 0.1}},
    passes={"recompute": ["moe_act"], "cuda_graph": {"impl": "transformer_engine", "modules": ["attn"]}},
    repair=lambda run: {"megatron": {f"model.{n}": 0.0 for n in DROPOUTS if run.written.megatron.get(f"model.{n}")}}, effect="convergence-changing",
)  # fmt: skip
def _dropout(run: Run) -> str | None:
    if not graphed(run) or not run.recompute_modules:
        return None
    m, whole = run.written.megatron, run.written.cuda_graph.impl == "full_iteration" or not graphs(run)
    inside = run.recompute_modules if whole else run.recompute_modules & _recomputed_by(graphs(run))
    for name, hit in DROPOUTS.items():
        if m.get(f"model.{name}") and inside & hit:
            return f"{name}={m[f'model.{name}']} with {', '.join(sorted(inside & hit))} recomputed inside a graph"
    return None


def _recomputed_by(captured: frozenset[str]) -> set[str]:
    """Recompute modules that lie inside captured ones."""
    return {*(("core_attn",) if "attn" in captured else ()), *(captured & {"mlp", "moe"})}


@rule(
    "recompute-fp8-delayed", "error", "moe_act or layernorm recompute with delayed FP8",
    why="The delayed scaling state would be updated twice; TransformerEngine 2.6 is needed for the other recipes.",
    fix="use another FP8 recipe, or drop the modules", where="config", fields=f"{MODULES} precision", source=CONFIG,
    fails={"recompute": ["moe_act"], "precision": "fp8_delayed"}, passes={"recompute": ["moe_act"], "precision": "fp8_blockwise"},
)  # fmt: skip
def _delayed(run: Run) -> str | None:
    hit = sorted({"moe_act", "layernorm"} & run.recompute_modules)
    if not hit or run.precision == "bf16":
        return None
    if run.precision == "fp8_delayed":
        return f"{', '.join(hit)} recompute with delayed scaling"
    return "output-discarding recompute under FP8 needs TransformerEngine 2.6" if run.te_version < (2, 6) else None


@rule(
    "recompute-distribute-sp", "error", "distributed saved activations with sequence parallelism",
    why="The activations are already split.", fix="set distribute_saved_activations to False", where="config",
    fields="model.distribute_saved_activations sequence_parallel", source=CONFIG,
    fails={"tp": 2, "sp": True, "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}, "megatron": {"model.distribute_saved_activations": True}},
    passes={"tp": 2, "sp": True}, repair=lambda run: {"megatron": {"model.distribute_saved_activations": False}},
)  # fmt: skip
def _distribute(run: Run) -> str | None:
    on = run.written.megatron.get("model.distribute_saved_activations")
    return "distribute_saved_activations with sequence_parallel" if on and run.sequence_parallel and granularity(run) else None


@rule(
    "recompute-mtp", "error", "MTP under uniform recompute of several layers",
    why="MTP layers are checkpointed one by one; block is skipped for them with a warning.", fix="set num_layers to 1",
    where="first forward", fields="recompute.num_layers mtp_num_layers",
    source="megatron-core 0.19.2 transformer/multi_token_prediction.py",
    fails={"base": {**DSV3, "model": "deepseek-v3", "num_gpus": 256}, "recompute": {"granularity": "full", "method": "uniform", "num_layers": 2}},
    passes={"base": {**DSV3, "model": "deepseek-v3", "num_gpus": 256}, "recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}},
    repair=lambda run: {"recompute": {"num_layers": 1}}, needs=("model",),
)  # fmt: skip
def _mtp(run: Run) -> str | None:
    bad = run.mtp and granularity(run) == "full" and run.recompute_method == "uniform" and (run.recompute_num_layers or 1) != 1
    return f"MTP with uniform recompute of {run.recompute_num_layers} layers" if bad else None


@rule(
    "recompute-moe-cost", "warning", "moe recompute replays the dispatch", why="Router, dispatch, experts and combine run again in backward.",
    fix="try moe_act and mla_up_proj or layernorm first", where="silently", fields=MODULES,
    source="megatron-core 0.19.2 transformer/moe/moe_layer.py", fails={"recompute": ["moe"]}, passes={"recompute": ["moe_act"]},
)  # fmt: skip
def _moe_cost(run: Run) -> str | None:
    return "moe recompute repeats router, dispatch, experts and combine in every backward" if "moe" in run.recompute_modules else None


@rule(
    "recompute-full-before-selective", "warning", "full recompute before selective was tried",
    why="Full replays the whole forward; selective modules usually free what is needed for less.",
    fix="ask `recompute` for the cheapest set that fits", where="silently", fields="recompute.granularity",
    source="NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-moe-long-context @067f987 (GLM-5.2 recipes do use full at 128K)",
    fails={"recompute": {"granularity": "full", "method": "uniform", "num_layers": 1}}, passes={"recompute": ["moe_act"]},
)  # fmt: skip
def _before(run: Run) -> str | None:
    return "full recompute repeats the whole forward, about a third more compute" if granularity(run) == "full" else None


@rule(
    "recompute-moe-plus-offload", "error", "moe recompute with offload of what it recomputes",
    why="The tensors would be offloaded and made again.", fix="drop the offload modules, or moe recompute", where="config",
    fields=f"{MODULES} activation_offload.modules", source=CONFIG, since="0.19.2",
    fails={"recompute": ["moe"], "activation_offload": {"modules": ["expert_fc1"]}}, passes={"recompute": ["moe"]},
)  # fmt: skip
def _plus(run: Run) -> str | None:
    hit = sorted({"moe_act", "expert_fc1", "fused_group_mlp"} & run.offload_modules)
    return f"moe recompute with offload of {', '.join(hit)}" if "moe" in run.recompute_modules and hit else None


@rule(
    "fg-offload-names", "error", "unknown or dangling activation-offload module",
    why="Names are matched exactly; attn_proj needs core_attn with it.",
    fix=f"use {', '.join(OFFLOAD)} (fused_group_mlp from 0.19)", where="config", fields="activation_offload.modules", source=CONFIG,
    since="0.16.1", fails={"activation_offload": {"modules": ["mlp"]}}, passes={"activation_offload": {"modules": ["moe_act"]}, "env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
)  # fmt: skip
def _offload_names(run: Run) -> str | None:
    legal = {*OFFLOAD, *(() if core_before(run, "0.19.2") else ("fused_group_mlp",))}
    bad = sorted(run.offload_modules - legal)
    if bad:
        return f"core {core_of(run.written)} has no offload module {', '.join(bad)}"
    if "attn_proj" in run.offload_modules and "core_attn" not in run.offload_modules:
        return "attn_proj offload needs core_attn offload"
    return _fused_mlp(run) if "fused_group_mlp" in run.offload_modules else None


def _fused_mlp(run: Run) -> str | None:
    if not run.written.megatron.get("model.use_transformer_engine_op_fuser"):
        return "fused_group_mlp offload needs use_transformer_engine_op_fuser"
    twice = sorted(run.offload_modules & {"expert_fc1", "moe_act"})
    return f"fused_group_mlp offload covers {', '.join(twice)} already" if twice else None


@rule(
    "fg-offload-env", "warning", "activation offload without NVTE_CPU_OFFLOAD_V1",
    why="From TransformerEngine 2.10 the old hooks must be asked for.", fix="set env NVTE_CPU_OFFLOAD_V1=1", where="first forward",
    fields="activation_offload.modules env", source="megatron-core 0.19.2 transformer/transformer_config.py", since="0.16.1",
    fails={"activation_offload": {"modules": ["moe_act"]}}, passes={"activation_offload": {"modules": ["moe_act"]}, "env": {"NVTE_CPU_OFFLOAD_V1": "1"}},
    repair=lambda run: {"env": {"NVTE_CPU_OFFLOAD_V1": "1"}}, escalates=lambda run: bool(run.written.env),
    correction="an error where the environment is given and lacks it; where no environment is given, a reminder",
)  # fmt: skip
def _offload_env(run: Run) -> str | None:
    bad = run.offload_modules and run.te_version >= (2, 10) and run.written.env.get("NVTE_CPU_OFFLOAD_V1") != "1"
    return "activation offload with TransformerEngine 2.10 or newer needs NVTE_CPU_OFFLOAD_V1=1" if bad else None


@rule(
    "fg-offload-host-ram", "warning", "activation offload fills pinned host memory",
    why="Offloaded bytes x microbatches in flight x GPUs of a node.", fix="check the host memory of a node first", where="first forward",
    fields="activation_offload.modules", source="megatron-core 0.19.2 pipeline_parallel/fine_grained_activation_offload.py", since="0.16.1",
    fails={"activation_offload": {"modules": ["moe_act"]}, "env": {"NVTE_CPU_OFFLOAD_V1": "1"}}, passes={},
)  # fmt: skip
def _host(run: Run) -> str | None:
    return f"offload of {', '.join(sorted(run.offload_modules))} pins host memory for every microbatch in flight" if run.offload_modules else None


def _layer_offload(run: Run) -> bool:
    return bool(run.written.megatron.get("model.cpu_offloading"))


@rule(
    "cpu-offloading-pp", "error", "layer offload with what it excludes",
    why="cpu_offloading needs PP=1, no recompute and fewer offloaded layers than the model has.",
    fix="use fine-grained activation offload instead", where="config", fields="model.cpu_offloading model.cpu_offloading_num_layers",
    source=CONFIG, fails={"pp": 2, "megatron": {"model.cpu_offloading": True, "model.cpu_offloading_num_layers": 4}},
    passes={"megatron": {"model.cpu_offloading": True, "model.cpu_offloading_num_layers": 4}},
    needs=("model",),
)  # fmt: skip
def _layer(run: Run) -> str | None:
    if not _layer_offload(run):
        return None
    count = run.written.megatron.get("model.cpu_offloading_num_layers", 0)
    bad = [("PP > 1", run.sizes.pp > 1), ("recompute", granularity(run) is not None),
           ("fine-grained offload", bool(run.offload_modules) and not core_before(run, "0.16.1")),
           (f"{count} of {run.arch.num_layers} layers", not 0 <= count < run.arch.num_layers)]  # fmt: skip
    names = [name for name, hit in bad if hit]
    return f"cpu_offloading excludes {', '.join(names)}" if names else None


@rule(
    "paged-stash", "error", "paged stash without its conditions",
    why="It needs an expert rank capacity factor, no layer offload and no expert offload.", fix="set moe_expert_rank_capacity_factor",
    where="config", fields="model.moe_paged_stash", source=CONFIG, since="0.18.0",
    fails={"dispatcher": "hybridep", "megatron": {"model.moe_paged_stash": True}},
    passes={"dispatcher": "hybridep", "megatron": {"model.moe_paged_stash": True, "model.moe_expert_rank_capacity_factor": 1.5}},
)  # fmt: skip
def _stash(run: Run) -> str | None:
    if not run.written.megatron.get("model.moe_paged_stash"):
        return None
    if not run.written.megatron.get("model.moe_expert_rank_capacity_factor"):
        return "moe_paged_stash needs moe_expert_rank_capacity_factor"
    bad = _layer_offload(run) or run.offload_modules & {"expert_fc1", "moe_act", "fused_group_mlp"}
    return "moe_paged_stash excludes expert and layer offload" if bad else None


