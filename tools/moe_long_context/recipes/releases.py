"""Whether a run's model has a recipe function in the release that is written for."""

from __future__ import annotations

from moe_long_context.config.formats.recipe_names import NEWEST, RecipeFunction, recipe_table
from moe_long_context.config.resolve import Run
from moe_long_context.recipes.settings.model import catalog_shape


def recipe_function(run: Run) -> RecipeFunction | None:
    """The release's recipe of the run's model; None when there is none or the model is not the catalog's."""
    if not isinstance(run.written.model, str) or catalog_shape(run.model_id) is None:
        return None
    return recipe_table().get(run.model_id)


__all__ = ["NEWEST", "RecipeFunction", "recipe_function"]
