"""Writes a Megatron Bridge training script: the release's recipe function, then every field set explicitly.

`build_config()` of the script returns the real, unfinalized ConfigContainer; it trains only when run as a program.
"""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.errors import BadValueError, shorten
from moe_long_context.recipes.releases import NEWEST, RecipeFunction, recipe_function
from moe_long_context.recipes.settings import Setting, bridge_settings
from moe_long_context.recipes.text import comment, identifier, python_literal
from moe_long_context.units import length_text

DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
ADAPTERS = {"lora": "LoRA", "dora": "DoRA"}
BACKENDS = ("auto", "flash", "fused", "unfused", "local")
GROUPS = {
    "model": "Model, layout, kernels", "dataset": "Data", "train": "Batches", "validation": "Validation",
    "optimizer": "Optimizer", "ddp": "Gradients and their sharding", "dist": "Process groups",
    "comm_overlap": "Communication overlap", "mixed_precision": "Precision", "checkpoint": "Checkpoints",
    "profiling": "Memory history: a snapshot is written on out-of-memory and after profile_step_end",
    "logger": "Logging", "env_vars": "Environment variables, applied before anything else is finalized",
}  # fmt: skip


def bridge_script(run: Run) -> str:
    """The text of the script for one run."""
    found = recipe_function(run)
    settings = bridge_settings(run, whole_model=found is None)
    body = [*_base(run, found), *_assignments(settings), *_peft(run), "    return cfg"]
    return "\n".join([_head(run, found), *_imports(run, found, settings), "", "", *body, "", "", *_main(run)]) + "\n"


def _head(run: Run, found: RecipeFunction | None) -> str:
    s = run.sizes
    base = f"recipe {found.function}" if found else "no recipe of this release; built from its provider"
    what = f"{run.model_id}, {length_text(run.seq_length)} tokens, {run.num_gpus} x {run.gpu.id}"
    layout = f"TP{s.tp} CP{s.cp} PP{s.pp} VPP{s.vpp} EP{s.ep} ETP{s.etp}, DP{s.dp} EDP{s.edp}"
    lines = [f"# {what}: {layout}.", f"# For Megatron Bridge {NEWEST}; {base}.",
             "# Lines marked [convergence] change what is trained; all others only how it is executed."]  # fmt: skip
    return "\n".join(comment(line) for line in lines)


def _imports(run: Run, found: RecipeFunction | None, settings: list[Setting]) -> list[str]:
    body = [
        "from megatron.bridge.training.comm_overlap import CommOverlapConfig",
        "from megatron.bridge.training.config import ConfigContainer",
        "from megatron.bridge.training.mixed_precision import get_mixed_precision_config",
    ]
    if any(setting.path == "model.attention_backend" for setting in settings):
        body.append("from megatron.core.transformer.enums import AttnBackend")
    if run.written.peft.type != "none":
        kind = run.written.peft.type
        body.append(f"from megatron.bridge.peft.{kind} import {ADAPTERS[kind]}")
    if found:
        body.append(f"from {found.module} import {found.function}")
    else:
        body.append("from megatron.bridge.recipes.common import _pretrain_common")
        body.append(_provider_import(run))
    return ["", "import os", "", "import torch", *sorted(body)]


def _entry(run: Run) -> str:
    return "pretrain" if run.written.peft.type == "none" else "finetune"


def provider_name(run: Run) -> str:
    """The provider class that builds this kind of model."""
    if run.arch.hybrid_layer_pattern:
        return "HybridModelProvider"
    return "MLAModelProvider" if run.arch.multi_latent_attention else "GPTModelProvider"


def _provider_import(run: Run) -> str:
    module = {
        "HybridModelProvider": "megatron.bridge.models.hybrid.hybrid_provider",
        "MLAModelProvider": "megatron.bridge.models.mla_provider",
        "GPTModelProvider": "megatron.bridge.models.gpt_provider",
    }[provider_name(run)]
    return f"from {module} import {provider_name(run)}"


