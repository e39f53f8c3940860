"""All recipes by name."""

from . import recipes, recipes_experiments, recipes_recommender

ALL = recipes.RECIPES | recipes_recommender.RECIPES | recipes_experiments.RECIPES
