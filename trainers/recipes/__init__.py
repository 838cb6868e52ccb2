"""Recipes: functions that return a training configuration, by name.

A user's recipe is a function decorated with :func:`recipe`. Its name is ``file.py:name`` or ``module:name``, or only
``name`` if an installed package has the entry point ``agentgym.components``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from agentgym.errors import AgentGymError, ConfigError
from agentgym.plugins import Component, F, Registry
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes.browser import miniwob_demo
from agentgym.trainers.recipes.games import kuhn, tictactoe
from agentgym.trainers.recipes.mixture import household_demo, household_long, household_smoke, mixture
from agentgym.trainers.recipes.own import finetune, tiny
from agentgym.trainers.recipes.qwen import QWEN_RECIPES
from agentgym.trainers.recipes.released import igpo, rstar2, searchr1, spiral
from agentgym.trainers.recipes.self_play import wiki_selfplay
from agentgym.trainers.recipes.skills import skill_chain
from agentgym.trainers.recipes.smollm2 import SMOLLM2_RECIPES

RECIPES = Registry[Component]("recipe", "agentgym.trainers.recipes", ())


def recipe(name: str) -> Callable[[F], F]:
    """Register a function without parameters that returns a :class:`TrainConfig`.

    Example:
        >>> @recipe("mine")
        ... def mine():
        ...     return load_recipe("tiny")
        >>> load_recipe("mine").recipe
        'tiny'
    """

    def register(function: F) -> F:
        RECIPES.add(Component(name=name, family="recipe", function=function))
        return function

    return register


def _own(make: Callable[[], TrainConfig]) -> Callable[[], TrainConfig]:
    def call() -> TrainConfig:  # the signature of a partial would still show what it fills
        return make()

    call.__doc__ = inspect.getdoc(make.func if isinstance(make, partial) else make)
    return call


for _name, _make in {
    "finetune": finetune,
    "household-demo": household_demo,
    "household-long": household_long,
    "household-smoke": household_smoke,
    "igpo": igpo,
    "kuhn": kuhn,
    "miniwob-demo": miniwob_demo,
    "mixture": mixture,
    "rstar2": rstar2,
    "searchr1": searchr1,
    "skill-chain": skill_chain,
    "spiral": spiral,
    "tictactoe": tictactoe,
    "tiny": tiny,
    "wiki-selfplay": wiki_selfplay,
    **QWEN_RECIPES,
    **SMOLLM2_RECIPES,
}.items():
    recipe(_name)(_own(_make))


@dataclass(frozen=True, slots=True)
class RecipeFacts:
    """The facts about a recipe that lists show."""

    name: str
    envs: tuple[str, ...]
    """Ids of its environments."""
    model: str
    """The model's source, or the size of a model from scratch."""
    summary: str


def describe_recipes() -> tuple[RecipeFacts, ...]:
    """Return the facts about every recipe, sorted by name; for a recipe that cannot be loaded, the reason.

    Example:
        >>> [facts.model for facts in describe_recipes() if facts.name == "smollm2-wiki"]
        ['smollm2']
    """
    return tuple(_facts(name) for name in RECIPES)


def _facts(name: str) -> RecipeFacts:
    try:
        config, said = load_recipe(name), inspect.getdoc(RECIPES[name].call) or ""
    except AgentGymError as error:  # a user's: the others are listed all the same
        return RecipeFacts(name, (), "", f"cannot be used: {error}")
    model = config.model
    envs = tuple(one.env.id for one in config.by_env.values())
    size = f"from scratch, {model.num_layers} layers of {model.hidden_size}"
    trained = f" (LoRA, rank {model.lora.rank})" if model.lora.rank else " (all weights)"
    summary = said.partition("\n\n")[0].replace("\n", " ").replace("``", "").rstrip(".")
    return RecipeFacts(name, envs, model.path or size, summary + (trained if model.path else ""))


def recipe_names() -> tuple[str, ...]:
    """Return the names of all recipes, sorted."""
    return tuple(RECIPES)


def load_recipe(name: str) -> TrainConfig:
    """Return the configuration of a recipe.

    Raises:
        UnknownNameError: the recipe does not exist; the message suggests similar names.
        ConfigError: the function did not return a configuration.
    """
    made = RECIPES[name].call()
    if not isinstance(made, TrainConfig):
        raise ConfigError(f"recipe {name!r} returned {type(made).__name__}, expected a TrainConfig")
    return made
