"""Facts about reading Bridge overrides, verl blocks and older spellings."""

from __future__ import annotations

from typing import Any

import pytest

from moe_long_context.config.formats.migrations import migrate, written_migrations
from moe_long_context.config.formats.overrides import parse_value
from moe_long_context.config.formats.recipe_names import model_of, recipe_table
from moe_long_context.config.formats.remark import MARK, apply_remark, find_remark, remark
from moe_long_context.config.reading import read_document
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError

VERL = """
actor_rollout_ref:
  model: {path: Qwen/Qwen3-30B-A3B}
  actor:
    ppo_micro_batch_size_per_gpu: 1
    megatron:
      tensor_model_parallel_size: 4
      expert_model_parallel_size: 8
      override_transformer_config: {recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1}
data: {max_prompt_length: 1024, max_response_length: 31744}
trainer: {nnodes: 2, n_gpus_per_node: 8}
"""


def test_overrides_alone_are_a_run() -> None:
    """One word for each field; quoting is the shell's and Hydra's."""
    text = (
        "model.context_parallel_size=32 'model.recompute_modules=[mla_up_proj,moe]'"
        " model.recompute_granularity=selective"
        " dataset.seq_length=131072 mixed_precision=bf16_with_mxfp8_mixed optimizer.exp_avg_dtype=torch.bfloat16"
    )
    run = read_document(text, "overrides")
    assert (run.context_parallel_size, run.seq_length, run.precision) == (32, 131072, "mxfp8")
    assert run.recompute and run.recompute.modules == ("mla_up_proj", "moe") and run.optimizer.moment_dtype == "bf16"


def test_a_launch_line_names_the_model_by_its_recipe() -> None:
    """run_recipe.py of Bridge 0.6 with its short options."""
    text = (
        "torchrun --nnodes 2 --nproc-per-node 8 scripts/training/run_recipe.py --recipe"
        " qwen3_30b_a3b_pretrain_16gpu_h100_bf16_config --mode pretrain -tp 2 -ep 8 -sl 32768 -gb 64"
        " model.sequence_parallel=true"
    )
    run = read_document(text, "launch.sh")
    assert (run.model, run.num_gpus, run.seq_length, run.global_batch_size) == ("qwen3-30b-a3b", 16, 32768, 64)
    assert (run.tensor_model_parallel_size, run.sequence_parallel) == (2, True)


def test_every_recipe_name_finds_its_model() -> None:
    """By full name, alias, and the stem of other GPU counts."""
    for model, recipe in recipe_table().items():
        assert model_of(recipe.function) == model_of(recipe.alias) == model
    assert model_of("deepseek_v3_pretrain_256gpu_gb300_fp8mx_config") == "deepseek-v3"
    assert model_of("llama32_1b_pretrain_config") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None), ("True", True), ("8", 8), ("1e-4", 1e-4), ("[a, 'b c', [1]]", ["a", "b c", [1]]),
        ("{a: 1, b: [x]}", {"a": 1, "b": ["x"]}), ("Et|(tt|)*30mL", "Et|(tt|)*30mL"), ("", ""),
    ],
)  # fmt: skip
def test_hydra_values_are_plain_data(text: str, value: Any) -> None:
    """The grammar of Hydra's basic overrides."""
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["[1, 2", "{a: 1", "'open", "[" * 40, "[}", "[[}", "{a:]}"])
def test_brackets_that_do_not_close_are_one_clear_error(text: str) -> None:
    """Deep nesting and crossed brackets too; none of them loops."""
    with pytest.raises(BadValueError):
        parse_value(text)


def test_a_verl_block_is_a_run() -> None:
    """Direct keys, override_transformer_config, lengths and the trainer's nodes."""
    run = read_document(VERL, "verl.yaml")
    assert (run.model, run.num_gpus, run.seq_length, run.micro_batch_size) == ("qwen3-30b-a3b", 16, 32768, 1)
    assert (run.tensor_model_parallel_size, run.expert_model_parallel_size) == (4, 8)
    assert run.recompute and run.recompute.granularity == "full"


def test_a_verl_command_line_is_the_same_block() -> None:
    """Hydra words with a + prefix, as verl's example scripts write them."""
    text = (
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4"
        " +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full"
        " actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B trainer.nnodes=1 trainer.n_gpus_per_node=8"
    )
    run = read_document(text, "verl.sh")
    assert (run.model, run.tensor_model_parallel_size, run.num_gpus) == ("qwen3-30b-a3b", 4, 8)


@pytest.mark.parametrize(
    ("old", "value", "new", "expected"),
    [
        ("model.cuda_graph_scope", ["attn"], "model.cuda_graph_modules", ["attn"]),
        ("model.cuda_graph_scope", ["full_iteration"], "model.cuda_graph_impl", "full_iteration"),
        ("model.moe_enable_deepep", True, "model.moe_flex_dispatcher_backend", "deepep"),
        ("model.moe_router_padding_for_fp8", True, "model.moe_router_padding_for_quantization", True),
        ("model.moe_layer_recompute", True, "model.recompute_modules", ["moe"]),
        ("model.external_cuda_graph", True, "model.cuda_graph_impl", "transformer_engine"),
    ],
)
def test_older_spellings_are_read_as_the_current_ones(old: str, value: Any, new: str, expected: Any) -> None:
    """Megatron-Core 0.14 to 0.18 names, as 0.19.2's transformer_config.py migrates or drops them; each is listed."""
    fields, done = migrate({old: value})
    assert fields[new] == expected and old not in fields and len(done) >= 1


def test_current_spellings_win_over_older_ones() -> None:
    """Both written: the newer field counts."""
    both = {"model.cuda_graph_scope": ["mlp"], "model.cuda_graph_modules": ["attn"]}
    assert migrate(both)[0]["model.cuda_graph_modules"] == ["attn"]


def test_a_graph_scope_that_is_no_list_is_left_to_the_rules() -> None:
    """`cuda_graph_modules: true` is not a module list and no crash."""
    assert migrate({"model.cuda_graph_modules": True})[0] == {"model.cuda_graph_modules": True}


def test_migrations_of_a_run_are_listed() -> None:
    """A configuration that still says moe_router_padding_for_fp8."""
    config = RunConfig.read({"megatron": {"model.moe_router_padding_for_fp8": True}})
    assert [m.emitted for m in written_migrations(config)] == ["model.moe_router_padding_for_quantization=True"]


def test_the_remark_holds_only_what_differs() -> None:
    """Fields that the form can say are not repeated in it."""
    given = RunConfig.read({"model": "deepseek-v3", "gpu": "H100", "tp": 4})
    read = RunConfig.read({"model": "deepseek-v3", "tp": 4, "mbs": 1})
    line = remark(given, read)
    assert '"tensor_model_parallel_size"' not in line and '"gpu"' in line
    assert apply_remark(read, find_remark(line) or []) == given


@pytest.mark.parametrize("body", ["not json", "{}", "[[1,2]]", '[[["a","b","c"],1,2]]'])
def test_a_damaged_remark_is_one_clear_error(body: str) -> None:
    """It is input like any other."""
    with pytest.raises(BadValueError, match="comment line"):
        find_remark(MARK + body)


def test_the_short_form_is_not_taken_for_a_script() -> None:
    """A comment that mentions torchrun, and the `megatron:` section of the short form."""
    text = (
        "# started with torchrun pretrain_gpt.py\nmodel: deepseek-v3\nmegatron: {model.qk_clip: true}\nenv: {A: b=c}\n"
    )
    assert read_document(text, "run.yaml").megatron == {"model.qk_clip": True}
