"""What the emitted recipes say, format by format."""

from __future__ import annotations

import ast
from typing import Any

import pytest
import yaml

from moe_long_context.config.reading import read_document, read_file
from moe_long_context.config.resolve import Run, resolve
from moe_long_context.config.run_config import RunConfig
from moe_long_context.errors import BadValueError
from moe_long_context.recipes.environment import bridge_env
from moe_long_context.recipes.megatron_lm import layer_freq_text, megatron_flags
from moe_long_context.recipes.releases import recipe_function
from moe_long_context.recipes.settings import bridge_settings, effect_of
from moe_long_context.recipes.settings.training import heaviest_ranks
from moe_long_context.recipes.writers import WRITERS, smoke, stem
from moe_long_context.tools import emit_recipe

DSV3: dict[str, Any] = {
    "model": "deepseek-v3", "gpu": "H100", "num_gpus": 256, "seq_length": "128k", "cp": 32, "pp": 8, "vpp": 4, "ep": 32,
    "etp": 1, "layout": "Et|(tt|)*30mL", "precision": "fp8_blockwise", "dispatcher": "deepep", "gbs": 256,
    "recompute": ["mla_up_proj", "layernorm", "moe", "mlp"],
    "optimizer": {"cpu_offload_fraction": 1.0, "precision_aware": True},
}  # fmt: skip
QWEN: dict[str, Any] = {
    "model": "qwen3-30b-a3b", "gpu": "GB200", "num_gpus": 64, "seq_length": "128k", "tp": 2, "cp": 4, "ep": 32,
    "sp": True, "dispatcher": "hybridep", "precision": "mxfp8",
}  # fmt: skip
ROUND_TRIP = ("bridge-overrides", "megatron-lm", "verl", "slime")


def values(run: Run) -> dict[str, Any]:
    return {setting.path: setting.value for setting in bridge_settings(run)}


def only(run: Run, name: str) -> str:
    return list(WRITERS[name](run).files.values())[-1]


def without_remark(run: Run, name: str) -> str:
    return "\n".join(line for line in only(run, name).splitlines() if "moe-long-context:" not in line)


@pytest.mark.parametrize("name", ROUND_TRIP)
@pytest.mark.parametrize("config", [DSV3, QWEN, {**DSV3, "frontend": "megatron_lm"}], ids=["dsv3", "qwen", "mlm"])
def test_what_was_written_reads_back_as_the_same_configuration(name: str, config: dict[str, Any]) -> None:
    """read(write(x)) == x, whatever the form cannot say."""
    run = resolve(config)
    assert read_document(only(run, name), name) == RunConfig.read(config)


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_the_layout_is_read_from_the_text_itself_not_from_the_remark(name: str) -> None:
    """Without the comment line the sizes, recompute and offload still come back."""
    text = without_remark(resolve(DSV3), name)
    read = read_document(text, name)
    assert (read.model, read.context_parallel_size, read.expert_model_parallel_size) == ("deepseek-v3", 32, 32)
    assert read.pipeline_model_parallel_layout == "Et|(tt|)*30mL"
    assert read.recompute and set(read.recompute.modules or ()) == {"mla_up_proj", "layernorm", "moe", "mlp"}
    assert read.optimizer.cpu_offload_fraction == 1.0
    assert read.num_gpus == 256


def test_an_edit_of_the_text_wins_over_the_remark() -> None:
    """A person who changes the context parallel size in the script gets that size."""
    text = only(resolve(DSV3), "megatron-lm").replace("--context-parallel-size 32", "--context-parallel-size 16")
    assert read_document(text, "script").context_parallel_size == 16


