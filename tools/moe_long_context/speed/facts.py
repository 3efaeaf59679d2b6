"""`Facts`: what decides the time of one layer on one GPU, as one hashable tuple, so that layouts share work."""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.catalog.architecture import Architecture
from moe_long_context.config.resolve import FLEX, Run
from moe_long_context.speed.efficiency import Efficiency, of_platform, platform_of

TERA, GIGA = 1e12, 1e9
GRAPH_EVERYTHING = frozenset({"full_iteration"})
GRAPH_LAYER = frozenset({"attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"})


class Rates(NamedTuple):
    """A GPU's peaks: FLOP/s, bytes/s, bytes/s one direction, ranks."""

    bf16: float
    fp8: float
    hbm: float
    nvlink: float
    domain: int
    nic: float


class Facts(NamedTuple):
    """Everything `layers` reads. Sizes are ranks, lengths tokens."""

    arch: Architecture
    rates: Rates
    eff: Efficiency
    tp: int
    cp: int
    ep: int
    etp: int
    sequence_parallel: bool
    seq_length: int
    micro_batch: int
    fp8: bool
    cast_passes: float
    fp8_attention: bool
    fused_mlp: bool
    dispatcher: str
    ep_overlap: bool
    shared_overlap: bool
    cp_comm: str
    cp_inner: int
    recompute: frozenset[str]
    full_recompute: float
    graphs: frozenset[str]
    imbalance: float
    frozen: bool
    vocab: int
    loss: str

    @property
    def tokens_cp(self) -> float:
        """Tokens of a microbatch on one CP rank: rows of the TP-sharded GEMMs."""
        return self.seq_length * self.micro_batch / self.cp

    @property
    def tokens_sp(self) -> float:
        """Tokens per rank in the sequence-parallel region: rows of norms, router and dispatch."""
        return self.tokens_cp / self.tp if self.sequence_parallel else self.tokens_cp

    @property
    def flex(self) -> bool:
        """Whether DeepEP or HybridEP dispatches."""
        return self.dispatcher in FLEX

    @property
    def local_experts(self) -> float:
        """Experts on one rank."""
        return (self.arch.num_moe_experts or 0) / self.ep


CAST_PASSES = {
    "bf16": 0.0, "fp8_delayed": 1.0, "fp8_tensorwise": 1.5, "fp8_blockwise": 1.25, "mxfp8": 1.0, "nvfp4": 1.4,
}  # fmt: skip


def facts_of(run: Run, eff: Efficiency | None = None) -> Facts:
    """The facts of a run; `eff` replaces the platform's parameters (calibration)."""
    c, s, gpu = run.written, run.sizes, run.gpu
    fp8 = run.precision != "bf16"
    eff = eff or of_platform(platform_of(gpu))
    peak8 = (gpu.fp8_tflops or gpu.bf16_tflops) * (eff.nvfp4_gain if run.precision == "nvfp4" else 1.0)
    rates = Rates(
        gpu.bf16_tflops * TERA, peak8 * TERA, gpu.hbm_tb_s * TERA,
        gpu.nvlink_gb_s * GIGA, gpu.nvlink_domain, gpu.nic_gb_s * GIGA,
    )  # fmt: skip
    comm, inner = _cp_exchange(run)
    return Facts(
        run.arch, rates, eff, s.tp, s.cp, s.ep, s.etp, run.sequence_parallel,
        run.seq_length, run.micro_batch_size, fp8, CAST_PASSES[run.precision],
        fp8 and bool(c.field("mixed_precision.fp8_dot_product_attention")),
        bool(c.field("model.use_transformer_engine_op_fuser")), "hybridep" if assumes_flex(run) else run.dispatcher,
        bool(c.overlap.ep_a2a),
        bool(c.overlap.shared_expert), comm, inner,
        run.recompute_modules, _full_share(run), _graphs(run), _imbalance(run), c.peft.type != "none",
        run.padded_vocab_size, run.loss,
    )  # fmt: skip


def _imbalance(run: Run) -> float:
    """Tokens of the fullest expert rank over the mean; a capacity caps it, padding to capacity fills it."""
    moe = run.written.moe
    if not moe.capacity_factor:
        return moe.token_imbalance
    return moe.capacity_factor if moe.pad_to_capacity else min(moe.token_imbalance, moe.capacity_factor)


def assumes_flex(run: Run) -> bool:
    """Whether the dispatcher was not written and speed takes HybridEP, as performance recipes set it since Hopper."""
    c = run.written
    silent = c.dispatcher is None and "model.moe_token_dispatcher_type" not in c.megatron
    return silent and run.sizes.ep > 1 and run.arch.is_moe and run.gpu.architecture != "ampere"


def assumes_hierarchical(run: Run) -> bool:
    """Whether cp_comm_type was not written and CP of an MLA model leaves the NVLink domain, with heads for a2a+p2p.

    The ring carries k and v of all heads through one port; published long-context runs do not show that loss.
    """
    s, arch = run.sizes, run.arch
    if run.written.cp_comm_type is not None or s.tp * s.cp <= run.gpu.nvlink_domain or not arch.multi_latent_attention:
        return False
    inner = max(run.gpu.nvlink_domain // s.tp, 1)
    return inner > 1 and s.cp % inner == 0 and arch.num_attention_heads % (s.tp * inner) == 0


def _cp_exchange(run: Run) -> tuple[str, int]:
    """(p2p | a2a | all_gather | a2a+p2p, ranks of the inner all-to-all)."""
    comm = run.cp_comm_type if isinstance(run.cp_comm_type, str) else run.cp_comm_type[0]
    sizes = run.written.hierarchical_context_parallel_sizes
    if assumes_hierarchical(run):
        return "a2a+p2p", run.gpu.nvlink_domain // run.sizes.tp
    if comm == "a2a+p2p":
        inner = sizes[0] if sizes else run.gpu.nvlink_domain // run.sizes.tp
        return comm, max(1, min(run.sizes.cp, inner))
    return comm, run.sizes.cp if comm == "a2a" else 1


def _full_share(run: Run) -> float:
    """Share of the layers whose whole forward is replayed: all of them for uniform, num_layers of a stage for block."""
    if run.recompute_granularity != "full":
        return 0.0
    if run.recompute_method == "block" and run.recompute_num_layers:
        per_chunk = run.arch.num_layers / (run.sizes.pp * run.sizes.vpp)
        return min(1.0, run.recompute_num_layers / per_chunk)
    return 1.0


def _graphs(run: Run) -> frozenset[str]:
    graph = run.written.cuda_graph
    if graph.impl == "none":
        return frozenset()
    if graph.impl == "full_iteration" or "full_iteration" in graph.modules:
        return GRAPH_EVERYTHING
    return frozenset(graph.modules) or GRAPH_LAYER
