"""What the data loader puts on the GPU for each microbatch, in bytes."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.mesh.partition import Chunk


def attention_mask_bytes(run: Run, chunk: Chunk) -> float:
    """The dense causal mask [b, 1, S / CP, S] in bool, on stages that read batches, while a microbatch runs forward.

    Megatron-LM makes one unless told `--no-create-attention-mask-in-dataloader`; Bridge skips it unless
    `dataset.skip_getting_attention_mask_from_dataset` is false. Source: megatron-core 0.19.2 datasets/gpt_dataset.py
    _get_ltor_masks_and_position_ids, utils.py get_batch_on_this_tp_rank and get_batch_on_this_cp_rank.
    """
    if not (chunk.embedding or chunk.loss) or not _makes_mask(run):
        return 0.0
    return float(run.tokens_per_cp_rank * run.seq_length)


def _makes_mask(run: Run) -> bool:
    written = run.written.megatron
    if run.bridge:
        skipped = written.get("dataset.skip_getting_attention_mask_from_dataset", True)
        return bool(written.get("dataset.create_attention_mask", True)) and not skipped
    return bool(written.get("dataset.create_attention_mask", run.own_script))
