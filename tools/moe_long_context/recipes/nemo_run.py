"""Writes a NeMo-Run launcher for an emitted Bridge script: a Slurm executor and one experiment."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.recipes.environment import environment
from moe_long_context.recipes.slurm import WALL_TIME, nodes_of
from moe_long_context.recipes.text import comment, python_literal


def nemo_run_script(run: Run, name: str, headline: str, program: str) -> str:
    """The text of the launcher; account, partition and image come from the environment of the person who submits."""
    nodes, per_node = nodes_of(run)
    rows = [f"    {python_literal(v.name)}: {python_literal(v.value)},  # {comment(v.why)}" for v in environment(run)]
    return "\n".join([
        f"# {headline}. Needs nemo-run on the machine that submits.",
        "",
        "import os",
        "",
        "import nemo_run as run",
        "",
        "ENVIRONMENT = {",
        *rows,
        "}",
        "",
        "",
        "def executor() -> run.SlurmExecutor:",
        '    """One task for each GPU."""',
        "    return run.SlurmExecutor(",
        '        account=os.environ["SLURM_ACCOUNT"],',
        '        partition=os.environ["SLURM_PARTITION"],',
        f"        nodes={nodes},",
        f"        ntasks_per_node={per_node},",
        f"        gpus_per_node={per_node},",
        '        mem="0",',
        "        exclusive=True,",
        f'        time="{WALL_TIME}",',
        '        container_image=os.environ["CONTAINER_IMAGE"],',
        "        container_mounts=[f\"{os.getcwd()}:{os.getcwd()}\"],",
        "        env_vars=dict(ENVIRONMENT),",
        "        packager=run.Packager(),",
        '        tunnel=run.LocalTunnel(job_dir=os.path.join(os.getcwd(), "nemo_run")),',
        "    )",
        "",
        "",
        'if __name__ == "__main__":',
        f"    with run.Experiment({python_literal(name)}) as experiment:",
        f'        script = os.path.join(os.getcwd(), {python_literal(program)})',
        '        experiment.add(run.Script(path=script, entrypoint="python"), executor=executor())',
        "        experiment.run(detach=True)",
    ]) + "\n"  # fmt: skip
