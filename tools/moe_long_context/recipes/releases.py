"""Which recipe function of a Bridge release builds a catalog model. Owns `data/bridge-<release>.yaml`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moe_long_context.config.resolve import Run
from moe_long_context.recipes.settings.model import catalog_shape
from moe_long_context.yaml_safe import load_file

NEWEST = "0.6.2"


class RecipeFunction(NamedTuple):
    """A recipe function: the module that defines it, its full name, and the name run_recipe.py resolves."""

    module: str
    function: str
    alias: str


@lru_cache(maxsize=8)
def _table(release: str) -> dict[str, RecipeFunction]:
    data = load_file(Path(__file__).parent / "data" / f"bridge-{release}.yaml")
    return {model: RecipeFunction(**entry) for model, entry in data["recipes"].items()}


def recipe_function(run: Run) -> RecipeFunction | None:
    """The release's recipe of the run's model; None when there is none or the model is not the catalog's."""
    if not isinstance(run.written.model, str) or catalog_shape(run.model_id) is None:
        return None
    return _table(NEWEST).get(run.model_id)
