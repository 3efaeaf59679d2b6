"""Facts about reading a run configuration."""

import pytest

from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError, UnknownNameError

FULL = {
    "model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_len": "128k", "cp": 32, "pp": 8, "ep": 32,
    "layout": "Et|(tt|)*30mL", "recompute": {"modules": ["moe", "mlp"]}, "optimizer": {"cpu_offload_fraction": 1.0},
    "megatron": {"model.moe_permute_fusion": True}, "env": {"CUDA_DEVICE_MAX_CONNECTIONS": 1},
}  # fmt: skip


def test_short_and_full_names_are_one_field() -> None:
    """`tp` is tensor_model_parallel_size, with or without dashes, bare or by its Bridge path."""
    spellings = ("tp", "tensor_model_parallel_size", "tensor-model-parallel-size", "model.tensor_model_parallel_size")
    assert {RunConfig.read({s: 4}).tensor_model_parallel_size for s in spellings} == {4}


def test_written_reads_back_equal() -> None:
    """read(written()) is the same object, defaults not written."""
    config = RunConfig.read(FULL)
    assert RunConfig.read(config.written()) == config
    assert "tensor_model_parallel_size" not in config.written()


def test_architecture_fields_are_accepted_by_their_megatron_name() -> None:
    """`num_layers: 4` at top level cuts the model."""
    assert RunConfig.read({"num_layers": 4}).megatron == {"model.num_layers": 4}


@pytest.mark.parametrize(
    ("text", "tokens"), [("128k", 131072), ("1M", 1048576), (4096, 4096), ("0.5k", 512), ("4_096", 4096)]
)
def test_lengths(text: object, tokens: int) -> None:
    """k is 1024 and M is 1024*1024."""
    assert RunConfig.read({"seq_length": text}).seq_length == tokens


@pytest.mark.parametrize(
    "bad",
    [
        {"seq_length": "12q"}, {"seq_length": 0}, {"seq_length": -4096}, {"seq_length": "nan"}, {"seq_length": 1e30},
        {"tp": 0}, {"tp": -1}, {"tp": "four"}, {"tp": 2.5}, {"num_gpus": 10**12}, {"precision": "fp9"},
        {"optimizer": {"cpu_offload_fraction": 1.5}}, {"recompute": {"granularity": "some"}}, {"dispatcher": "magic"},
    ],
)  # fmt: skip
def test_what_cannot_be_a_run_is_refused(bad: dict[str, object]) -> None:
    """Zero, negative, absurd, not a number, unknown choice: one clear error each."""
    with pytest.raises(BadValueError) as caught:
        RunConfig.read(bad)
    field = {"tp": "tensor_model_parallel_size"}.get(next(iter(bad)), next(iter(bad)))
    assert field in str(caught.value)


@pytest.mark.parametrize(
    ("key", "near"), [("modle", "model"), ("tensor_parallel", "tensor"), ("recompute.modles", "recompute.modules")]
)
def test_unknown_keys_name_the_nearest(key: str, near: str) -> None:
    """An unknown key is refused with what was probably meant."""
    with pytest.raises(UnknownNameError) as caught:
        RunConfig.read({key: 1})
    assert any(near in name for name in caught.value.allowed)


def test_two_spellings_that_disagree_are_kept_as_a_finding() -> None:
    """Nothing is silently rewritten: both values stand in spelling_conflicts."""
    config = RunConfig.read({"tp": 1, "tensor_model_parallel_size": 2})
    assert config.spelling_conflicts == ("tp=1 and tensor_model_parallel_size=2",)
    assert RunConfig.read({"tp": 2, "tensor_model_parallel_size": 2}).spelling_conflicts == ()


def test_replace_merges_sections_and_removes_with_none() -> None:
    """replace() changes one field of a section and leaves the rest."""
    config = RunConfig.read(FULL).replace(recompute={"modules": ["moe"]}, cp=None)
    assert config.recompute is not None and config.recompute.modules == ("moe",)
    assert config.context_parallel_size is None
    assert config.optimizer.cpu_offload_fraction == 1.0
