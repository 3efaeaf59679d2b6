"""The dense attention mask is counted where a run makes one (megatron-core 0.19.2 datasets/gpt_dataset.py)."""

from __future__ import annotations

from typing import Any

import pytest

from moe_long_context.config.reading import read_document
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.memory.inputs import attention_mask_bytes

SCRIPT = (
    "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 512 --ffn-hidden-size 2048 --num-attention-heads 8 "
    "--seq-length 1024 --micro-batch-size 4 --global-batch-size 32 --pipeline-model-parallel-size 4 --vocab-size 50257 "
)


def _masks(run: Run) -> list[float]:
    return [attention_mask_bytes(run, chunk) for chunk in run.partition.chunks]


def _script(more: str = "") -> Run:
    return resolve({**read_document(SCRIPT + more, "run.sh").written(), "gpu": "H100", "num_gpus": 8})


def test_a_command_line_that_says_nothing_makes_a_mask_on_the_first_and_last_stage() -> None:
    assert _masks(_script()) == [4 * 1024 * 1024, 0, 0, 4 * 1024 * 1024]


def test_the_flag_against_it_is_read() -> None:
    assert _masks(_script("--no-create-attention-mask-in-dataloader")) == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("written", "made"), [({}, False), ({"dataset.skip_getting_attention_mask_from_dataset": False}, True)]
)
def test_bridge_skips_it_unless_asked(written: dict[str, Any], made: bool) -> None:
    run = resolve(
        {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 8, "ep": 8, "seq_length": 2048, "megatron": written}
    )
    assert _masks(run) == [float(2048 * 2048 * run.micro_batch_size) if made else 0.0]


def test_dropout_that_a_command_line_leaves_out_is_the_frameworks() -> None:
    """megatron/training/arguments.py: attention and hidden dropout are 0.1 by default."""
    assert (_script().dropout("hidden_dropout"), _script("--hidden-dropout 0.0").dropout("hidden_dropout")) == (
        0.1,
        0.0,
    )
