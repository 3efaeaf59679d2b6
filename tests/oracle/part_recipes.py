"""Every emitted recipe against the released frameworks: Bridge's real config classes, Megatron-LM's real parser.

A Bridge script is executed up to `build_config()`, and its ConfigContainer is finalized and validated for the intended
world size; overrides are applied by Bridge's own Hydra reader; a command line goes through `parse_args` and
`validate_args`. What is read back from each text must be the configuration it was written from.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import types
import unittest.mock
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import _env

_env.pretend_te()

import _hub  # noqa: E402
import recipe_cases  # noqa: E402

_hub.install()

import megatron.bridge.training.config as bridge_config  # noqa: E402
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides  # noqa: E402
from megatron.core import parallel_state  # noqa: E402,F401
from megatron.training import arguments  # noqa: E402

from moe_long_context.catalog.architecture import Architecture  # noqa: E402
from moe_long_context.config.formats.migrations import written_migrations  # noqa: E402
from moe_long_context.config.formats.overrides import is_override  # noqa: E402
from moe_long_context.config.formats.shell import read_shell  # noqa: E402
from moe_long_context.config.reading import read_document  # noqa: E402
from moe_long_context.config.resolve import Run, resolve  # noqa: E402
from moe_long_context.config.run_config import RunConfig  # noqa: E402
from moe_long_context.recipes.releases import recipe_function  # noqa: E402
from moe_long_context.recipes.settings.model import window  # noqa: E402
from moe_long_context.recipes.writers import WRITERS  # noqa: E402

_pretrained = tempfile.TemporaryDirectory()
os.environ["PRETRAINED_CHECKPOINT"] = _pretrained.name

GOLDEN = "recipes_bridge-0.6.2.json"
MESSAGE = 160
DUMPED = (
    "model", "seq_length", "micro_batch_size", "global_batch_size", "tensor_model_parallel_size",
    "context_parallel_size", "cp_comm_type", "hierarchical_context_parallel_sizes", "pipeline_model_parallel_size",
    "pipeline_model_parallel_layout", "expert_model_parallel_size", "expert_tensor_parallel_size", "precision",
    "dispatcher", "cuda_graph", "account_for_embedding_in_pipeline_split",
)  # fmt: skip
NOT_IN_PROVIDER = ("max_position_embeddings", "mtp_num_layers", "activation_func", "window_size")


def build(run: Run) -> Any:
    """The unfinalized ConfigContainer that the emitted script returns."""
    (text,) = WRITERS["bridge-python"](run).files.values()
    module = types.ModuleType("recipe")
    exec(compile(text, "recipe.py", "exec"), module.__dict__)
    return module.build_config()


def accept(config: Any, run: Run) -> None:
    """What Bridge's `pretrain` does with a configuration before it touches a device."""
    with _hub.cluster(run.num_gpus, run.gpu.id):
        for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1"):
            os.environ.pop(name, None)
        bridge_config.runtime_config_update(config)


@lru_cache(maxsize=1)
def accepted(run: Run) -> Any:
    """The emitted script's configuration after Bridge finalized and validated it; shared by the checks of one run."""
    config = build(run)
    accept(config, run)
    return config


def script(run: Run) -> None:
    """The emitted Bridge script is accepted, every field it sets exists, and the model is the catalog's."""
    config = build(run)
    for setting in WRITERS["bridge-python"](run).settings:
        section, _, name = setting.path.rpartition(".")
        owner = getattr(config, section) if section else config
        assert name in type(owner).__dataclass_fields__, f"{setting.path} is not a field of the release"
    meant = {setting.path for setting in WRITERS["bridge-python"](run).settings}
    names = [name for name in Architecture.model_fields if f"model.{name}" not in meant]
    differing = [name for name in names if _differs(config.model, run, name)]
    assert not differing, f"model differs from the catalog in {differing}"
    accepted(run)


def _differs(provider: Any, run: Run, name: str) -> bool:
    if not hasattr(provider, name) or name in NOT_IN_PROVIDER:
        return False
    if name.startswith(("linear_", "mamba_", "dsa_")) or (name in ("num_query_groups", "kv_channels", "rope_type")):
        return False
    held, wanted = getattr(provider, name), getattr(run.arch, name)
    if (name == "vocab_size" and held is None) or (name == "original_max_position_embeddings" and wanted is None):
        return False
    if name == "moe_layer_freq":
        return run.arch.is_moe and [bool(x) for x in _every(held, run.arch.num_layers)] != list(run.arch.moe_layers)
    if name == "rotary_scaling_factor" and (held is None or held == 1.0 or run.arch.rope_type != "yarn"):
        return False
    if not run.arch.is_moe and name.startswith("moe_"):
        return False
    if name == "window_size":
        return held != window(run.arch)
    return bool((held or None) != (wanted or None))


