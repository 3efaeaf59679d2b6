"""Context parallelism, attention kernels under it, and the sequence length."""

from __future__ import annotations

import math
from typing import Any

from moe_long_context.config.resolve import Run
from moe_long_context.rules.rule import rule

BASE: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": 65536, "cp": 4, "ep": 8, "gbs": 64}
GPT_OSS: dict[str, Any] = {**BASE, "model": "gpt-oss-20b", "cp_comm_type": "a2a", "attention_backend": "fused"}
MLA_A2A: dict[str, Any] = {**BASE, "model": "deepseek-v2-lite", "cp_comm_type": "a2a"}
CONFIG = "megatron-core 0.19.2 transformer/transformer_config.py __post_init__"
TE_CP = "TransformerEngine pytorch/attention/dot_product_attention/context_parallel.py"
TE_UTILS = "TransformerEngine pytorch/attention/dot_product_attention/utils.py get_attention_backend"
LEGAL = ("p2p", "all_gather", "a2a", "a2a+p2p")
CP, COMM, HCP = "context_parallel_size", "cp_comm_type", "hierarchical_context_parallel_sizes"

MLA_A2A_SINCE = (2, 16)
"""First TransformerEngine whose a2a takes latent attention: version file at commit ee5dcec22 (2026-04-21)."""


def comms(run: Run) -> tuple[str, ...]:
    """The communication types of the run's layers."""
    given = run.cp_comm_type
    return (given,) if isinstance(given, str) else tuple(given)


def _softmax_layers(run: Run) -> bool:
    return any(kind.attention in ("gqa", "mla") for kind in run.arch.layer_kinds)


@rule(
    "seq-div-tp-sp", "error", "sequence does not divide over CP*TP under sequence parallelism",
    why="Each CP rank's shard is split over TP again.", fix="use a seq_length that is a multiple of CP*TP",
    where="first forward", fields=f"seq_length {CP} tensor_model_parallel_size sequence_parallel",
    source="megatron-core 0.19.2 tensor_parallel/mappings.py", fails={"tp": 4, "sp": True, "seq_length": 65544},
    passes={"tp": 4, "sp": True}, needs=("seq_length",),
)  # fmt: skip
def _sp(run: Run) -> str | None:
    s = run.sizes
    if not run.sequence_parallel or run.seq_length % (s.cp * s.tp) == 0:
        return None
    return f"seq_length={run.seq_length} is not a multiple of CP*TP = {s.cp}*{s.tp}"


@rule(
    "seq-div-2cp", "error", "sequence does not divide by 2*CP",
    why="Each rank holds two mirrored chunks so that causal work is balanced.",
    fix="use a seq_length that is a multiple of 2*CP", where="data", fields=f"seq_length {CP}",
    source="megatron-core 0.19.2 core/utils.py get_batch_on_this_cp_rank", fails={"seq_length": 65540, "cp": 8},
    passes={}, needs=("seq_length",),
)  # fmt: skip
def _two_cp(run: Run) -> str | None:
    cp = run.sizes.cp
    return f"seq_length={run.seq_length} is not a multiple of 2*CP = {2 * cp}" if cp > 1 and run.seq_length % (2 * cp) else None


@rule(
    "dataset-model-seq-match", "error", "model and dataset sequence lengths differ",
    why="Bridge compares them and stops.", fix="set dataset.seq_length to model.seq_length", where="config",
    fields="seq_length dataset.seq_length", source="megatron-bridge 0.6.2 training/config.py ConfigContainer.validate",
    frontends=("bridge",), fails={"megatron": {"dataset.seq_length": 4096}}, passes={}, needs=("seq_length",),
    repair=lambda run: {"megatron": {"dataset.seq_length": run.seq_length}},
)  # fmt: skip
def _dataset(run: Run) -> str | None:
    given = run.written.megatron.get("dataset.seq_length")
    return f"dataset.seq_length={given}, model.seq_length={run.seq_length}" if given not in (None, run.seq_length) else None


