"""The formats a recipe can be written in, by name. Owns file names, launch lines and script frames."""

from __future__ import annotations

import re
from collections.abc import Callable

from moe_long_context.config.formats.detect import read_known_form
from moe_long_context.config.formats.remark import remark
from moe_long_context.config.resolve import Run
from moe_long_context.recipes.bridge_overrides import launch_words
from moe_long_context.recipes.bridge_python import bridge_script
from moe_long_context.recipes.emitted import Emitted
from moe_long_context.recipes.environment import environment
from moe_long_context.recipes.megatron_lm import command_lines
from moe_long_context.recipes.nemo_run import nemo_run_script
from moe_long_context.recipes.releases import recipe_function
from moe_long_context.recipes.rl import slime_script, verl_block
from moe_long_context.recipes.settings import Setting, bridge_settings
from moe_long_context.recipes.slurm import slurm_job
from moe_long_context.recipes.smoke import smoke_run
from moe_long_context.recipes.smoke_script import smoke_script
from moe_long_context.recipes.text import comment, shell
from moe_long_context.units import length_text

RENDEZVOUS_PORT = 29500


def stem(run: Run) -> str:
    """A file name of letters, digits and _ for the run."""
    words = f"{run.model_id}_{length_text(run.seq_length)}_{run.num_gpus}gpu_{run.gpu.id}"
    return re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")[:80] or "run"


def torchrun(run: Run) -> str:
    """The launcher part of a command on every node of the run."""
    per_node = min(run.gpus_per_node, run.num_gpus)
    nodes = -(-run.num_gpus // per_node)
    if nodes == 1:
        return f"torchrun --nproc-per-node {per_node}"
    rendezvous = f'--rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:{RENDEZVOUS_PORT}"'
    return f"torchrun --nnodes {nodes} --nproc-per-node {per_node} {rendezvous}"


def title(run: Run) -> str:
    """One line that says what the run is."""
    s = run.sizes
    what = f"{run.model_id}, {length_text(run.seq_length)} tokens, {run.num_gpus} x {run.gpu.id}"
    return comment(f"{what}: TP{s.tp} CP{s.cp} PP{s.pp} VPP{s.vpp} EP{s.ep} ETP{s.etp}, DP{s.dp} EDP{s.edp}")


def with_remark(run: Run, text: str) -> str:
    """The text with the comment line that makes reading it give back the run's configuration."""
    read = read_known_form(text, "recipe")
    head, newline, body = text.partition("\n")
    line = remark(run.written, read) if read is not None else ""
    return f"{head}{newline}{line}\n{body}" if line else text


def script(run: Run, command: str, variables: bool) -> str:
    """A bash script around one command."""
    exports = [f"export {v.name}={shell(v.value)}  # {comment(v.why)}" for v in environment(run)] if variables else []
    lines = ["#!/usr/bin/env bash", f"# {title(run)}.", "set -euo pipefail", *exports, "", command]
    return with_remark(run, "\n".join(lines) + "\n")


def bridge_python(run: Run) -> Emitted:
    """A Megatron Bridge script."""
    name = f"{stem(run)}.py"
    return Emitted({name: bridge_script(run)}, f"{torchrun(run)} {name}", _settings(run))


def bridge_overrides(run: Run) -> Emitted:
    """A launch script for run_recipe.py, started in a checkout of the release."""
    name = f"{stem(run)}_overrides.sh"
    text = script(run, launch_words(run, torchrun(run)), variables=False)
    return Emitted({name: text}, f"bash {name}", tuple(bridge_settings(run)))


def megatron_lm(run: Run) -> Emitted:
    """A launch script for pretrain_gpt.py."""
    name = f"{stem(run)}_megatron_lm.sh"
    command, notes = command_lines(run, torchrun(run))
    text = script(run, command, variables=True)
    return Emitted({name: text}, f"bash {name}", tuple(bridge_settings(run, whole_model=True)), tuple(notes))


def slurm(run: Run) -> Emitted:
    """A batch job: the Bridge script beside it, or pretrain_gpt.py where the front end is Megatron-LM."""
    name = stem(run)
    if run.bridge:
        script_file = bridge_python(run)
        program, files, notes = ["python", "-u", f"{name}.py"], dict(script_file.files), script_file.notes
    else:
        command, found = command_lines(run, "python -u")
        program, files, notes = [line.strip() for line in command.split(" \\\n")], {}, tuple(found)
    files[f"{name}.sbatch"] = slurm_job(run, name, title(run), program)
    launch = f"sbatch --account=ACCOUNT --partition=PARTITION {name}.sbatch"
    return Emitted(files, launch, _settings(run), notes)


def nemo_run(run: Run) -> Emitted:
    """A NeMo-Run launcher beside the Bridge script."""
    name = stem(run)
    files = dict(bridge_python(run).files)
    files[f"{name}_nemo_run.py"] = nemo_run_script(run, name, title(run), f"{name}.py")
    return Emitted(files, f"python {name}_nemo_run.py", _settings(run))


def verl(run: Run) -> Emitted:
    """The Megatron block of a verl configuration."""
    name = f"{stem(run)}_verl.yaml"
    notes = ("verl takes lengths from data.max_prompt_length and data.max_response_length; set them to add up",)
    launch = "python -m verl.trainer.main_ppo --config-name=ppo_megatron_trainer"
    return Emitted({name: with_remark(run, verl_block(run, title(run)))}, launch, _settings(run), notes)


def slime(run: Run) -> Emitted:
    """The Megatron arguments of a slime launch script."""
    name = f"{stem(run)}_slime.sh"
    text, notes = slime_script(run, title(run))
    return Emitted({name: with_remark(run, text)}, f"bash {name}", _settings(run), tuple(notes))


def smoke(run: Run) -> Emitted:
    """The scaled-down twin as a program for one device."""
    twin = smoke_run(run)
    name = f"{stem(run)}_smoke.py"
    return Emitted({name: smoke_script(twin)}, f"python {name}", tuple(bridge_settings(twin, whole_model=True)))


def _settings(run: Run) -> tuple[Setting, ...]:
    return tuple(bridge_settings(run, whole_model=recipe_function(run) is None))


WRITERS: dict[str, Callable[[Run], Emitted]] = {
    "bridge-python": bridge_python,
    "bridge-overrides": bridge_overrides,
    "megatron-lm": megatron_lm,
    "slurm": slurm,
    "nemo-run": nemo_run,
    "verl": verl,
    "slime": slime,
}