def _every(value: Any, layers: int) -> list[int]:
    return [int(i % value == 0) for i in range(layers)] if isinstance(value, int) else list(value)


def overrides(run: Run) -> None:
    """The emitted key=value words are applied by Bridge's reader and give the same validated configuration."""
    recipe = recipe_function(run)
    if recipe is None:
        return
    (text,) = WRITERS["bridge-overrides"](run).files.values()
    module = __import__(recipe.module, fromlist=[recipe.function])
    config = getattr(module, recipe.function)()
    words = [word for word in read_shell(text).words if is_override(word) or word.startswith(("mixed_", "++"))]
    process_config_with_overrides(config, cli_overrides=words)
    if run.written.peft.type != "none":
        config.checkpoint.pretrained_checkpoint = _pretrained.name
    accept(config, run)
    reference = accepted(run)
    for section in ("model", "optimizer", "ddp", "train", "mixed_precision"):
        left, right = getattr(config, section), getattr(reference, section)
        for name in type(left).__dataclass_fields__:
            a, b = getattr(left, name, None), getattr(right, name, None)
            assert callable(a) or _plain(a) == _plain(b), f"{section}.{name}: {a} by overrides, {b} by script"


def _plain(value: Any) -> Any:
    """OmegaConf hands tuples back as lists."""
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else str(value)


def command(run: Run) -> None:
    """The emitted Megatron-LM flags pass the real parser and validator at the intended world size."""
    (text,) = WRITERS["megatron-lm"](run).files.values()
    words = read_shell(text).words
    start = next(i for i, word in enumerate(words) if word.endswith(".py"))
    exported = {name: value[-1] for name, value in read_shell(text).variables.items()}
    with (
        _hub.cluster(run.num_gpus, run.gpu.id),
        unittest.mock.patch.object(sys, "argv", ["pretrain", *words[start + 1 :]]),
        unittest.mock.patch.object(arguments, "_print_args"),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        os.environ.update({**exported, "WORLD_SIZE": str(run.num_gpus), "RANK": "0", "LOCAL_RANK": "0"})
        arguments.validate_args(arguments.parse_args())


def round_trip(run: Run) -> None:
    """Reading what was written gives the configuration it was written from."""
    for name, write in WRITERS.items():
        if name in ("bridge-python", "nemo-run", "slurm") or (name == "bridge-overrides" and not recipe_function(run)):
            continue
        for text in write(run).files.values():
            assert read_document(text, name) == run.written, f"{name} reads back differently"


def dump(run: Run) -> None:
    """The YAML that Bridge dumps of the accepted configuration reads back as the run it came from."""
    read = read_document(config_yaml(accepted(run)), "run_config.yaml")
    for name in DUMPED:
        written = getattr(run.written, name)
        if written is not None and name != "model" and not (name == "cuda_graph" and written_migrations(run.written)):
            assert getattr(read, name) == written, f"{name}: {written} written, {getattr(read, name)} read"
    assert set(read.activation_offload.modules) == run.offload_modules
    assert read.model == run.model_id or not isinstance(run.written.model, str), f"model read as {read.model}"
    recompute = resolve(read.replace(gpu="H100", num_gpus=run.num_gpus)).recompute_modules
    assert recompute == run.recompute_modules, f"recompute {sorted(run.recompute_modules)} read as {sorted(recompute)}"


def config_yaml(config: Any) -> str:
    """Bridge's own dump, as training writes it beside its checkpoints."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "run_config.yaml")
        config.to_yaml(path)
        with open(path, encoding="utf-8") as file:
            return file.read()


CHECKS: dict[str, Callable[[Run], None]] = {
    "script": script,
    "overrides": overrides,
    "command": command,
    "round_trip": round_trip,
    "dump": dump,
}


def outcome(check: Callable[[Run], None], run: Run) -> str:
    """ "ok", or what the framework said."""
    try:
        check(run)
    except SystemExit:
        return "the parser refused the command line"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MESSAGE]
    return "ok"


def record() -> dict[str, Any]:
    """Case id -> outcome of each check, and how many were accepted."""
    cases: dict[str, Any] = {}
    for name, config in [
        *recipe_cases.shipped(),
        *recipe_cases.options(),
        *recipe_cases.published(),
        *recipe_cases.generated(),
    ]:
        run = resolve(RunConfig.read(config))
        cases[name] = {label: outcome(check, run) for label, check in CHECKS.items()}
    accepted = Counter(label for case in cases.values() for label, said in case.items() if said == "ok")
    return {"cases": len(cases), "accepted": dict(sorted(accepted.items())), "outcomes": cases}
