"""Random run configurations against the real config classes: Megatron-Core's own, and Bridge's with `finalize()`.

Accept or refuse must be what the rules of the package say, case by case.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import _env

_env.pretend_te()

import config_cases  # noqa: E402
from _config_class import outcome  # noqa: E402
from megatron.bridge.models import transformer_config as bridge  # noqa: E402

GOLDEN = "configs_core-0.19.2.json"
SHORT = 60


def record() -> dict[str, Any]:
    """How many were tried, refused and judged otherwise; accept (1) or refuse (0) of each; the refusals met."""
    accepted, wrong, refusals = "", {}, Counter[str]()
    for index in range(config_cases.CASES):
        run = config_cases.case(index)
        said, rules = outcome(run, bridge), config_cases.refused_by(run)
        accepted += str(int(said == "ok"))
        if said != "ok":
            refusals[said.partition("{")[0][:SHORT]] += 1
        if (said == "ok") == bool(rules):
            wrong[str(index)] = {"framework": said, "rules": rules}
    return {
        "seed": config_cases.SEED, "tried": config_cases.CASES, "refused": accepted.count("0"),
        "disagreements": len(wrong), "cases": wrong, "accepted": accepted, "refusals": dict(sorted(refusals.items())),
    }  # fmt: skip
