"""Everything a report shows: the answers of the tools about one run. No number is made here."""

from __future__ import annotations

from typing import Any

from moe_long_context import tools
from moe_long_context.config.run_config import RunConfig

MIN_SWEEP, MAX_SWEEP = 4096, 1 << 20
SWEEP_STEPS = (-3, -2, -1, 0, 1, 2, 3)


def gather(config: RunConfig, other: RunConfig | None = None) -> dict[str, Any]:
    """The JSON answer of each tool by its command; `compare` only with a second run.

    Raises:
        MoeError: memory has no answer, so there is nothing to report on.
    """
    memory = tools.estimate_memory(config, sweep=f"seq_length={','.join(map(str, lengths(config)))}")
    memory.raise_for_error()
    answers = {
        "memory": memory,
        "throughput": tools.estimate_throughput(config),
        "recompute": tools.recommend_recompute(config),
        "validate": tools.validate_config(config),
        "evidence": tools.find_evidence(config),
        "recipe": tools.emit_recipe(config),
    }
    if other is not None:
        answers["compare"] = tools.compare_configs(config, other)
    return {name: answer.model_dump(mode="json") for name, answer in answers.items()}


def lengths(config: RunConfig) -> list[int]:
    """Sequence lengths around the run's own: an eighth to eight times, in steps of two."""
    own = config.seq_length or MIN_SWEEP
    tried = [own << step if step >= 0 else own >> -step for step in SWEEP_STEPS]
    return [n for n in tried if n == own or MIN_SWEEP <= n <= MAX_SWEEP]
