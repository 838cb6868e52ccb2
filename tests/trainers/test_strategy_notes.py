"""Every strategy with every recipe's defaults: it acts, or the start says why it cannot and which setting helps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from agentgym.errors import ConfigError
from agentgym.plugins import Component
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.strategies.component import FAMILIES
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.history import Visit
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.strategy_notes import strategy_notes
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.recipes import RECIPES, load_recipe
from agentgym.types import Task

KEYS = {"task source": "tasks"}
ENDPOINT = "openai:http://127.0.0.1:8001/v1?model=m"
NEEDED: dict[str, dict[str, Any]] = {
    "teacher": {"model": ENDPOINT},
    "feedback": {"model": ENDPOINT},
    "rubric": {"text": "Look into every drawer."},
}
"""Settings without which a strategy is refused."""
DEFAULTS = {getattr(StrategyConfig(), KEYS.get(family, family)).kind for family in FAMILIES}
TASKS = tuple(Task(id=f"t-{number}", split="train", seed=number) for number in range(200))


def with_strategy(config: TrainConfig, key: str, component: Component) -> TrainConfig:
    assert component.options is not None
    options: Any = component.options(**NEEDED.get(component.name, {}))
    return replace(config, strategy=replace(config.strategy, **{key: options}))


def acts(config: TrainConfig, key: str) -> bool:
    """Return True if a strategy plans something else than the defaults on tasks that were played before."""
    strategy, size = config.strategy, config.group.group_size
    if key in ("branching", "pruning", "replay"):
        return bool(strategy.branches or strategy.prunes or strategy.replays)
    if strategy.extends_groups:
        return bool(strategy.call("budget", rate=0.05, group_size=size))
    plans = []
    for made in (strategy, StrategyConfig()):
        planner = EnvPlanner(made, TASKS, size, 0)
        for task in range(len(TASKS)):
            planner.history.add(task, Visit(0, size, (0, size, size // 2, 1)[task % 4], size, 3))
        plans.append([planner.plan(0, range(8 * step, 8 * step + 8), step) for step in range(3)])
    return plans[0] != plans[1]


def test_every_strategy_acts_with_every_recipe_or_says_why_not() -> None:
    counts, idle = Counter[str](), []
    recipes = {}
    for name in sorted(RECIPES):
        if RECIPES[name].module.startswith("agentgym."):  # other tests register recipes of theirs
            one = load_recipe(name)
            recipes[one.group, one.groups_per_step, one.num_steps, one.env.num_train_tasks, one.pipeline] = name, one
    for name, recipe in recipes.values():  # those that differ in what strategies read
        for family, registry in FAMILIES.items():
            key = KEYS.get(family, family)
            for kind, component in registry.items():
                if kind in DEFAULTS or component.is_own or getattr(component, "rule", ""):
                    continue  # a program that plays by a rule is that rule
                try:
                    config = with_strategy(recipe, key, component)
                except ConfigError:
                    counts["refused"] += 1
                    continue
                if strategy_notes(config, config.env.num_train_tasks or 1_000_000, None):
                    counts["noted"] += 1
                elif acts(config, key):
                    counts["acts"] += 1
                else:
                    idle.append(f"{kind} with {name}")
    assert not idle, idle
    assert counts == COUNTS, dict(counts)


COUNTS = {"acts": 521, "noted": 286, "refused": 5}


@pytest.mark.parametrize(
    ("overrides", "num_tasks", "max_turns", "said"),
    [
        (['strategy.guidance={"kind": "fading"}'], 10_000, None, "set env.num_train_tasks to a part of 320, as 80"),
        (['strategy.replay={"kind": "success"}'], 10_000, None, "strategy.replay=success acts on earlier visits"),
        (['strategy.horizon={"kind": "longest_success"}'], 10_000, None, "strategy.horizon=longest_success acts on"),
        (['strategy.budget={"kind": "xrpo"}'], 10_000, None, "strategy.budget=xrpo acts on earlier visits"),
        (['strategy.budget={"kind": "dars", "high": 8}'], 10, None, "raise its high above that"),
        (['strategy.budget={"kind": "xrpo", "low": 8}'], 10, None, "lower its low"),
        (['strategy.budget={"kind": "knapsack"}', "groups_per_step=1"], 10, None, "groups_per_step is 1"),
        (['strategy.pruning={"kind": "arrol", "after": 6}'], 10, 6, "lower its after"),
        (['strategy.horizon={"kind": "scaling_inter"}'], 10, 9, "begins with 10 turns, and an episode has 9 at most"),
        (['strategy.horizon={"kind": "extending"}'], 10, 10, "begin with fewer, or raise env.kwargs.max_turns"),
    ],
)
def test_what_cannot_act_is_said_with_the_setting_that_helps(
    overrides: list[str], num_tasks: int, max_turns: int | None, said: str
) -> None:
    (note,) = strategy_notes(apply_overrides(load_recipe("tiny"), overrides), num_tasks, max_turns)
    assert said in note


@pytest.mark.parametrize(
    "overrides",
    [
        ["env.num_train_tasks=80"],
        ["strategy.probe=4"],
        ['strategy.tasks={"kind": "vas"}'],
        ["num_steps=2000"],
    ],
)
def test_tasks_that_come_round_are_no_matter(overrides: list[str]) -> None:
    config = apply_overrides(load_recipe("tiny"), ['strategy.guidance={"kind": "fading"}', *overrides])
    assert strategy_notes(config, config.env.num_train_tasks or 10_000, 30) == ()


@pytest.mark.parametrize("kind", ["start_samples", "remix"])
def test_a_share_of_less_than_half_a_group_is_told(kind: str) -> None:
    def notes(share: float, *more: str) -> tuple[str, ...]:
        chosen = f'strategy.replay={{"kind": "{kind}", "share": {share}}}'
        return strategy_notes(apply_overrides(load_recipe("tiny"), [chosen, "groups_per_step=8", *more]), None, None)

    (told,) = notes(0.05)
    assert "a share of 0.05" in told and "raise its share above 0.059" in told
    assert notes(0.06) == ()
    moved = '[{"key": "strategy.replay.share", "from": 0.05, "to": 0.5, "steps": 3}]'
    assert notes(0.05, f"schedules={moved}") == ()
