"""Explains the size of a failed allocation by the tensors of the model at that place.

Every candidate is written as a product of named sizes; PyTorch prints two decimals, so a match is within rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moe_long_context.config.resolve import Run
from moe_long_context.errors import MoeError
from moe_long_context.units import GIB, MIB

MATCH_RELATIVE = 0.003
"""Allowed relative difference; PyTorch prints two decimals and rounds a large block up to 2 MiB."""
MIN_EXPLAINED_BYTES = 16 * MIB


class Tensor(NamedTuple):
    """One tensor that a run can allocate in one piece."""

    name: str
    place: str
    formula: str
    n_bytes: float


class Match(NamedTuple):
    """A tensor whose size is that of the failed allocation."""

    tensor: Tensor
    relative_error: float


def matches(run: Run, requested: float, place: str | None = None) -> list[Match]:
    """Tensors of this size, those of the failing place first, then the closest; empty when none fits."""
    if requested < MIN_EXPLAINED_BYTES:
        return []
    slack = MATCH_RELATIVE + 0.005 * GIB / requested
    found = [
        Match(tensor, abs(tensor.n_bytes / requested - 1))
        for tensor in tensors(run)
        if tensor.n_bytes and abs(tensor.n_bytes / requested - 1) <= slack
    ]
    return sorted(found, key=lambda m: (m.tensor.place != place, m.relative_error))[:4]


def tensors(run: Run) -> Iterator[Tensor]:
    """The large one-piece tensors of a run."""
    yield from _logits(run)
    yield from _masks(run)
    yield from _attention(run)
    yield from _routed(run)
    yield from _hidden(run)
    yield from _states(run)


def _tokens(run: Run) -> tuple[int, str]:
    return run.tokens_per_cp_rank, f"{run.tokens_per_cp_rank:,} tokens (MBS x length / CP)"


def _logits(run: Run) -> Iterator[Tensor]:
    tokens, words = _tokens(run)
    vocab = run.padded_vocab_size // run.sizes.tp
    for size, kind in ((4, "fp32"), (2, "bf16")):
        text = f"{words} x {vocab:,} (vocab / TP) x {size} bytes"
        yield Tensor(f"one copy of the logits in {kind}", "loss", text, tokens * vocab * size)
    if run.sizes.tp > 1:
        text = f"{words} x {run.padded_vocab_size:,} (whole vocab) x 4 bytes"
        yield Tensor("logits gathered over TP in fp32", "loss", text, tokens * run.padded_vocab_size * 4)


def _masks(run: Run) -> Iterator[Tensor]:
    s, b = run.seq_length, run.micro_batch_size
    for size, kind in ((1, "bool"), (4, "fp32"), (8, "int64")):
        yield Tensor(
            f"a full attention mask in {kind}", "mask", f"{b} x {s:,} x {s:,} x {size} bytes", b * s * s * size
        )


def _attention(run: Run) -> Iterator[Tensor]:
    heads = run.arch.num_attention_heads // run.sizes.tp
    local = run.seq_length // run.sizes.cp
    for size, kind in ((2, "bf16"), (4, "fp32")):
        n = run.micro_batch_size * heads * local * run.seq_length * size
        text = f"{heads} heads x {local:,} x {run.seq_length:,} x {size} bytes"
        yield Tensor(f"unfused attention scores in {kind}", "attention", text, n)
    tokens, words = _tokens(run)
    if run.arch.multi_latent_attention:
        width = (run.arch.qk_head_dim or 0) + (run.arch.qk_pos_emb_head_dim or 0)
        text = f"{words} x {heads} heads x {width} x 2 bytes"
        yield Tensor("MLA queries or keys after the up-projection", "attention", text, tokens * heads * width * 2)


def _routed(run: Run) -> Iterator[Tensor]:
    arch, s = run.arch, run.sizes
    if not arch.is_moe or not arch.moe_ffn_hidden_size:
        return
    share = s.tp if run.sequence_parallel else 1
    routed = run.tokens_per_cp_rank // share * arch.moe_router_topk * s.etp
    width = arch.glu_factor * arch.moe_ffn_hidden_size // s.etp
    words = f"{routed:,} routed tokens (balanced)"
    yield Tensor("expert hidden after fc1", "experts", f"{words} x {width:,} x 2 bytes", routed * width * 2)
    text = f"{words} x {arch.hidden_size:,} x 2 bytes"
    yield Tensor("tokens received by this rank's experts", "dispatch", text, routed * arch.hidden_size * 2)


def _hidden(run: Run) -> Iterator[Tensor]:
    tokens, words = _tokens(run)
    for size, kind in ((2, "bf16"), (4, "fp32")):
        text = f"{words} x {run.arch.hidden_size:,} x {size} bytes"
        yield Tensor(f"one hidden state in {kind}", "layer", text, tokens * run.arch.hidden_size * size)


def _states(run: Run) -> Iterator[Tensor]:
    """Whole buffers per stage: gradients, optimizer shards."""
    from moe_long_context.memory.parameters import stage_parameters

    try:
        stages = stage_parameters(run)
    except MoeError:
        return
    grad = {"fp32": 4, "bf16": 2}.get(run.grad_dtype, 4)
    for stage, parameters in enumerate(stages):
        for count, kind, shards in (
            (parameters.dense, "dense", max(run.sizes.dense_shards, 1)),
            (parameters.expert, "expert", max(run.sizes.edp, 1)),
        ):
            text = f"{count:,} {kind} parameters of stage {stage} x {grad} bytes"
            yield Tensor(f"{kind} gradient buffer", "grad_buffer", text, count * grad)
            text = f"{count:,} {kind} parameters of stage {stage} / {shards} x 4 bytes"
            yield Tensor(f"{kind} optimizer state, one of its three parts", "optimizer", text, count / shards * 4)
