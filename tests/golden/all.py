"""All recipes by name."""

from . import recipes

ALL = recipes.RECIPES
