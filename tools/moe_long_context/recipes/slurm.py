"""Writes a Slurm batch job: nodes, tasks, container, mounts, and the environment with the reason of each variable."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.recipes.environment import environment
from moe_long_context.recipes.text import comment, shell

WALL_TIME = "04:00:00"
PORT = 29500
CONTAINER_OPTIONS = (
    '--container-image="$CONTAINER_IMAGE"',
    '--container-mounts="$WORKDIR:$WORKDIR${EXTRA_MOUNTS:+,$EXTRA_MOUNTS}"',
    '--container-workdir="$WORKDIR"',
    "--no-container-mount-home",
)


def nodes_of(run: Run) -> tuple[int, int]:
    """(nodes, GPUs on each); fewer GPUs than a node holds are one node."""
    per_node = min(run.gpus_per_node, run.num_gpus)
    return -(-run.num_gpus // per_node), per_node


def slurm_job(run: Run, name: str, headline: str, program: list[str]) -> str:
    """The text of an sbatch file that starts `program` (words that the shell may expand) as one task on each GPU."""
    nodes, per_node = nodes_of(run)
    lines = [
        "#!/usr/bin/env bash",
        f"# {headline}.",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={nodes}",
        f"#SBATCH --ntasks-per-node={per_node}",
        f"#SBATCH --gpus-per-node={per_node}",
        "#SBATCH --exclusive",
        "#SBATCH --mem=0",
        f"#SBATCH --time={WALL_TIME}",
        f"#SBATCH --output={name}_%j.out",
        *_segment(run, nodes),
        "set -euo pipefail",
        "",
        ': "${CONTAINER_IMAGE:?set it to an image with the release this was written for}"',
        ': "${WORKDIR:=$PWD}"',
        "",
        "# Environment: one line for each variable that this layout needs",
        *(f"export {v.name}={shell(v.value)}  # {comment(v.why)}" for v in environment(run)),
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        f"export MASTER_ADDR MASTER_PORT={PORT}  # rank 0's host, for the rendezvous",
        "",
        "# One task for each GPU; Slurm's task numbers are the ranks",
        "srun --kill-on-bad-exit=1 \\",
        *(f"  {option} \\" for option in CONTAINER_OPTIONS),
        "  bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec \"$@\"' task \\",
        "  " + " \\\n  ".join(program),
    ]
    return "\n".join(lines) + "\n"


def _segment(run: Run, nodes: int) -> list[str]:
    """Expert ranks of a HybridEP domain have to sit in one NVLink rack."""
    if run.gpu.nvlink_domain <= run.gpus_per_node or nodes == 1:
        return []
    wanted = max(min(run.sizes.ep, run.gpu.nvlink_domain) // run.gpus_per_node, 1)
    if nodes % wanted:
        return [f"# {nodes} nodes do not divide into segments of {wanted}: expert ranks may leave their NVLink rack"]
    return [f"#SBATCH --segment={wanted}", "# ^ keeps the expert ranks of a dispatch in one NVLink rack"]
