"""The tool: files as data, writing only where asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from moe_long_context.errors import BadValueError
from moe_long_context.mesh.layout_string import stages_of
from moe_long_context.recipes.emitted import write_files
from moe_long_context.tools import emit_recipe

RUN: dict[str, Any] = {"model": "qwen3-30b-a3b", "gpu": "H100", "num_gpus": 32, "seq_length": "32k", "cp": 4, "ep": 8,
                       "dispatcher": "alltoall", "recompute": ["moe_act", "layernorm"]}  # fmt: skip
FORMATS = ("bridge-python", "bridge-overrides", "megatron-lm", "slurm", "nemo-run", "verl", "slime")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_answers_with_files_and_a_launch_line(name: str) -> None:
    """Nothing is written unless a folder is named."""
    result = emit_recipe(RUN, format=name).raise_for_error().result
    assert result and result.files and result.launch and result.written == ()
    assert all(file.text.endswith("\n") for file in result.files)


def test_each_override_says_what_it_can_change() -> None:
    """`result.overrides[]` carries field, value and effect."""
    result = emit_recipe(RUN).raise_for_error().result
    assert result
    effects = {o.field: o.effect for o in result.overrides}
    assert effects["model.context_parallel_size"] == "execution-only"
    assert effects["model.seq_length"] == "convergence-changing"


def test_older_spellings_are_emitted_in_the_current_one_and_listed() -> None:
    """moe_router_padding_for_fp8 was renamed in Megatron-Core 0.16."""
    older = {"precision": "fp8_blockwise", "megatron": {"model.moe_router_padding_for_fp8": True}}
    answer = emit_recipe({**RUN, **older}).raise_for_error()
    assert answer.result and [m.written for m in answer.result.migrations] == ["model.moe_router_padding_for_fp8=True"]
    fields = [o.field for o in answer.result.overrides]
    assert "model.moe_router_padding_for_quantization" in fields and "model.moe_router_padding_for_fp8" not in fields


def test_the_older_graph_scope_is_listed_wherever_it_was_written() -> None:
    """`cuda_graph_scope` became `cuda_graph_modules` in Megatron-Core 0.18."""
    graph = {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn"]}
    answer = emit_recipe({**RUN, **graph}, allow_errors=True).raise_for_error()
    assert answer.result and [m.written for m in answer.result.migrations] == ["cuda_graph_scope"]
    assert {o.field: o.value for o in answer.result.overrides}["model.cuda_graph_modules"] == ["attn"]


def test_files_are_written_where_asked_and_never_over_others(tmp_path: Path) -> None:
    """A second run needs --force."""
    first = emit_recipe(RUN, output=str(tmp_path / "out")).raise_for_error()
    assert first.result and [Path(p).parent for p in first.result.written] == [tmp_path / "out"]
    second = emit_recipe(RUN, output=str(tmp_path / "out"))
    assert not second.ok and second.error and second.error.code == "file_exists"
    assert emit_recipe(RUN, output=str(tmp_path / "out"), force=True).ok


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x"])
def test_no_path_leaves_the_folder(name: str, tmp_path: Path) -> None:
    """File names come from the writers, and are still checked."""
    with pytest.raises(BadValueError):
        write_files({name: "x"}, str(tmp_path))


def test_a_symlink_is_replaced_not_followed(tmp_path: Path) -> None:
    """--force on a link that points elsewhere leaves the target alone."""
    outside = tmp_path / "outside"
    outside.write_text("keep")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "a").symlink_to(outside)
    with pytest.raises(BadValueError):
        write_files({"a": "new"}, str(folder))


def test_smoke_is_a_program_for_one_device() -> None:
    """The twin carries its own training step."""
    result = emit_recipe(RUN, smoke=True).raise_for_error().result
    assert result and "def train_one_step()" in result.files[0].text
    assert {o.field: o.value for o in result.overrides}["model.expert_model_parallel_size"] == 1


def test_a_layout_is_written_out_where_layers_do_not_divide() -> None:
    """61 layers on 4 stages: the balanced layout that the estimates assume, so that recipe and estimate agree."""
    run = {"model": "deepseek-v3", "gpu": "H100", "num_gpus": 128, "seq_length": 4096, "pp": 4, "ep": 32, "gbs": 64,
           "dispatcher": "alltoall", "optimizer": {"cpu_offload_fraction": 1.0, "precision_aware": True}}  # fmt: skip
    answer = emit_recipe(run, allow_errors=True).raise_for_error()
    layout = {o.field: o.value for o in answer.result.overrides}["model.pipeline_model_parallel_layout"]  # type: ignore[union-attr]
    assert isinstance(layout, str) and [s.count("t") for s in stages_of(layout)] in ([16, 16, 15, 14], [15, 16, 16, 14])
    assert not any(f.rule == "layers-div-pp" for f in answer.findings)


def test_what_the_recipe_adds_itself_is_not_asked_for() -> None:
    """The offload variable and the NaN check of full-iteration graphs are set by every recipe."""
    graph = emit_recipe({**RUN, "cuda_graph": {"impl": "full_iteration"}}, allow_errors=True).raise_for_error()
    offload = emit_recipe({**RUN, "activation_offload": {"modules": ["core_attn", "attn_proj"]}}, allow_errors=True)
    rules = {f.rule for f in (*graph.findings, *offload.raise_for_error().findings)}
    assert not rules & {"cg-full-iteration-modules", "fg-offload-env"}
