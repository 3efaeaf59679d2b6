"""Fixes that change the run configuration: each a small function from a run to candidate changes, mildest first.

Every fix says what it costs. What it saves is not claimed here: `fixes` estimates the changed configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from moe_long_context.config.resolve import Run

Change = dict[str, Any]
MAX_FACTOR = 16


class Remedy(NamedTuple):
    """One kind of change; `options` yields candidate changes, mildest first."""

    tag: str
    cost: str
    options: Callable[[Run], Iterator[Change]]
    also: tuple[str, ...] = ()


REMEDIES: dict[str, Remedy] = {}


def remedy(tag: str, cost: str, *also: str) -> Callable[[Callable[[Run], Iterator[Change]]], None]:
    """Register a function that yields changes, mildest first, under a tag (and the tags it implies)."""

    def register(options: Callable[[Run], Iterator[Change]]) -> None:
        REMEDIES[tag] = Remedy(tag, cost, options, also)

    return register


def _doublings(size: int, limit: int) -> Iterator[int]:
    factor = 2
    while factor <= MAX_FACTOR and size * factor <= limit:
        yield size * factor
        factor *= 2


def _clear_layout(run: Run, pp: int) -> Change:
    """A pipeline split for another PP: even where it divides, else an explicit layout."""
    change: Change = {
        "pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": None,
        "pipeline_model_parallel_layout": None, "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None, "account_for_embedding_in_pipeline_split": None,
        "account_for_loss_in_pipeline_split": None,
    }  # fmt: skip
    if pp > 1 and (run.arch.num_layers % pp or run.mtp):
        change["pipeline_model_parallel_layout"] = even_layout(run.arch.num_layers, pp, run.mtp)
    return change


def even_layout(num_layers: int, stages: int, mtp: int = 0) -> str:
    """A layout string that spreads the layers evenly; the last stages, which also hold MTP and loss, get fewer."""
    base, extra = divmod(num_layers + mtp, stages)
    counts = [base + (i < extra) for i in range(stages)]
    counts[-1] -= mtp
    parts = [f"t*{n}" if n > 1 else "t" * n for n in counts]
    parts[0] = "E" + parts[0]
    parts[-1] += "m" * mtp + "L"
    return "|".join(parts)


@remedy("increase_cp", "more attention communication; data parallelism shrinks unless GPUs are added")
def _increase_cp(run: Run) -> Iterator[Change]:
    for cp in _doublings(run.sizes.cp, run.num_gpus // (run.sizes.tp * run.sizes.pp)):
        yield {"context_parallel_size": cp}


@remedy("increase_tp", "all-gather and reduce-scatter in every layer", "sequence_parallel", "pin_etp_1")
def _increase_tp(run: Run) -> Iterator[Change]:
    limit = min(run.num_gpus // (run.sizes.cp * run.sizes.pp), run.gpu.nvlink_domain, run.arch.num_attention_heads)
    for tp in _doublings(run.sizes.tp, limit):
        change: Change = {"tensor_model_parallel_size": tp, "sequence_parallel": True}
        yield change | ({"expert_tensor_parallel_size": run.sizes.etp} if run.arch.is_moe else {})


@remedy("increase_ep", "token exchange over more ranks, beyond the NVLink domain over the network")
def _increase_ep(run: Run) -> Iterator[Change]:
    if not run.arch.is_moe:
        return
    limit = min(run.num_gpus // (run.sizes.etp * run.sizes.pp), run.arch.num_moe_experts or 1)
    for ep in _doublings(run.sizes.ep, limit):
        change: Change = {"expert_model_parallel_size": ep}
        yield change | ({"expert_tensor_parallel_size": run.sizes.etp} if run.sizes.tp > 1 else {})


@remedy("increase_pp", "pipeline bubbles: more microbatches are needed to hide them")
def _increase_pp(run: Run) -> Iterator[Change]:
    limit = min(run.num_gpus // (run.sizes.tp * run.sizes.cp), run.arch.num_layers)
    for pp in _doublings(run.sizes.pp, limit):
        yield _clear_layout(run, pp)


def _selective(run: Run, *modules: str) -> Change:
    have = set() if run.recompute_granularity != "selective" else set(run.recompute_modules) - {"core_attn"}
    kept = sorted(have | set(modules))
    return {"recompute": {"granularity": "selective", "modules": kept, "method": None, "num_layers": None}}


@remedy("recompute_moe_act", "about 1 % slower: the expert activation function runs twice")
def _recompute_moe_act(run: Run) -> Iterator[Change]:
    if run.arch.is_moe and run.recompute_granularity != "full" and not {"moe_act", "moe"} & run.recompute_modules:
        yield _selective(run, "moe_act")
        yield _selective(run, "moe_act", "layernorm")


@remedy(
    "recompute_selective_moe", "the experts and their token exchange run twice in the backward pass", "recompute_moe"
)
def _recompute_moe(run: Run) -> Iterator[Change]:
    if run.arch.is_moe and run.recompute_granularity != "full" and "moe" not in run.recompute_modules:
        extra = {"layernorm"} | ({"mla_up_proj"} if run.arch.multi_latent_attention else set())
        change = _selective(run, "moe")
        yield change
        wide = _selective(run, "moe", *extra)
        wide["recompute"]["modules"] = [m for m in wide["recompute"]["modules"] if m != "moe_act"]
        yield wide


@remedy(
    "recompute_moe", "the experts and their token exchange run twice in the backward pass", "recompute_selective_moe"
)
def _recompute_moe_alias(run: Run) -> Iterator[Change]:
    yield from REMEDIES["recompute_selective_moe"].options(run)


@remedy("recompute_full", "about a third more compute: every layer's forward runs twice")
def _recompute_full(run: Run) -> Iterator[Change]:
    if run.recompute_granularity != "full":
        yield {"recompute": {"granularity": "full", "method": "uniform", "num_layers": 1, "modules": None}}


@remedy("activation_offload", "copies over the host link, mostly hidden behind compute at long context")
def _activation_offload(run: Run) -> Iterator[Change]:
    if run.arch.is_moe and not run.offload_modules and run.recompute_granularity is None:
        yield {"activation_offload": {"modules": ["expert_fc1", "moe_act"]}}


@remedy("optimizer_cpu_offload", "seconds per step for the update on the host; host memory of 12 bytes per parameter")
def _optimizer_offload(run: Run) -> Iterator[Change]:
    for fraction in (0.25, 0.5, 0.75, 1.0):
        if fraction > run.cpu_offload_fraction:
            yield {"optimizer": {"cpu_offload_fraction": fraction, "cpu_offload": True, "precision_aware": True}}


@remedy("optimizer_offload_fraction<1", "more GPU memory: that part of the optimizer state moves back")
def _less_offload(run: Run) -> Iterator[Change]:
    for fraction in (0.75, 0.5, 0.25):
        if fraction < (run.cpu_offload_fraction or 1.0):
            yield {"optimizer": {"cpu_offload_fraction": fraction, "cpu_offload": True}}


@remedy("bf16_moments", "changes the training: Adam's moments are kept in BF16")
def _bf16_moments(run: Run) -> Iterator[Change]:
    if run.optimizer == "adam" and run.moment_dtype == "fp32":
        yield {"optimizer": {"precision_aware": True, "moment_dtype": "bf16"}}


@remedy("fused_linear_cross_entropy", "a kernel that must exist for this GPU; the logits are never built")
def _linear_ce(run: Run) -> Iterator[Change]:
    if run.loss != "linear_fused":
        yield {"loss": "linear_fused"}


@remedy("chunk_logprob", "a loop over the sequence in the loss; a few percent of the loss's time")
def _chunked(run: Run) -> Iterator[Change]:
    if run.loss not in ("chunked", "linear_fused"):
        yield {"loss": "chunked"}


@remedy("reduce_micro_batch", "more microbatches of less work each", "reduce_tokens_per_gpu")
def _smaller_micro_batch(run: Run) -> Iterator[Change]:
    if run.micro_batch_size > 1:
        yield {"micro_batch_size": run.micro_batch_size // 2}
        yield {"micro_batch_size": 1}


@remedy("mbs=1", "more microbatches of less work each")
def _micro_batch_one(run: Run) -> Iterator[Change]:
    if run.micro_batch_size > 1:
        yield {"micro_batch_size": 1}


@remedy("expandable_segments", "none; check it with CUDA graphs and DeepEP")
def _expandable(run: Run) -> Iterator[Change]:
    if "expandable_segments:True" not in str(run.written.env.get("PYTORCH_CUDA_ALLOC_CONF", "")):
        yield {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}}


@remedy("capacity_factor", "changes the training: tokens above the capacity are dropped")
def _capacity(run: Run) -> Iterator[Change]:
    if run.arch.is_moe and run.written.moe.capacity_factor is None:
        yield {"moe": {"capacity_factor": 1.5}}


@remedy("no_create_attention_mask_in_dataloader", "none: the kernels make the causal mask themselves")
def _no_mask(run: Run) -> Iterator[Change]:
    yield {"megatron": {"dataset.create_attention_mask": False}}


@remedy("disable_cuda_graph", "kernel launches are no longer hidden")
def _no_graph(run: Run) -> Iterator[Change]:
    if run.written.cuda_graph.impl != "none":
        yield {"cuda_graph": {"impl": "none", "modules": None}}


@remedy("reduce_inflight_microbatches", "a larger pipeline bubble")
def _fewer_in_flight(run: Run) -> Iterator[Change]:
    rounds = run.num_microbatches
    if rounds > run.sizes.pp > 1:
        yield {"global_batch_size": run.sizes.pp * run.micro_batch_size * max(run.sizes.dp, 1)}


@remedy("te_rng_tracker", "none")
def _rng(run: Run) -> Iterator[Change]:
    yield {"megatron": {"rng.te_rng_tracker": True}}


@remedy("dispatcher=alltoall", "slower exchange between nodes than a working DeepEP or HybridEP")
def _alltoall(run: Run) -> Iterator[Change]:
    if run.dispatcher != "alltoall":
        yield {"dispatcher": "alltoall"}


@remedy("dispatcher=hybridep", "another package to install")
def _hybridep(run: Run) -> Iterator[Change]:
    if run.dispatcher != "hybridep":
        yield {"dispatcher": "hybridep"}


@remedy("ep<=8", "more expert weights per GPU")
def _ep_in_domain(run: Run) -> Iterator[Change]:
    domain = run.gpu.nvlink_domain
    if run.sizes.ep > domain:
        yield {"expert_model_parallel_size": domain}


@remedy("disable_ep_overlap", "the token exchange is exposed again")
def _no_overlap(run: Run) -> Iterator[Change]:
    if run.written.overlap.ep_a2a:
        yield {"overlap": {"ep_a2a": False, "delay_wgrad": None}}


@remedy("sequence_parallel", "none; it saves memory too")
def _sp(run: Run) -> Iterator[Change]:
    if not run.sequence_parallel and run.sizes.tp > 1:
        yield {"sequence_parallel": True}


@remedy("pin_etp_1", "none: experts stay whole, so their matrices stay large")
def _etp(run: Run) -> Iterator[Change]:
    if run.sizes.etp > 1 or run.written.expert_tensor_parallel_size is None:
        yield {"expert_tensor_parallel_size": 1}


@remedy("cp_comm_type=a2a", "needs heads and KV heads that divide over CP x TP")
def _a2a(run: Run) -> Iterator[Change]:
    if run.cp_comm_type != "a2a":
        yield {"cp_comm_type": "a2a", "hierarchical_context_parallel_sizes": None}


@remedy("cp_comm_type=p2p", "none: the default ring exchange")
def _p2p(run: Run) -> Iterator[Change]:
    if run.cp_comm_type != "p2p":
        yield {"cp_comm_type": "p2p", "hierarchical_context_parallel_sizes": None}


@remedy("hierarchical_context_parallel_sizes", "none: all-to-all inside the node, ring between nodes")
def _hierarchical(run: Run) -> Iterator[Change]:
    for inner in (8, 4, 2):
        if run.sizes.cp % inner == 0 and run.sizes.cp > inner:
            yield {"hierarchical_context_parallel_sizes": [inner, run.sizes.cp // inner]}


@remedy("disable_mtp", "changes the training: no multi-token prediction")
def _no_mtp(run: Run) -> Iterator[Change]:
    if run.mtp:
        yield {"mtp_num_layers": 0, **_clear_layout(run, run.sizes.pp)}


@remedy("moe_permute_fusion", "none; needs TransformerEngine 2.1 or newer")
def _permute_fusion(run: Run) -> Iterator[Change]:
    yield {"megatron": {"model.moe_permute_fusion": True}}


@remedy("moe_router_padding_for_fp8", "a few padded tokens per expert")
def _router_padding(run: Run) -> Iterator[Change]:
    yield {"megatron": {"model.moe_router_padding_for_quantization": True}}


@remedy("dist_ckpt_optim_fully_reshardable", "slower saves; works for checkpoints saved from now on")
def _reshardable(run: Run) -> Iterator[Change]:
    yield {"megatron": {"checkpoint.dist_ckpt_optim_fully_reshardable": True}}


@remedy("drop_recompute_num_layers", "none")
def _no_num_layers(run: Run) -> Iterator[Change]:
    yield {"recompute": {"num_layers": None, "method": None}}


@remedy("overlap_optimizer_copies", "host memory for pinned copies")
def _overlap_copies(run: Run) -> Iterator[Change]:
    if run.cpu_offload_fraction:
        yield {"megatron": {"optimizer.overlap_cpu_optimizer_d2h_h2d": True}}


@remedy("dispatcher=deepep", "needs DeepEP; fragile between nodes")
def _deepep(run: Run) -> Iterator[Change]:
    if run.dispatcher != "deepep":
        yield {"dispatcher": "deepep"}


@remedy("cp_comm_type=all_gather", "keys and values of the whole sequence on every rank", "cp_comm_type=allgather")
def _all_gather(run: Run) -> Iterator[Change]:
    if run.cp_comm_type != "all_gather":
        yield {"cp_comm_type": "all_gather", "hierarchical_context_parallel_sizes": None}


@remedy("graph_dropless_modules", "experts run eagerly: their token counts change from step to step")
def _graph_modules(run: Run) -> Iterator[Change]:
    if run.written.cuda_graph.impl != "none":
        yield {"cuda_graph": {"impl": run.written.cuda_graph.impl, "modules": ["attn", "moe_router", "moe_preprocess"]}}
        yield {"cuda_graph": {"impl": run.written.cuda_graph.impl, "modules": ["attn", "moe_router"]}}


@remedy("disable_activation_offload", "the offloaded activations stay on the GPU")
def _no_activation_offload(run: Run) -> Iterator[Change]:
    if run.offload_modules:
        yield {"activation_offload": {"modules": None}}


@remedy("use_precision_aware_optimizer", "none")
def _precision_aware(run: Run) -> Iterator[Change]:
    yield {"optimizer": {"precision_aware": True, "distributed": True}}


@remedy("drop_fp8_param_gather", "BF16 weights stay on the GPU")
def _no_fp8_gather(run: Run) -> Iterator[Change]:
    yield {"megatron": {"mixed_precision.fp8_param_gather": False, "mixed_precision.fp8_param": False}}