def _base(run: Run, found: RecipeFunction | None) -> list[str]:
    out = ["def build_config() -> ConfigContainer:", '    """The complete, unfinalized configuration of this run."""']
    if found:
        out.append(f"    cfg = {found.function}()")
    else:
        a = run.arch
        out += [
            "    cfg = _pretrain_common()",
            f"    cfg.model = {provider_name(run)}(",
            f"        num_layers={a.num_layers},",
            f"        hidden_size={a.hidden_size},",
            f"        num_attention_heads={a.num_attention_heads},",
            "    )",
            '    cfg.tokenizer.tokenizer_type = "NullTokenizer"',
            f"    cfg.tokenizer.vocab_size = {a.vocab_size - 1}",
        ]
    return [
        *out,
        "    cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)",
        "",
        '    # Mock data until a corpus is given: cfg.dataset.blend = (["/data/prefix"], None)',
        '    cfg.checkpoint.save = os.environ.get("CHECKPOINT_DIR", "checkpoints")',
        '    cfg.checkpoint.load = os.environ.get("CHECKPOINT_DIR", "checkpoints")',
    ]


def _assignments(settings: list[Setting]) -> list[str]:
    lines: list[str] = []
    group = ""
    for setting in sorted(settings, key=_group_rank):
        section = setting.path.partition(".")[0]
        if section != group:
            group = section
            lines += ["", f"    # {GROUPS.get(section, section)}"]
        lines.append("    " + _assignment(setting))
    return lines


def _group_rank(setting: Setting) -> int:
    section = setting.path.partition(".")[0]
    return list(GROUPS).index(section) if section in GROUPS else len(GROUPS)


def _assignment(setting: Setting) -> str:
    target = ".".join(identifier(part) for part in setting.path.split("."))
    mark = "[convergence] " if setting.effect == "convergence-changing" else ""
    note = (mark + setting.why).strip()
    line = f"cfg.{target} = {_python(setting)}"
    if setting.path == "env_vars":
        line = _environment(setting)
    return f"{line}  # {comment(note)}" if note else line


def _environment(setting: Setting) -> str:
    rows = [f"        {python_literal(k)}: {python_literal(v)}," for k, v in setting.value.items()]
    return "\n".join(["cfg.env_vars = {", *rows, "    }"])


def _python(setting: Setting) -> str:
    path, value = setting.path, setting.value
    if path == "mixed_precision":
        return f"get_mixed_precision_config({python_literal(value)})"
    if path == "model.attention_backend" and value in BACKENDS:
        return f"AttnBackend.{value}"
    if path.endswith("_dtype") and value is not None:
        return dtype_expression(value)
    return python_literal(value)


def dtype_expression(value: object) -> str:
    """`torch.bfloat16` for "bf16" and the framework's own spellings.

    Raises:
        BadValueError: not a dtype.
    """
    text = str(value).removeprefix("torch.")
    name = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "uint8": "fp8"}.get(text, text)
    if name in ("fp64",):
        return python_literal(name)
    if name not in DTYPES:
        raise BadValueError(f"{shorten(value)} is not a dtype.", given=shorten(value), allowed=sorted(DTYPES))
    return DTYPES[name]


def _peft(run: Run) -> list[str]:
    peft = run.written.peft
    if peft.type == "none":
        return []
    arguments = []
    if peft.rank:
        arguments.append(f"dim={peft.rank}")
    if peft.target_modules:
        arguments.append(f"target_modules={python_literal(list(peft.target_modules))}")
    return [
        "",
        "    # Adapters: only they are trained, so the base weights have to come from a checkpoint",
        f"    cfg.peft = {ADAPTERS[peft.type]}({', '.join(arguments)})  # [convergence]",
        '    cfg.checkpoint.pretrained_checkpoint = os.environ.get("PRETRAINED_CHECKPOINT", "pretrained")',
    ]


def _main(run: Run) -> list[str]:
    """Training imports stay inside, so that `build_config` can be checked where no GPU stack is installed."""
    entry = _entry(run)
    return [
        'if __name__ == "__main__":',
        "    from megatron.bridge.training.gpt_step import forward_step",
        f"    from megatron.bridge.training.{entry} import {entry}",
        "",
        f"    {entry}(config=build_config(), forward_step_func=forward_step)",
    ]
