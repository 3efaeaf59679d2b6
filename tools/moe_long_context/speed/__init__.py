"""Model FLOPs and step time: a white-box model of one training step."""

from __future__ import annotations

from moe_long_context.speed.schedule import Stage, StepTime, step_time

__all__ = ["Stage", "StepTime", "step_time"]