@rule(
    "cp-needs-te", "error", "CP without TransformerEngine attention",
    why="Megatron-Core's own attention asserts CP == 1.", fix="use transformer_impl transformer_engine and backend auto",
    where="model build", fields=f"{CP} attention_backend model.transformer_impl",
    source="megatron-core 0.19.2 transformer/dot_product_attention.py", fails={"attention_backend": "local"}, passes={},
)  # fmt: skip
def _te(run: Run) -> str | None:
    local = run.attention_backend == "local" or run.written.megatron.get("model.transformer_impl") == "local"
    return f"CP={run.sizes.cp} with local attention" if run.sizes.cp > 1 and local else None


@rule(
    "cp-unfused-disabled", "error", "CP with the unfused backend only",
    why="TransformerEngine removes the unfused backend under CP, so none is left.",
    fix="use attention_backend auto, flash or fused, and do not set both NVTE_FLASH_ATTN=0 and NVTE_FUSED_ATTN=0",
    where="first forward", fields=f"{CP} attention_backend env", source=TE_UTILS,
    fails={"attention_backend": "unfused"}, passes={"attention_backend": "flash"},
)  # fmt: skip
def _unfused(run: Run) -> str | None:
    env = run.written.env
    off = env.get("NVTE_FLASH_ATTN") == "0" and env.get("NVTE_FUSED_ATTN") == "0"
    blocked = run.attention_backend == "unfused" or off
    return f"CP={run.sizes.cp} leaves no attention backend" if run.sizes.cp > 1 and blocked else None


@rule(
    "cp-fused-only-for-sbhd-flash", "error", "FlashAttention 4 under CP",
    why="TransformerEngine drops it under CP.", fix="leave flash_attention_version unset", where="first forward",
    fields=f"{CP} model.flash_attention_version", source=TE_UTILS, since="0.19.2",
    fails={"megatron": {"model.flash_attention_version": 4}}, passes={},
)  # fmt: skip
def _fa4(run: Run) -> str | None:
    four = run.written.megatron.get("model.flash_attention_version") == 4
    return "flash_attention_version 4 is not available under CP" if run.sizes.cp > 1 and four else None


@rule(
    "cp-comm-type-values", "error", "unknown cp_comm_type",
    why="TransformerEngine takes exactly p2p, all_gather, a2a and a2a+p2p; the help text's allgather is read only by DSA.",
    fix="use p2p, all_gather, a2a or a2a+p2p", where="first forward", fields=COMM, source=TE_CP,
    fails={"cp_comm_type": "ring"}, passes={"cp_comm_type": "p2p"},
)  # fmt: skip
def _values(run: Run) -> str | None:
    bad = sorted({c for c in comms(run) if c not in LEGAL})
    return f"cp_comm_type {', '.join(bad)} is not one of {', '.join(LEGAL)}" if bad else None


@rule(
    "cp-comm-type-list-length", "error", "cp_comm_type list of another length than the layers",
    why="A list names one type for each layer.", fix="give num_layers entries, or one value", where="config",
    fields=f"{COMM} model.num_layers", source=CONFIG, fails={"cp_comm_type": ["p2p", "a2a"]}, passes={"cp_comm_type": "p2p"},
    needs=("model",),
)  # fmt: skip
def _list(run: Run) -> str | None:
    given = run.cp_comm_type
    if isinstance(given, str) or len(given) == run.arch.num_layers or run.sizes.cp == 1:
        return None
    return f"cp_comm_type lists {len(given)} entries for {run.arch.num_layers} layers"


def _head_problem(run: Run, size: int) -> str | None:
    """Why `size` ranks cannot scatter this run's heads, None when they can."""
    tp, a = run.sizes.tp, run.arch
    groups = a.num_attention_heads if a.multi_latent_attention else a.num_query_groups
    heads, kv = a.num_attention_heads / tp, max(groups / tp, 1)
    if heads % size or kv % size:
        return f"heads/TP = {heads:g} and KV groups/TP = {kv:g} must both be multiples of {size}"
    return None


@rule(
    "a2a-head-divisibility", "error", "a2a needs more heads than there are",
    why="All-to-all scatters heads over CP, so CP is at most KV groups / TP.",
    fix="use p2p, or a2a+p2p with a smaller inner size, or a smaller CP", where="first forward",
    fields=f"{COMM} {CP} tensor_model_parallel_size", source=TE_CP, fails={"cp": 8, "cp_comm_type": "a2a"},
    passes={"cp": 4, "cp_comm_type": "a2a"},
    needs=("model",),
)  # fmt: skip
def _a2a(run: Run) -> str | None:
    if run.sizes.cp == 1 or "a2a" not in comms(run) or not _softmax_layers(run):
        return None
    problem = _head_problem(run, run.sizes.cp)
    return f"cp_comm_type=a2a with CP={run.sizes.cp}: {problem}" if problem else None


