"""Logits and loss: what the last stage holds while a microbatch's loss is computed and its gradient starts.

Elements are tokens of the rank (MBS * seq / CP; sequence parallelism gathers them) times vocab / TP. Each
implementation is one row of bytes per element:

    forward   live at the peak of the loss forward (bf16 logits included)
    saved     kept until this loss's backward
    backward  live while its gradient is made

Sources: megatron-core 0.19.2 tensor_parallel/cross_entropy.py (eager: in-place fp32 copy),
fusions/fused_cross_entropy.py (native: torch.compile makes the fp32 copy and the exponentials separate buffers),
TransformerEngine pytorch/triton/cross_entropy.py (te: the gradient overwrites the bf16 logits; from 2.18, commit
01bbe3eea, it is a separate fp32 buffer), megatron-core fusions/fused_linear_cross_entropy.py (never builds the
logits). Measured: eager 5.7 and native 9.4 bytes per element at 128K (NovaSky-AI/SkyRL pull 1841); te 2 bytes
(MooreThreads/SimuMax B200 runs with TransformerEngine 2.11).
"""

from __future__ import annotations

from typing import NamedTuple

from moe_long_context.config.resolve import Run


class LossRow(NamedTuple):
    """Bytes per logit element."""

    forward: float
    saved: float
    backward: float


LOSS_TABLE = {
    "eager": LossRow(6, 4, 6),
    "fused_native": LossRow(10, 4, 10),
    "fused_te": LossRow(2, 2, 2),
    "fused_te_fp32_grad": LossRow(6, 4, 6),
}

TE_FP32_GRADIENT_SINCE = (2, 18)
CHUNK_TOKENS = 4096
"""Tokens per chunk of `loss: chunked` (a choice of the RL front ends that offer it; verl and slime use 1K to 4K)."""
LINEAR_FUSED_VOCAB_SPLIT = 512 * 6
"""Vocabulary columns whose gradient exists at one time in the fused linear cross-entropy backward."""


class LossBytes(NamedTuple):
    """Bytes on the rank that holds the loss."""

    forward: float
    saved: float
    backward: float
    output_backward: float
    impl: str

    @property
    def peak(self) -> float:
        """The most that logits and loss take at once."""
        return max(self.forward, self.backward, self.output_backward)


def loss_impl(run: Run) -> str:
    """The row of the table that this run uses: `fused` is native or te by the model's released recipe or the config."""
    if run.loss != "fused":
        return str(run.loss)
    impl = run.cross_entropy_fusion_impl
    if impl != "te":
        return "fused_native"
    return "fused_te_fp32_grad" if run.te_version >= TE_FP32_GRADIENT_SINCE else "fused_te"


def loss_bytes(run: Run) -> LossBytes:
    """Logits and loss of one microbatch with all MTP depths, in bytes.

    Each MTP depth computes its logits and loss before the main one and keeps `saved` until its own backward.
    `output_backward` adds the output layer's gradient to its input and the weight-gradient placeholder that
    LinearWithGradAccumulationAndAsyncCommunication returns (megatron-core 0.19.2 tensor_parallel/layers.py).
    """
    impl = loss_impl(run)
    tokens = run.tokens_per_cp_rank
    tp, hidden = run.sizes.tp, run.arch.hidden_size
    vocab = run.padded_vocab_size / tp
    if impl == "linear_fused":
        return _linear_fused(tokens, vocab, hidden, run.mtp)
    if impl == "chunked":
        row, rows = LOSS_TABLE["eager"], min(tokens, CHUNK_TOKENS)
        one = rows * vocab
        return LossBytes(one * row.forward, 0, one * row.backward, one * 2 + vocab * hidden * 2, impl)
    row = LOSS_TABLE[impl]
    one = tokens * vocab
    earlier = run.mtp * one * row.saved
    gathered = tokens * hidden * 2
    scattered = gathered / tp if run.sequence_parallel else 0
    placeholder = vocab * hidden * 2 if run.gradient_accumulation_fusion else 0
    return LossBytes(
        forward=earlier + one * row.forward,
        saved=(run.mtp + 1) * one * row.saved,
        backward=earlier + one * row.backward,
        output_backward=earlier + one * 2 + gathered + scattered + placeholder,
        impl=impl,
    )


def _linear_fused(tokens: float, vocab: float, hidden: int, mtp: int) -> LossBytes:
    """Hidden gradient and weight gradient in fp32, and one split of the vocabulary in bf16."""
    split = tokens * min(vocab, LINEAR_FUSED_VOCAB_SPLIT) * 2
    backward = tokens * hidden * 4 + vocab * hidden * 4 + split
    lse = tokens * 4 * (mtp + 1)
    return LossBytes(lse + tokens * 4 * 2, lse, backward, backward, "linear_fused")
