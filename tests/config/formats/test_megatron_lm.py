"""Facts about reading Megatron-LM launch scripts and argument lists."""

from __future__ import annotations

import pytest

from moe_long_context.config.formats.shell import read_shell
from moe_long_context.config.reading import read_document
from moe_long_context.errors import BadValueError

QWEN = """#!/bin/bash
# a launch script
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=4
TP=${TP:-2}
MODEL_ARGS=(
    --num-layers 48 --hidden-size 2048 --num-attention-heads 32   # widths
    --num-query-groups 4 --group-query-attention --kv-channels 128
    --num-experts 128 --moe-ffn-hidden-size 768 --ffn-hidden-size 6144
    --moe-router-topk 8 --swiglu --disable-bias-linear --normalization RMSNorm --qk-layernorm --norm-epsilon 1e-6
    --untie-embeddings-and-output-weights --vocab-size 151936 --rotary-base 1000000 --position-embedding-type rope
)
PERF="--tensor-model-parallel-size ${TP} --context-parallel-size 4 --expert-model-parallel-size 8"
PERF+=" --sequence-parallel"
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \\
   ${MODEL_ARGS[@]} $PERF --seq-length 131072 --max-position-embeddings 131072 \\
   --micro-batch-size 1 --global-batch-size 64 --bf16 \\
   --recompute-granularity selective --recompute-modules moe layernorm --optimizer-cpu-offload \\
   --moe-token-dispatcher-type alltoall --data-path $DATA --made-up-flag 3 > log.txt
"""


def test_a_script_with_arrays_and_variables_is_one_run() -> None:
    """Arrays, `+=`, defaults and continuations are resolved as bash would."""
    run = read_document(QWEN, "train.sh")
    assert (run.model, run.num_gpus, run.gpus_per_node) == ("qwen3-30b-a3b", 32, 8)
    assert (run.tensor_model_parallel_size, run.context_parallel_size, run.expert_model_parallel_size) == (2, 4, 8)
    assert run.sequence_parallel is True and run.frontend == "megatron_lm"
    assert run.recompute and run.recompute.modules == ("moe", "layernorm")
    assert run.optimizer.cpu_offload is True


def test_what_cannot_be_resolved_or_placed_is_reported() -> None:
    """A variable from outside and an unknown flag become notes."""
    notes = " ".join(read_document(QWEN, "train.sh").reader_notes)
    assert "$DATA" in notes and "--made-up-flag" in notes and "nothing was executed" in notes


def test_nothing_is_executed() -> None:
    """Command substitution stays text."""
    shell = read_shell("--seq-length $(echo 4096) --micro-batch-size `id`")
    assert shell.unresolved == ["${echo 4096}", "`id`"]
    run = read_document("torchrun pretrain_gpt.py --seq-length $(echo 4096) --micro-batch-size 2", "x")
    assert run.seq_length is None and run.micro_batch_size == 2


def test_an_argument_list_alone_is_enough() -> None:
    """No script around it."""
    run = read_document("--tensor-model-parallel-size 4 --seq-length=8192 --fp8-format e4m3 --fp8-recipe mxfp8", "args")
    assert (run.tensor_model_parallel_size, run.seq_length, run.precision) == (4, 8192, "mxfp8")


def test_layers_of_a_virtual_stage_give_vpp() -> None:
    """48 layers on 4 stages of 2-layer chunks are 6 chunks on each rank."""
    run = read_document(
        "--num-layers 48 --hidden-size 64 --num-attention-heads 4 --pipeline-model-parallel-size 4"
        " --num-layers-per-virtual-pipeline-stage 2",
        "args",
    )
    assert run.virtual_pipeline_model_parallel_size == 6


def test_an_unknown_shape_becomes_a_model_mapping() -> None:
    """No catalog model has these sizes."""
    run = read_document("--num-layers 7 --hidden-size 96 --num-attention-heads 6 --swiglu --vocab-size 100", "args")
    assert isinstance(run.model, dict) and run.model["num_layers"] == 7 and run.model["kv_channels"] == 16


@pytest.mark.parametrize(
    "text", ["--num-layers 4 --hidden-size 7-- --moe-ffn-hidden-size 1e400", "--num-layers [1] --hidden-size x"]
)
def test_sizes_that_are_no_numbers_are_noted_or_refused(text: str) -> None:
    """Never a traceback."""
    try:
        assert any("incomplete" in note for note in read_document(text, "args").reader_notes)
    except BadValueError as error:
        assert error.message


def test_a_layer_frequency_is_read_without_evaluating_it() -> None:
    """Megatron-LM evaluates the text; here anything but 0/1 lists is refused."""
    with pytest.raises(BadValueError, match="moe-layer-freq"):
        read_document("--num-layers 4 --moe-layer-freq '__import__(\"os\")'", "args")


def test_underscored_flags_of_ms_swift_are_the_same_flags() -> None:
    """`megatron sft --tensor_model_parallel_size 4 --recompute_granularity full` (ms-swift examples)."""
    text = (
        "NPROC_PER_NODE=8 \\\nmegatron sft --load Qwen3-30B-A3B --tensor_model_parallel_size 4 --sequence_parallel true"
        " --recompute_granularity full --recompute_method uniform --recompute_num_layers 1 --max_length 8192"
        " --optimizer_cpu_offload true --moe_grouped_gemm false"
    )
    run = read_document(text, "swift.sh")
    assert (run.tensor_model_parallel_size, run.seq_length, run.num_gpus) == (4, 8192, 8)
    assert run.recompute and run.recompute.granularity == "full" and run.sequence_parallel is True


def test_a_quote_that_does_not_close_is_one_clear_error() -> None:
    """Not a traceback."""
    with pytest.raises(BadValueError, match="quotes"):
        read_document("torchrun pretrain_gpt.py --save 'x", "x")


def test_self_referring_variables_end() -> None:
    """A=$B, B=$A would never finish in a naive expansion."""
    assert read_shell("A=$B\nB=$A\nrun --x $A").words


def test_a_python_recipe_is_refused_with_the_way_out() -> None:
    """Reading it would mean running it."""
    with pytest.raises(BadValueError, match="run_config"):
        read_document("import os\n\ndef build_config():\n    pass\n", "recipe.py")


@pytest.mark.parametrize(
    "text",
    [
        "\n".join(f'A{i}="{f"$A{i + 1} " * 100}"' for i in range(9)) + "\nrun --x $A0",
        "A=" + "x" * 20000 + "\nrun --y " + "$A" * 100,
        "run model.a=[" + "1," * 40000 + "]",
    ],
    ids=["nested", "long", "list"],
)
def test_scripts_that_explode_are_refused(text: str) -> None:
    """Expansion and value lengths have a budget."""
    with pytest.raises(BadValueError):
        read_document(text, "x")


def test_blank_lines_do_not_slow_the_recognition_down() -> None:
    """Fifty thousand blank lines before the first key; a backtracking pattern would never finish."""
    assert read_document("\n" * 50_000 + "model: deepseek-v3\n", "x").model == "deepseek-v3"
