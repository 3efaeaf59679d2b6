"""Writers of runnable files: Bridge scripts and overrides, Megatron-LM flags, Slurm jobs, NeMo-Run, verl and slime."""