@rule(
    "mla-a2a-te-version", "error", "latent attention with a2a on an older TransformerEngine",
    why="Before 2.16 attention under CP takes different head sizes of K and V only with p2p and a2a+p2p.",
    fix="use a2a+p2p with hierarchical sizes, or TransformerEngine 2.16", where="first forward", fields=COMM,
    source=f"{TE_CP}: assertion in 2.9, removed by commit ee5dcec22",
    fails={**MLA_A2A, "versions": {"transformer_engine": "2.11.0"}}, passes=MLA_A2A,
)  # fmt: skip
def _mla_a2a(run: Run) -> str | None:
    bad = run.sizes.cp > 1 and run.arch.multi_latent_attention and "a2a" in comms(run) and run.te_version < MLA_A2A_SINCE
    return "cp_comm_type=a2a with latent attention needs TransformerEngine 2.16" if bad else None


@rule(
    "a2a-p2p-inner-heads", "error", "the inner a2a group is larger than the heads allow",
    why="Inside the first hierarchical level heads are scattered.", fix="use a smaller first hierarchical size",
    where="first forward", fields=f"{COMM} {HCP}", source=TE_CP,
    fails={"cp": 16, "num_gpus": 64, "cp_comm_type": "a2a+p2p", "hcp": [8, 2]},
    passes={"cp": 16, "num_gpus": 64, "cp_comm_type": "a2a+p2p", "hcp": [4, 4]},
    needs=("model",),
)  # fmt: skip
def _inner(run: Run) -> str | None:
    sizes = run.written.hierarchical_context_parallel_sizes
    if "a2a+p2p" not in comms(run) or not sizes or run.sizes.cp == 1:
        return None
    problem = _head_problem(run, sizes[0])
    return f"inner a2a size {sizes[0]}: {problem}" if problem else None


@rule(
    "hcp-sizes-product", "error", "hierarchical CP sizes do not multiply to CP",
    why="The levels must make up the CP group.", fix="make the product equal CP", where="process groups",
    fields=f"{HCP} {CP}", source="megatron-core 0.19.2 parallel_state.py create_hierarchical_groups",
    fails={"cp_comm_type": "a2a+p2p", "hcp": [4, 4]}, passes={"cp_comm_type": "a2a+p2p", "hcp": [2, 2]},
)  # fmt: skip
def _product(run: Run) -> str | None:
    sizes = run.written.hierarchical_context_parallel_sizes
    if not sizes or math.prod(sizes) == run.sizes.cp:
        return None
    return f"hierarchical sizes {list(sizes)} multiply to {math.prod(sizes)}, CP is {run.sizes.cp}"


@rule(
    "hcp-required-for-a2a-p2p", "error", "a2a+p2p without hierarchical sizes",
    why="The two levels must be said.", fix="set hierarchical_context_parallel_sizes, for example [NVLink size, CP / it]",
    where="config", fields=f"{COMM} {HCP}", source="megatron-bridge 0.6.2 training/config.py ConfigContainer.validate",
    fails={"cp_comm_type": "a2a+p2p"}, passes={"cp_comm_type": "a2a+p2p", "hcp": [2, 2]},
)  # fmt: skip
def _required(run: Run) -> str | None:
    lacks = "a2a+p2p" in comms(run) and not run.written.hierarchical_context_parallel_sizes
    return "cp_comm_type a2a+p2p needs hierarchical_context_parallel_sizes" if lacks and run.sizes.cp > 1 else None


@rule(
    "hcp-two-levels", "error", "a2a+p2p with other than two levels",
    why="TransformerEngine expects one a2a and one p2p group.", fix="give exactly two sizes", where="first forward",
    fields=HCP, source=TE_CP, fails={"cp": 8, "cp_comm_type": "a2a+p2p", "hcp": [2, 2, 2]},
    passes={"cp_comm_type": "a2a+p2p", "hcp": [2, 2]},
)  # fmt: skip
def _levels(run: Run) -> str | None:
    sizes = run.written.hierarchical_context_parallel_sizes
    return f"{len(sizes)} levels where a2a+p2p takes two" if sizes and len(sizes) != 2 and "a2a+p2p" in comms(run) else None


