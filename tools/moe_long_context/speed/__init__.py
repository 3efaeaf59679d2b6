"""Model FLOPs and step time: a white-box model of one training step."""

from __future__ import annotations

from moe_long_context.speed.facts import Facts, facts_of
from moe_long_context.speed.schedule import Stage, StepTime, step_time, step_time_of

__all__ = ["Facts", "Stage", "StepTime", "facts_of", "step_time", "step_time_of"]
