"""The formats a recipe can be written in, by name. Owns file names and launch lines; texts are made by the writers."""

from __future__ import annotations

import re
from collections.abc import Callable

from moe_long_context.config.resolve import Run
from moe_long_context.recipes.bridge_python import bridge_script
from moe_long_context.recipes.emitted import Emitted
from moe_long_context.recipes.releases import recipe_function
from moe_long_context.recipes.settings import bridge_settings
from moe_long_context.units import length_text


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
    rendezvous = '--rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:29500"'
    return f"torchrun --nnodes {nodes} --nproc-per-node {per_node} {rendezvous}"


def bridge_python(run: Run) -> Emitted:
    """A Megatron Bridge script."""
    name = f"{stem(run)}.py"
    settings = bridge_settings(run, whole_model=recipe_function(run) is None)
    return Emitted({name: bridge_script(run)}, f"{torchrun(run)} {name}", tuple(settings))


WRITERS: dict[str, Callable[[Run], Emitted]] = {
    "bridge-python": bridge_python,
}
