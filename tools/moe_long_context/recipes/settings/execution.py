"""Settings that change how a step executes: dispatcher, recompute, offload, CUDA graphs, kernels and overlap."""

from __future__ import annotations

from moe_long_context.config.formats.migrations import migrate
from moe_long_context.config.resolve import FLEX, Run
from moe_long_context.recipes.settings.setting import Setting


def moe(run: Run) -> list[Setting]:
    """Token dispatcher, capacity and padding of the experts."""
    if not run.arch.is_moe:
        return []
    flex = run.dispatcher in FLEX
    m, overlap = run.written.moe, run.written.overlap
    out = [
        Setting("model.moe_token_dispatcher_type", "flex" if flex else run.dispatcher),
        Setting("model.moe_shared_expert_overlap", bool(overlap.shared_expert)),
        Setting("model.moe_expert_capacity_factor", m.capacity_factor, "None = dropless"),
        Setting("model.moe_pad_expert_input_to_capacity", m.pad_to_capacity),
    ]
    if flex:
        out.insert(1, Setting("model.moe_flex_dispatcher_backend", run.dispatcher))
    if run.precision != "bf16":
        out.append(Setting("model.moe_router_padding_for_quantization", True, "rows of each expert fit the FP8 tile"))
    return out


def recompute(run: Run) -> list[Setting]:
    """What is recomputed in the backward pass, and what is offloaded to the host instead."""
    selective = run.recompute_granularity == "selective"
    modules = sorted(run.recompute_modules) if selective else None
    offload = sorted(run.offload_modules)
    return [
        Setting("model.recompute_granularity", run.recompute_granularity),
        Setting("model.recompute_method", run.recompute_method),
        Setting("model.recompute_num_layers", run.recompute_num_layers),
        Setting("model.recompute_modules", modules),
        Setting("model.fine_grained_activation_offloading", bool(offload)),
        Setting("model.offload_modules", offload),
    ]


def graphs(run: Run) -> tuple[str, list[str]]:
    """CUDA graph implementation and modules in the current spelling."""
    graph = run.written.cuda_graph
    fields, _ = migrate({"model.cuda_graph_impl": graph.impl, "model.cuda_graph_modules": list(graph.modules)})
    return fields["model.cuda_graph_impl"], fields["model.cuda_graph_modules"]


def kernels(run: Run) -> list[Setting]:
    """CUDA graphs, attention backend, loss kernel and vocabulary padding."""
    vocab = run.written.vocab
    impl, modules = graphs(run)
    fused = run.loss != "eager"
    out = [
        Setting("model.cuda_graph_impl", impl),
        Setting("model.cuda_graph_modules", modules),
        Setting("model.cuda_graph_scope", None, "the older spelling, cleared"),
        Setting("model.use_te_rng_tracker", impl != "none", "CUDA graphs need it"),
        Setting("rng.te_rng_tracker", impl != "none"),
        Setting("model.cross_entropy_loss_fusion", fused),
        Setting("model.cross_entropy_fusion_impl", run.cross_entropy_fusion_impl if fused else "native"),
        Setting("model.should_pad_vocab", bool(vocab.should_pad)),
    ]
    if run.written.attention_backend:
        out.append(Setting("model.attention_backend", run.written.attention_backend))
    if vocab.divisible_by:
        out.append(Setting("model.make_vocab_size_divisible_by", vocab.divisible_by))
    if impl == "full_iteration":
        out.append(Setting("rerun_state_machine.check_for_nan_in_loss", False, "full-iteration graphs refuse it"))
    return out


def overlap(run: Run) -> list[Setting]:
    """Communication overlap; Bridge would otherwise decide from DP alone and ignore CP."""
    o = run.written.overlap
    replicas = run.sizes.dp * run.sizes.cp > 1
    grad = (run.distributed_optimizer and replicas) if o.grad_reduce is None else o.grad_reduce
    gather = (run.distributed_optimizer and replicas) if o.param_gather is None else o.param_gather
    out = [
        Setting("comm_overlap.tp_comm_overlap", bool(o.tp_comm)),
        Setting("comm_overlap.overlap_grad_reduce", grad),
        Setting("comm_overlap.overlap_param_gather", gather),
        Setting("ddp.overlap_grad_reduce", grad),
        Setting("ddp.overlap_param_gather", gather),
        Setting("optimizer.overlap_param_gather", gather),
        Setting("comm_overlap.overlap_moe_expert_parallel_comm", bool(o.ep_a2a)),
        Setting("comm_overlap.delay_wgrad_compute", bool(o.delay_wgrad)),
    ]
    if o.p2p is not None:
        out += [
            Setting("comm_overlap.overlap_p2p_comm", o.p2p),
            Setting("comm_overlap.batch_p2p_comm", not o.p2p),
        ]
    return out
