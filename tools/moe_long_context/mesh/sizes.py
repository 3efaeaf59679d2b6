"""Parallel sizes and the two meshes they span over the same GPUs. Pure integer arithmetic.

Attention mesh: TP x CP x DP x PP = GPUs. Expert mesh: ETP x EP x EDP x PP = GPUs. The expert mesh is folded over the
attention mesh of each pipeline stage, so CP and EP never multiply.
Source: megatron-core 0.19.2 megatron/core/parallel_state.py, initialize_model_parallel (two RankGenerators).
"""

from __future__ import annotations

import math
from typing import NamedTuple


class Sizes(NamedTuple):
    """Parallel sizes, each a count of ranks. VPP 1 = no virtual stages."""

    num_gpus: int
    tp: int = 1
    cp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1

    @property
    def attention_ranks(self) -> int:
        """Ranks of one attention-model replica: TP*CP*PP."""
        return self.tp * self.cp * self.pp

    @property
    def expert_ranks(self) -> int:
        """Ranks of one expert-model replica: ETP*EP*PP."""
        return self.etp * self.ep * self.pp

    @property
    def dp(self) -> int:
        """Data-parallel replicas of the dense part, CP not included."""
        return self.num_gpus // self.attention_ranks

    @property
    def edp(self) -> int:
        """Replicas of the experts; their optimizer states shard over this."""
        return self.num_gpus // self.expert_ranks

    @property
    def dense_shards(self) -> int:
        """Ranks that the distributed optimizer shards dense states over: DP*CP."""
        return self.dp * self.cp

    @property
    def fits_attention(self) -> bool:
        """Whether the attention mesh divides the GPUs."""
        return self.num_gpus % self.attention_ranks == 0

    @property
    def fits_expert(self) -> bool:
        """Whether the expert mesh divides the GPUs."""
        return self.num_gpus % self.expert_ranks == 0

    @property
    def min_gpus(self) -> int:
        """Smallest legal GPU count of these sizes: PP * lcm(TP*CP, ETP*EP)."""
        return min_gpus(self.tp, self.cp, self.pp, self.ep, self.etp)


def min_gpus(tp: int, cp: int, pp: int, ep: int, etp: int) -> int:
    """PP * lcm(TP*CP, ETP*EP): both meshes must divide the GPUs, pipeline stage by pipeline stage."""
    return pp * math.lcm(tp * cp, etp * ep)


def num_microbatches(global_batch_size: int, micro_batch_size: int, dp: int) -> int:
    """GBS / (MBS * DP), rounded down; 0 when the batch is too small."""
    return global_batch_size // (micro_batch_size * dp)


def coordinates(rank: int, sizes: Sizes) -> dict[str, int]:
    """Where one rank sits in both meshes, in Megatron's default order (tp, cp, ep, dp, pp; fastest first)."""
    per_stage = sizes.num_gpus // sizes.pp
    pp, inner = divmod(rank, per_stage)
    return {
        "pp": pp,
        "tp": inner % sizes.tp,
        "cp": inner // sizes.tp % sizes.cp,
        "dp": inner // (sizes.tp * sizes.cp),
        "etp": inner % sizes.etp,
        "ep": inner // sizes.etp % sizes.ep,
        "edp": inner // (sizes.etp * sizes.ep),
    }