@rule(
    "hcp-no-decentralized-pg", "error", "hierarchical CP with decentralized process groups",
    why="Bridge's decentralized groups do not build the levels.", fix="set dist.use_decentralized_pg to False",
    where="process groups", fields=f"{HCP} dist.use_decentralized_pg",
    source="megatron-bridge 0.6.2 training/initialize.py _create_pg_collection", frontends=("bridge",),
    fails={"cp_comm_type": "a2a+p2p", "hcp": [2, 2], "megatron": {"dist.use_decentralized_pg": True}},
    passes={"cp_comm_type": "a2a+p2p", "hcp": [2, 2]},
)  # fmt: skip
def _decentralized(run: Run) -> str | None:
    both = run.written.hierarchical_context_parallel_sizes and run.written.field("dist.use_decentralized_pg")
    return "use_decentralized_pg does not support hierarchical CP" if both else None


@rule(
    "sliding-window-cp", "error", "sliding window under ring CP",
    why="Windowed attention under CP works only with a2a or all_gather.", fix="set cp_comm_type to a2a or all_gather",
    where="first forward", fields=f"{COMM} {CP}", source=TE_CP, fails={"base": GPT_OSS, "cp_comm_type": "p2p"},
    passes={"base": GPT_OSS}, repair=lambda run: {"cp_comm_type": "a2a"},
)  # fmt: skip
def _window(run: Run) -> str | None:
    bad = [c for c in comms(run) if c not in ("a2a", "all_gather")]
    windowed = run.arch.window_size is not None
    return f"sliding-window layers with cp_comm_type {bad[0]}" if run.sizes.cp > 1 and windowed and bad else None


@rule(
    "sink-softmax-cp", "error", "attention sinks under CP need a2a",
    why="Learned or off-by-one softmax under CP is implemented for a2a with the cuDNN backend only; elsewhere it fails or is ignored.",
    fix="set cp_comm_type a2a and attention_backend auto or fused", where="first forward",
    fields=f"{COMM} attention_backend {CP}", source=TE_UTILS, since="0.15.0",
    fails={"base": GPT_OSS, "cp_comm_type": "all_gather"}, passes={"base": GPT_OSS},
    repair=lambda run: {"cp_comm_type": "a2a"},
)  # fmt: skip
def _sink(run: Run) -> str | None:
    if run.sizes.cp == 1 or run.arch.softmax_type == "vanilla":
        return None
    wrong = [c for c in comms(run) if c != "a2a"]
    if wrong:
        return f"softmax_type {run.arch.softmax_type} under CP={run.sizes.cp} with cp_comm_type {wrong[0]}"
    return "attention sinks under CP need the fused backend" if run.attention_backend == "flash" else None


@rule(
    "sink-no-flash", "warning", "attention sinks disable FlashAttention",
    why="A softmax other than vanilla is not implemented there.", fix="use attention_backend auto or fused",
    where="first forward", fields="attention_backend", source=TE_UTILS, since="0.15.0",
    fails={"base": GPT_OSS, "cp": 1, "attention_backend": "flash"}, passes={"base": GPT_OSS},
)  # fmt: skip
def _flash(run: Run) -> str | None:
    both = run.arch.softmax_type != "vanilla" and run.attention_backend == "flash"
    return f"softmax_type {run.arch.softmax_type} has no FlashAttention kernel" if both else None


@rule(
    "sink-te-version", "error", "TransformerEngine is too old for a feature in use",
    why="Sinks need 2.8, a2a+p2p 1.12.", fix="use a newer TransformerEngine", where="config",
    fields="versions.transformer_engine", source="megatron-core 0.19.2 extensions/transformer_engine.py",
    fails={"base": GPT_OSS, "versions": {"transformer_engine": "2.7.0"}}, passes={"base": GPT_OSS},
)  # fmt: skip
def _te_version(run: Run) -> str | None:
    if run.written.versions.transformer_engine is None:
        return None
    if run.arch.softmax_type != "vanilla" and run.te_version < (2, 8):
        return "softmax_type other than vanilla needs TransformerEngine 2.8"
    return "a2a+p2p needs TransformerEngine 1.12" if "a2a+p2p" in comms(run) and run.te_version < (1, 12) else None


