"""GPU and node counts that a launch script states: torchrun, srun, sbatch and the RL frameworks' own flags."""

from __future__ import annotations

import re
from typing import Any

PER_NODE = ("nproc_per_node", "gpus_per_node", "ntasks_per_node", "actor_num_gpus_per_node")
NODES = ("nnodes", "nodes", "num_nodes", "actor_num_nodes")
VARIABLES = ("NPROC_PER_NODE", "GPUS_PER_NODE", "NNODES", "NUM_NODES")
OTHER = ("node_rank", "master_addr", "master_port", "rdzv_backend", "rdzv_endpoint", "rdzv_id")
_FLAG = re.compile(r"^--([a-z][\w-]*)(?:=(\d+))?$")


def is_launcher_flag(flag: str) -> bool:
    """Whether a flag belongs to a launcher, not to the training program."""
    return flag.replace("-", "_") in (*PER_NODE, *NODES, *OTHER)


def launcher_size(words: list[str], variables: dict[str, list[str]]) -> dict[str, Any]:
    """`num_gpus` and `gpus_per_node` where the script states both as plain numbers."""
    numbers: dict[str, int] = {}
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if match := _FLAG.match(word):
            value = match.group(2) or following
            if value.isdigit():
                numbers.setdefault(match.group(1).replace("-", "_"), int(value))
    for name in VARIABLES:
        value = variables.get(name, [""])[-1]
        if value.isdigit():
            numbers.setdefault(name.lower(), int(value))
    per_node = next((numbers[name] for name in PER_NODE if name in numbers), None)
    if not per_node:
        return {}
    nodes = next((numbers[name] for name in NODES if name in numbers), 1)
    return {"num_gpus": nodes * per_node, "gpus_per_node": per_node}
