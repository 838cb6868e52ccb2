"""Recipes: training configurations by name.

Those of agentgym are tables of the ``.toml`` files in this folder. A table holds the keys of
:class:`~agentgym.trainers.config.train.TrainConfig` that differ from their defaults. ``about`` describes the recipe,
and ``base`` names tables whose values it begins with. A table whose name begins with ``_`` is only a base of others.

A user's recipe is a function decorated with :func:`recipe`. Its name is ``file.py:name`` or ``module:name``, or only
``name`` if an installed package has the entry point ``agentgym.components``.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import product
from typing import Any

from agentgym.errors import AgentGymError, ConfigError
from agentgym.plugins import Component, F, Registry
from agentgym.trainers.config.overrides import from_dict
from agentgym.trainers.config.train import TrainConfig

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


Table = Mapping[str, Any]


def _read_tables() -> dict[str, Table]:
    files = [file for file in resources.files(__package__).iterdir() if file.name.endswith(".toml")]
    return {name: table for file in files for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items()}


def _merged(*tables: Table) -> dict[str, Any]:
    """Return nested tables as one; values of later tables replace those of earlier ones, and so do lists."""
    found: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            found[key] = _merged(found.get(key, {}), value) if isinstance(value, Mapping) else value
    return found


def _with_base(table: Table) -> dict[str, Any]:
    return _merged(*(_with_base(_TABLES[name]) for name in table.get("base", ())), table)


def _with_qwen(benchmark: Table, model: Table, suffix: str) -> dict[str, Any]:
    """Return the table that trains a Qwen model on a benchmark: adapters, or with a suffix all weights."""
    adapters: Table = {} if suffix else _TABLES["_qwen-adapters"]
    found = _merged(_with_base(_TABLES["_qwen"]), benchmark, model, adapters)
    if not suffix or "template_args" in model["model"]:  # adapters, and Qwen3 as in its script, have no KL term
        found["loss"]["regularisers"] = [one for one in found["loss"]["regularisers"] if one["kind"] != "kl"]
    return found


def _register(name: str, table: dict[str, Any]) -> None:
    def call() -> TrainConfig:
        return from_dict({"recipe": name} | {key: table[key] for key in table if key not in ("about", "base")})

    call.__doc__ = table["about"].strip()
    recipe(name)(call)


_TABLES = _read_tables()
for _name, _table in _TABLES.items():
    if not _name.startswith("_"):
        _register(_name, _with_base(_table))
for (_name, _table), (_model, _of_model), _suffix in product(
    _TABLES["_benchmarks"].items(), _TABLES["_models"].items(), ("", "-fsdp")
):
    _register(f"{_name}-{_model}{_suffix}", _with_qwen(_table, _of_model, _suffix))


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


def load_recipe(name: str) -> TrainConfig:
    """Return the configuration of a recipe.

    Raises:
        UnknownNameError: the recipe does not exist; the message suggests similar names.
        ConfigError: the function failed, or did not return a configuration.
    """
    made = RECIPES[name].invoke({}, None)
    if not isinstance(made, TrainConfig):
        raise ConfigError(f"recipe {name!r} returned {type(made).__name__}, expected a TrainConfig")
    return made
