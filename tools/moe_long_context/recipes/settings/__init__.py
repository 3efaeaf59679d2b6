"""What a run sets in Bridge's ConfigContainer, in the order a reader expects. One module for each concern."""

from __future__ import annotations

from moe_long_context.config.resolve import Run
from moe_long_context.recipes.settings import execution, layout, model, training
from moe_long_context.recipes.settings.setting import Effect, Setting, effect_of


def bridge_settings(run: Run, *, whole_model: bool = False) -> list[Setting]:
    """Every Bridge field that the run decides, each exactly once; later concerns win over earlier ones.

    `whole_model` also sets the architecture (needed where no recipe of the release provides it).
    """
    parts = [
        *model.architecture(run, whole=whole_model),
        *model.sequence(run),
        *layout.parallel(run),
        *layout.pipeline(run),
        *execution.moe(run),
        *execution.recompute(run),
        *execution.kernels(run),
        *execution.overlap(run),
        *training.precision(run),
        *training.optimizer(run),
        *training.finetuning(run),
        *training.batch(run),
        *training.hooks(run),
        *training.written_fields(run),
    ]
    return list({setting.path: setting for setting in parts}.values())


__all__ = ["Effect", "Setting", "bridge_settings", "effect_of"]