def test_the_script_calls_the_recipe_of_the_release_by_its_module() -> None:
    """Eight names exist twice with other layouts, so the import names the module (Bridge 0.6.2)."""
    tree = ast.parse(only(resolve(DSV3), "bridge-python"))
    imports = {(n.module, a.name) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    recipe = recipe_function(resolve(DSV3))
    assert recipe and (recipe.module, recipe.function) in imports


def test_importing_the_script_starts_nothing() -> None:
    """Training and its imports stand only under the main guard."""
    body = ast.parse(only(resolve(DSV3), "bridge-python")).body
    assert {type(node) for node in body} <= {ast.Import, ast.ImportFrom, ast.FunctionDef, ast.If}
    assert [node.name for node in body if isinstance(node, ast.FunctionDef)] == ["build_config"]


def test_a_model_without_a_recipe_is_built_from_its_provider() -> None:
    """Mixtral has no recipe in Bridge 0.6.2; the provider gets every architecture field."""
    run = resolve({"model": "mixtral-8x7b", "gpu": "H100", "num_gpus": 8, "seq_length": 8192, "ep": 8})
    text = only(run, "bridge-python")
    assert recipe_function(run) is None
    assert "cfg.model = GPTModelProvider(" in text and "cfg.model.num_moe_experts = 8" in text


def test_overrides_of_a_model_without_a_recipe_are_refused_with_the_way_out() -> None:
    """run_recipe.py starts from a recipe function."""
    run = resolve({"model": "mixtral-8x7b", "gpu": "H100", "num_gpus": 8, "seq_length": 8192, "ep": 8})
    with pytest.raises(BadValueError, match="bridge-python"):
        WRITERS["bridge-overrides"](run)


def test_sequence_length_is_the_same_in_model_and_dataset() -> None:
    """ConfigContainer.validate asserts it (config.py, Bridge 0.6.2)."""
    found = values(resolve(DSV3))
    assert found["model.seq_length"] == found["dataset.seq_length"] == 131072


def test_yarn_factor_reaches_the_length_beyond_the_trained_context() -> None:
    """256K from 4096 original positions is factor 64; 128K is inside the released 160K and changes nothing."""
    longer = values(resolve({**DSV3, "seq_length": "256k", "num_gpus": 512, "cp": 64}))
    assert longer["model.rotary_scaling_factor"] == 64.0
    assert "model.rotary_scaling_factor" not in values(resolve(DSV3))


def test_rope_models_switch_to_yarn_beyond_their_context() -> None:
    """Qwen3-30B-A3B was trained for 40,960 tokens; 131,072 is factor 3.2."""
    found = values(resolve(QWEN))
    assert found["model.position_embedding_type"] == "yarn"
    assert found["model.yarn_rotary_scaling_factor"] == pytest.approx(3.2)


def test_settings_that_change_training_are_labelled() -> None:
    """Parallel sizes only execute differently; precision, batch and capacity change what is trained."""
    for path in ("model.context_parallel_size", "model.recompute_modules", "optimizer.optimizer_cpu_offload"):
        assert effect_of(path) == "execution-only"
    for path in ("mixed_precision", "train.global_batch_size", "model.moe_expert_capacity_factor", "model.num_layers"):
        assert effect_of(path) == "convergence-changing"


def test_a_memory_snapshot_is_recorded_on_the_first_rank_of_each_stage() -> None:
    """256 GPUs in 8 stages are blocks of 32 ranks."""
    assert heaviest_ranks(resolve(DSV3)) == [0, 32, 64, 96, 128, 160, 192, 224]
    assert values(resolve(DSV3))["profiling.record_memory_history"] is True


def test_overlap_is_set_although_dp_is_one() -> None:
    """Bridge decides from DP alone and would switch the overlap of CP's gradient reduction off."""
    assert values(resolve(DSV3))["comm_overlap.overlap_grad_reduce"] is True


def test_hybridep_gets_its_nvlink_domain() -> None:
    """GB200 racks share NVLink over 72 GPUs; EP 32 fits in one (Bridge 0.6.2 GB200 recipes)."""
    env = bridge_env(resolve(QWEN))
    assert env["NVLINK_DOMAIN_SIZE"] == "72" and env["USE_MNNVL"] == "1"
    assert env["NUM_OF_HYBRID_EP_RANKS_PER_NVLINK_DOMAIN"] == "32"


@pytest.mark.parametrize(
    ("config", "value"),
    [
        (DSV3, "1"),
        (QWEN, None),
        ({**DSV3, "overlap": {"ep_a2a": True}}, "32"),
        ({**DSV3, "cp": 1, "num_gpus": 256}, None),
    ],
    ids=["hopper-cp", "blackwell", "ep-overlap", "no-tp-no-cp"],
)
def test_cuda_connections_follow_the_overlap(config: dict[str, Any], value: str | None) -> None:
    """validate_args of Megatron-Core 0.19.2 wants 1 for TP or CP before Blackwell."""
    assert bridge_env(resolve(config)).get("CUDA_DEVICE_MAX_CONNECTIONS") == value


def test_the_persons_own_environment_wins() -> None:
    """A value in `env` replaces the derived one."""
    assert bridge_env(resolve({**DSV3, "env": {"NCCL_NVLS_ENABLE": "1"}}))["NCCL_NVLS_ENABLE"] == "1"


def test_moe_layer_freq_is_written_in_megatrons_notation() -> None:
    """Three dense layers, then 58 MoE layers."""
    assert layer_freq_text([0] * 3 + [1] * 58) == "([0]*3+[1]*58)"


def test_a_layout_string_replaces_the_virtual_stage_flag() -> None:
    """Megatron-LM derives VPP from the layout and refuses both."""
    names = [name for name, _ in megatron_flags(resolve(DSV3))[0]]
    assert "pipeline-model-parallel-layout" in names and "num-virtual-stages-per-pipeline-rank" not in names


def test_megatron_flags_refused_with_offload_are_left_out_and_said() -> None:
    """arguments.py 0.19.2: FP8 parameters beside optimizer offload only with delayed scaling."""
    run = resolve({**QWEN, "optimizer": {"cpu_offload_fraction": 1.0, "precision_aware": True}})
    flags, notes = megatron_flags(run)
    assert "fp8-param-gather" not in dict(flags) and any("bf16" in note for note in notes)


def test_slurm_asks_for_whole_nodes_and_one_task_for_each_gpu() -> None:
    """64 GB200 are 16 nodes of 4; expert ranks of a dispatch stay in one segment of 8 nodes."""
    text = only(resolve(QWEN), "slurm")
    for line in (
        "#SBATCH --nodes=16",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gpus-per-node=4",
        "#SBATCH --segment=8",
    ):
        assert line in text
    assert all("  # " in line for line in text.splitlines() if line.startswith("export ") and "MASTER" not in line)


def test_slurm_of_the_megatron_front_end_starts_pretrain_gpt() -> None:
    """The front end decides which program the job runs."""
    assert "pretrain_gpt.py" in only(resolve({**DSV3, "frontend": "megatron_lm"}), "slurm")


def test_nemo_run_launches_the_emitted_script() -> None:
    """The launcher is a Python program that names the Bridge script beside it."""
    emitted = WRITERS["nemo-run"](resolve(DSV3))
    launcher = emitted.files[f"{stem(resolve(DSV3))}_nemo_run.py"]
    ast.parse(launcher)
    assert f"{stem(resolve(DSV3))}.py" in launcher and len(emitted.files) == 2


def test_verl_block_has_its_own_keys_and_the_rest_as_transformer_overrides() -> None:
    """ppo_megatron_trainer.yaml: sizes are direct, other fields go through override_transformer_config."""
    block = yaml.safe_load(only(resolve(DSV3), "verl"))
    megatron = block["actor_rollout_ref"]["actor"]["megatron"]
    assert megatron["expert_model_parallel_size"] == 32
    assert megatron["override_transformer_config"]["recompute_granularity"] == "selective"
    assert block["trainer"] == {"nnodes": 32, "n_gpus_per_node": 8}


def test_the_smoke_twin_keeps_every_kind_of_layer() -> None:
    """DeepSeek-V3's twin has two dense and two MoE layers, MLA and MTP, on one device."""
    text = "\n".join(smoke(resolve(DSV3)).files.values())
    for line in ("num_layers=4", "cfg.model.moe_layer_freq = [0, 0, 1, 1]", "cfg.model.multi_latent_attention = True"):
        assert line in text
    assert "cfg.model.tensor_model_parallel_size = 1" in text and "cfg.model.mtp_num_layers = 1" in text


@pytest.mark.parametrize("name", ["dsv3-128k-h100", "dsv3-256k-h100", "qwen3-235b-128k-gb200"])
def test_shipped_configurations_fit_their_meshes(name: str, request: pytest.FixtureRequest) -> None:
    """Both meshes divide the GPUs, the pipeline has a partition, and every pipeline stage is filled."""
    run = resolve(read_file(request.config.rootpath / "skill" / "configs" / f"{name}.yaml"))
    run.require_mesh()
    assert len(run.partition.chunks) == run.sizes.pp * run.sizes.vpp
    assert run.num_microbatches >= run.sizes.pp


def test_megatron_lm_takes_the_yarn_factor_without_its_prefix() -> None:
    """`_apply_yarn_config_from_args` of Megatron-LM 0.19.2 reads args.rotary_scaling_factor, mscale, mscale_all_dim."""
    flags = dict(megatron_flags(resolve(QWEN))[0])
    assert flags["rotary-scaling-factor"] == ["3.2"] and flags["mscale"] == ["1.0"]
    text = without_remark(resolve(QWEN), "megatron-lm")
    assert read_document(text, "x").megatron["model.yarn_rotary_scaling_factor"] == 3.2


def test_the_extension_of_the_context_is_said() -> None:
    """Nobody gets another position encoding without a line about it."""
    assumptions = emit_recipe(QWEN, allow_errors=True).raise_for_error().assumptions
    assert any(line.startswith("YaRN from 40960 to 131072 tokens (changes convergence") for line in assumptions)
