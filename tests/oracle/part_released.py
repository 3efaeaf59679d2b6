"""Every released Bridge recipe of the catalog's models: what Bridge's validation says, and its dump as it is read here.

The rules must have no error on a recipe that can run, and one on each that cannot (tests/rules/test_released.py).
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable
from typing import Any

import _env

_env.pretend_te()

import _hub  # noqa: E402
import part_recipes  # noqa: E402

_hub.install()

import megatron.bridge.perf_recipes as performance  # noqa: E402
import megatron.bridge.recipes as library  # noqa: E402
import megatron.bridge.training.config as bridge_config  # noqa: E402

from moe_long_context.config.reading import read_document  # noqa: E402

GOLDEN = "released_bridge-0.6.2.json"
NAME = re.compile(r"_(\d+)gpu_([a-z]+\d+)_\w*config$")
FAMILIES = re.compile(
    r"deepseek_v[23]|glm45|glm5|gpt_oss|kimi_k2|moonlight|nemotron_3_(nano|super)|olmoe|qwen3_(30b|235b|next)|qwen35_text"
)
JUDGED = frozenset(
    word
    for file in (_env.ROOT / "tools" / "moe_long_context" / "rules" / "families").glob("*.py")
    for word in re.findall(r"[\w.]+", file.read_text(encoding="utf-8"))
)
"""Every name that stands in a rule: what is kept of a recipe's further fields and environment."""
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
STAND_IN_GPU = {"VR200": "GB200"}
MESSAGE = 110


def recipes() -> dict[str, Callable[[], Any]]:
    """Recipe function by name, where GPUs and their number stand in the name."""
    found: dict[str, Callable[[], Any]] = {}
    for package in (library, performance):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = importlib.import_module(info.name)
            own = inspect.getmembers(module, lambda f: inspect.isfunction(f) and f.__module__ == info.name)  # noqa: B023
            found |= {name: function for name, function in own if NAME.search(name) and FAMILIES.match(name)}
    return dict(sorted(found.items()))


def build(recipe: Callable[[], Any]) -> Any:
    """The recipe's ConfigContainer, or None where it needs files or a model that are not here."""
    try:
        return recipe()
    except Exception:
        return None


def verdict(config: Any, gpus: int, gpu: str) -> str:
    """ "ok", or what Bridge says before it touches a device."""
    if getattr(config, "peft", None) is not None:
        config.checkpoint.pretrained_checkpoint = os.environ["PRETRAINED_CHECKPOINT"]
    try:
        with _hub.cluster(gpus, gpu):
            for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "NVTE_CPU_OFFLOAD_V1"):
                os.environ.pop(name, None)
            bridge_config.runtime_config_update(config)
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:MESSAGE]
    return "ok"


def as_read(config: Any, gpus: int, gpu: str) -> dict[str, Any]:
    """What this package reads from Bridge's dump, without what no rule looks at."""
    written = (
        read_document(part_recipes.config_yaml(config), "run_config.yaml").replace(num_gpus=gpus, gpu=gpu).written()
    )
    for part in ("megatron", "env"):
        written[part] = {
            name: value
            for name, value in written.get(part, {}).items()
            if name in JUDGED and not name.startswith("checkpoint.")
        }
    if not isinstance(layout := written.get("pipeline_model_parallel_layout", ""), str):
        written["pipeline_model_parallel_layout"] = "|".join(
            "".join(LETTERS[word] for word in stage) for stage in layout
        )
    return {name: value for name, value in written.items() if name not in ("reader_notes", "vocab") and value != {}}


def record() -> dict[str, Any]:
    """Recipe name -> [verdict, configuration]."""
    rows = {}
    for name, recipe in recipes().items():
        match = NAME.search(name)
        config = build(recipe)
        if match is None or config is None:
            continue
        gpus, gpu = int(match[1]), STAND_IN_GPU.get(match[2].upper(), match[2].upper())
        rows[name] = [as_read(config, gpus, gpu)]
        rows[name].insert(0, verdict(config, gpus, gpu))
    return {"recipes": rows}
