"""Writes a launch script for Bridge's run_recipe.py: the release's recipe, and every field as a key=value override."""

from __future__ import annotations

import re
from typing import Any

from moe_long_context.config.formats.precision import MIXED_PRECISION, REGISTRY
from moe_long_context.config.resolve import Run
from moe_long_context.errors import BadValueError, shorten
from moe_long_context.recipes.releases import RecipeFunction, recipe_function
from moe_long_context.recipes.settings import Setting, bridge_settings
from moe_long_context.recipes.text import shell

CLASSES = {
    "comm_overlap": "megatron.bridge.training.comm_overlap.CommOverlapConfig",
    "mixed_precision": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
    "lora": "megatron.bridge.peft.lora.LoRA",
    "dora": "megatron.bridge.peft.dora.DoRA",
}
BACKENDS = {"flash": 1, "fused": 2, "unfused": 3, "local": 4, "auto": 5}
TORCH = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
BF16_TYPE = {"_target_": "torch.bfloat16", "_call_": False}
_BARE = re.compile(r"^[A-Za-z_][A-Za-z0-9_./-]*$")
_KEYWORDS = ("null", "true", "false", "nan", "inf", "none", "yes", "no", "on", "off")


def recipe_of(run: Run) -> RecipeFunction:
    """The recipe function that run_recipe.py starts from.

    Raises:
        BadValueError: the release has none for this model.
    """
    found = recipe_function(run)
    if found is None:
        raise BadValueError(
            f"Megatron Bridge has no recipe for {shorten(run.model_id)}, so there is nothing to override.",
            given=run.model_id,
            fix="use format bridge-python, which builds the model from its architecture",
            code="no_recipe",
        )
    return found


def override_words(run: Run) -> list[str]:
    """`key=value` words, unquoted for the shell, in the order of the settings."""
    settings = bridge_settings(run)
    words = [word for setting in settings for word in _words(run, setting)]
    words.append(f"++comm_overlap={hydra_value(_section(settings, 'comm_overlap'))}")
    words.append(_mixed_precision(run, settings))
    return [*words, *_peft(run)]


def _words(run: Run, setting: Setting) -> list[str]:
    path, value = setting.path, setting.value
    if path.startswith(("comm_overlap.", "mixed_precision")):
        return []
    if path == "env_vars":
        return [f"++env_vars.{name}={hydra_value(str(item))}" for name, item in value.items()]
    if path == "model.attention_backend":
        return [f"++{path}={hydra_value(_backend(value))}"]
    if path.endswith("_dtype") and value in TORCH:
        value = TORCH[value]
    return [f"{path}={hydra_value(value)}"]


def _backend(name: str) -> dict[str, Any]:
    return {
        "_target_": "megatron.core.transformer.enums.AttnBackend", "_args_": [BACKENDS[name]], "_call_": True,
        "_name_": name,
    }  # fmt: skip


def _section(settings: list[Setting], section: str) -> dict[str, Any]:
    fields = {s.path.split(".", 1)[1]: s.value for s in settings if s.path.startswith(section + ".")}
    return {"_target_": CLASSES[section], **fields}


def _mixed_precision(run: Run, settings: list[Setting]) -> str:
    """The registered name, or the whole object where a field differs from what the name stands for."""
    name = MIXED_PRECISION[run.precision]
    wanted = _section(settings, "mixed_precision")
    released = {"grad_reduce_in_fp32": True, **REGISTRY[run.precision]}
    if all(released.get(key, False) == value for key, value in wanted.items() if key != "_target_"):
        return f"mixed_precision={name}"
    types = {"bf16": True, "params_dtype": BF16_TYPE, "pipeline_dtype": BF16_TYPE, "autocast_enabled": False}
    return f"++mixed_precision={hydra_value({**types, **released, **wanted})}"


def _peft(run: Run) -> list[str]:
    peft = run.written.peft
    if peft.type == "none":
        return []
    adapter: dict[str, Any] = {"_target_": CLASSES[peft.type]}
    if peft.rank:
        adapter["dim"] = peft.rank
    if peft.target_modules:
        adapter["target_modules"] = list(peft.target_modules)
    return [f"++peft={hydra_value(adapter)}"]


def hydra_value(value: Any) -> str:
    """A value in Hydra's override grammar.

    Raises:
        BadValueError: not plain data, or text that Hydra would interpolate.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(hydra_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{hydra_value(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str):
        raise BadValueError(f"{type(value).__name__} cannot be an override.", given=shorten(value))
    return _text(value)


def _text(value: str) -> str:
    if "${" in value or "\n" in value or "\r" in value:
        raise BadValueError("Text with ${ or line breaks cannot be an override.", given=shorten(value))
    if _BARE.match(value) and value.lower() not in _KEYWORDS:
        return value
    escaped = re.sub(r"(\\*)'", lambda m: m.group(1) * 2 + "\\'", value)
    trailing = len(escaped) - len(escaped.rstrip("\\"))
    return "'" + escaped + "\\" * trailing + "'"


def launch_words(run: Run, launcher: str) -> str:
    """The whole command over several lines, safe for the shell."""
    adapters = run.written.peft.type != "none"
    lines = [
        f"{launcher} scripts/training/run_recipe.py",
        f"  --recipe {shell(recipe_of(run).alias)} --mode pretrain",
        '  --save_dir "${CHECKPOINT_DIR:-checkpoints}" --load_dir "${CHECKPOINT_DIR:-checkpoints}"',
        *(['  --pretrained_checkpoint "${PRETRAINED_CHECKPOINT:?}"'] if adapters else []),
        *(f"  {shell(word)}" for word in override_words(run)),
    ]
    return " \\\n".join(lines)