@rule(
    "cp-fp8-dpa", "error", "FP8 attention under CP",
    why="FP8 attention under CP takes no FlashAttention and no packed sequences.",
    fix="turn fp8_dot_product_attention off", where="first forward",
    fields="mixed_precision.fp8_dot_product_attention data.packed attention_backend", source=TE_UTILS,
    fails={"megatron": {"mixed_precision.fp8_dot_product_attention": True}, "data": {"packed": True}}, passes={},
)  # fmt: skip
def _dpa(run: Run) -> str | None:
    on = run.written.field("mixed_precision.fp8_dot_product_attention") or run.written.field("model.fp8_dot_product_attention")
    bad = run.written.data.packed or run.attention_backend == "flash"
    return "FP8 attention under CP with packed data or FlashAttention" if on and bad and run.sizes.cp > 1 else None


@rule(
    "cp-vs-ep-topology", "warning", "TP*CP leaves the NVLink domain",
    why="TP and CP groups occupy neighbouring GPUs; beyond the domain the KV exchange runs over the network in every layer.",
    fix="keep TP*CP within the domain, or use a2a+p2p with the inner size inside it", where="silently",
    fields=f"{CP} tensor_model_parallel_size {COMM}", source="megatron-core 0.19.2 parallel_state.py rank order tp-cp-ep-dp-pp",
    fails={"cp": 16}, passes={"cp": 4}, needs=("gpu",),
)  # fmt: skip
def _topology(run: Run) -> str | None:
    span, domain = run.sizes.tp * run.sizes.cp, run.gpu.nvlink_domain
    hierarchical = "a2a+p2p" in comms(run) and run.sizes.tp <= domain
    if (run.sizes.cp == 1 and run.sizes.tp == 1) or span <= domain or hierarchical:
        return None
    return f"TP*CP = {span} GPUs span more than the NVLink domain of {domain}"


@rule(
    "ring-cp-forward-buffers", "warning", "the CP ring keeps every received KV until the layer's forward ends",
    why="TransformerEngine's p2p ring holds CP buffers of k and v and CP partial outputs at once, so its transient grows with "
        "the whole sequence, not with the shard.",
    fix="use a2a (or a2a+p2p) where heads allow, or more TP", where="silently", fields=f"{COMM} {CP}",
    source=f"{TE_CP} AttnFuncWithCPAndKVP2P.forward (p2p_comm_buffers, out_per_step)",
    fails={"model": "deepseek-v3", "seq_length": 262144, "cp": 32, "num_gpus": 256}, passes={},
    needs=("model", "seq_length", "gpu"),
)  # fmt: skip
def _ring(run: Run) -> str | None:
    from moe_long_context.memory.working import layer_working
    from moe_long_context.units import gib

    if run.sizes.cp < 4 or "p2p" not in comms(run):
        return None
    kinds = {kind for kind in run.arch.layer_kinds if kind.attention in ("gqa", "mla")}
    size = max((gib(layer_working(run, kind).forward) for kind in kinds), default=0.0)
    return f"about {size:.1f} GiB live in each attention forward" if size > 0.05 * run.gpu.memory_gib else None


@rule(
    "activation-shard-target", "info", "tokens per GPU beyond the usual shard",
    why="About 4K tokens per rank is the published starting point (CP = seq / 4096); with sequence parallelism TP divides too.",
    fix="compare seq/(CP*TP), not seq/CP, and let the memory estimate decide", where="derived", fields=f"seq_length {CP}",
    source="NVIDIA-NeMo/Megatron-Bridge skills/nemo-mbridge-perf-moe-long-context @067f987",
    fails={"cp": 1}, passes={"cp": 8}, needs=("seq_length",),
)  # fmt: skip
def _shard(run: Run) -> str | None:
    s = run.sizes
    shard = run.seq_length // (s.cp * (s.tp if run.sequence_parallel else 1))
    return f"seq/(CP*TP) = {shard} tokens per GPU, above 8192" if shard > 8192 else None
