"""A person's sentence, English or Chinese: the facts in it, and a useful answer to it."""

from __future__ import annotations

from typing import Any

import pytest

from moe_long_context.diagnosis.words import facts_told, memory_told
from moe_long_context.tools import diagnose_failure
from moe_long_context.units import GIB

FACTS: dict[str, dict[str, Any]] = {
    "Qwen3-235B-A22B on 4 nodes (32 GPUs) A100 80GB, seq 131072 tokens, TP=4, PP 4": {
        "model": "qwen3-235b-a22b", "gpu": "A100", "num_gpus": 32, "seq_length": 131072,
        "tensor_model_parallel_size": 4, "pipeline_model_parallel_size": 4,
    },
    "8 机 H800 训练 DeepSeek V3, 128k": {
        "model": "deepseek-v3", "gpu": "H800", "num_gpus": 64, "seq_length": 131072,
    },
    "单机 8 卡 qwen3-30b": {"model": "qwen3-30b-a3b", "num_gpus": 8},
    "16x8 H100": {"gpu": "H100", "num_gpus": 128},
    "saved with TP2 PP8, resumed on TP1 PP16": {},
    "256K and 1M tokens, glm-4.5 or glm-4.5-air": {},
    "OOM after 2k steps, vocab is 248k": {},
    "GLM-4.5V in DeepSpeed, epoch 3": {},
    "micro batch is 8 at 8K with mcore 0.15.0": {
        "micro_batch_size": 8, "seq_length": 8192, "versions": {"megatron_core": "0.15.0"},
    },
}  # fmt: skip


@pytest.mark.parametrize("text", FACTS, ids=range(len(FACTS)))
def test_only_what_is_said_once_is_a_fact(text: str) -> None:
    """Names, counts and sizes that the sentence states for certain; two values for one field state none."""
    assert facts_told(text) == FACTS[text]


@pytest.mark.parametrize("text", ["reserved is 78GB but allocated is 60GB", "60 GiB allocated, 78 GiB reserved"])
def test_memory_figures_are_read(text: str) -> None:
    """Both orders in which people write them."""
    assert memory_told(text) == {"allocated": 60 * GIB, "reserved": 78 * GIB}


TOLD = {
    "Trains fine for one step then CUDA OOM in the optimizer, why?": "optimizer_state_lazy_alloc",
    "MoE throughput dropped by half between two Megatron Bridge releases": "regression_after_upgrade",
    "max_memory_reserved is 78GB but allocated is 60GB, fragmentation or real?": "fragmentation",
    "world_size not divisible by expert_tensor_model_pipeline parallel size": "config_refused:world-size-expert-mesh",
    "no dot product attention backend is available for gpt-oss": "config_refused:sink-softmax-cp",
    "Can I resume my checkpoint saved with TP2 EP32 on TP1 EP16?": "optimizer_state_not_reshardable",
    "升级之后长序列吞吐掉了一半, 怎么定位是哪个 commit": "regression_after_upgrade",
    "开了 optimizer offload 之后内存 1TB 也不够": "host_memory",
    "61 层 PP=8 报错层数不能整除": "config_refused:layers-div-pp",
    "训练第一步正常, 第二步就爆显存": "optimizer_state_lazy_alloc",
    "交叉熵那里爆显存": "logits_crossentropy_peak",
    "训练几百步之后OOM": "expert_imbalance",
    "多机 DeepEP 超时": "deepep_internode_transport",
    "loss变成nan": "nan_gradients",
}


@pytest.mark.parametrize("symptom", TOLD, ids=range(len(TOLD)))
def test_a_sentence_gets_its_cause_first(symptom: str) -> None:
    """Sentences in the style of public threads; a letter after a Chinese one still starts a word."""
    assert diagnose_failure(symptom=symptom).result.causes[0].cause == TOLD[symptom]


QUESTIONS = {
    "Size context parallel for Kimi K2 on GB200": ("question_layout", "plan --model kimi-k2 --gpus COUNTxGB200"),
    "Qwen3-235B 全参 SFT 32k, 最少需要几张卡?": (
        "question_layout",
        "--model qwen3-235b-a22b --gpus COUNTxGPU --seq-len 32768",
    ),
    "Which recompute_modules should I pick for Moonlight?": (
        "question_recompute",
        "recompute --model moonlight-16b-a3b",
    ),
}


@pytest.mark.parametrize("symptom", QUESTIONS, ids=range(len(QUESTIONS)))
def test_a_question_is_sent_to_the_tool_that_answers_it(symptom: str) -> None:
    """Nothing failed: the answer is the command with the facts filled in, and what is missing for it."""
    result = diagnose_failure(symptom=symptom).result
    cause, command = QUESTIONS[symptom]
    assert result.causes[0].cause == cause and command in result.fixes[0].change
    assert "num_gpus" in result.missing


def test_serving_is_not_training() -> None:
    """vLLM's KV cache is no business of these tools, and a training run beside vLLM is."""
    assert diagnose_failure(symptom="vLLM KV cache is full when I serve a MoE").result.causes[0].cause == "not_training"
    rl = diagnose_failure(symptom="OOM in GRPO training with vLLM rollout").result
    assert rl.causes[0].cause == "activations"


def test_words_give_no_sizes_beside_a_configuration() -> None:
    """`it ran with TP 8` in the sentence is another run than the file with PP 4."""
    answer = diagnose_failure({"model": "qwen3-30b-a3b", "pp": 4}, symptom="OOM now, it ran with TP 8")
    assert not any("tensor_model_parallel_size" in note and "words" in note for note in answer.assumptions)


def test_one_size_in_words_is_no_layout() -> None:
    """TP, CP and EP were not told: no estimate with 1 for each is shown as if it were the run."""
    result = diagnose_failure(symptom="DeepSeek-V3 on 96 H20 at 16K with PP 8 goes OOM").result
    assert {"tp", "cp", "ep"} <= set(result.missing)
    assert not any(fix.saves_gib is not None for fix in result.fixes)
