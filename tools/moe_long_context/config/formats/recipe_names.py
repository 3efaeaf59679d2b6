"""Recipe functions of a Bridge release and the catalog models they build. Owns `bridge_recipes-<release>.yaml`."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from moe_long_context.yaml_safe import load_file

NEWEST = "0.6.2"


class RecipeFunction(NamedTuple):
    """A recipe function: the module that defines it, its full name, and the name run_recipe.py resolves."""

    module: str
    function: str
    alias: str


@lru_cache(maxsize=8)
def recipe_table(release: str = NEWEST) -> dict[str, RecipeFunction]:
    """Catalog model id -> recipe function of the release."""
    data = load_file(Path(__file__).parent / f"bridge_recipes-{release}.yaml")
    return {model: RecipeFunction(**entry) for model, entry in data["recipes"].items()}


def model_of(name: str) -> str | None:
    """The catalog model that a recipe builds, by its full name, its alias, or the longest alias stem it starts with."""
    table = recipe_table()
    for model, recipe in table.items():
        if name in (recipe.function, recipe.alias):
            return model
    stems = {recipe.alias.split("_pretrain")[0]: model for model, recipe in table.items()}
    matching = [stem for stem in stems if name.startswith(stem + "_")]
    return stems[max(matching, key=len)] if matching else None
