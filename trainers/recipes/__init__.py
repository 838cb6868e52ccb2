"""Recipes: functions that return a training configuration, by name."""

from __future__ import annotations

from collections.abc import Callable

from agentgym.errors import unknown_name
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes.browser import miniwob_demo
from agentgym.trainers.recipes.games import kuhn, tictactoe
from agentgym.trainers.recipes.household import household_demo, household_smoke
from agentgym.trainers.recipes.own import finetune, tiny
from agentgym.trainers.recipes.qwen import QWEN_RECIPES
from agentgym.trainers.recipes.smollm2 import SMOLLM2_RECIPES

RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "finetune": finetune,
    "household-demo": household_demo,
    "household-smoke": household_smoke,
    "kuhn": kuhn,
    "miniwob-demo": miniwob_demo,
    "tictactoe": tictactoe,
    "tiny": tiny,
    **QWEN_RECIPES,
    **SMOLLM2_RECIPES,
}


def recipe_names() -> tuple[str, ...]:
    """All recipes, sorted."""
    return tuple(sorted(RECIPES))


def load_recipe(name: str) -> TrainConfig:
    """The configuration of a recipe.

    Raises:
        UnknownNameError: no such recipe; the message names near ones.
    """
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]()
