"""A trial of a user's strategies on made-up groups, before a run warms up and plays."""

from __future__ import annotations

from dataclasses import replace

from agentgym.env.tasks import SeededTasks
from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.plan import EnvPlanner
from agentgym.rollout.program_trial import WORLDS, played
from agentgym.rollout.strategies.config import StrategyConfig

_FAMILIES = ("tasks", "budget", "horizon", "branching", "pruning", "guidance", "replay")
_NUM_TASKS, _NUM_STEPS = 4, 3


def try_strategies(config: StrategyConfig, group: GroupConfig) -> None:
    """Plan and play made-up groups by each strategy of a user, so that its errors show before training starts.

    In three steps each strategy sees tasks without any visit, and tasks that were always, sometimes and never solved.

    Raises:
        ConfigError: a strategy raises an error of its own, or returns something that its family cannot.
    """
    for family in _FAMILIES:
        if config.rule(family).is_own:
            alone = StrategyConfig(**{family: getattr(config, family)})
            try:
                _play(alone, group)
            except ConfigError as error:
                raise ConfigError(f"{error} (tried on made-up groups)") from error


def _play(config: StrategyConfig, group: GroupConfig) -> None:
    """Play some steps of a planner with a single strategy, a world for each task."""
    planner = EnvPlanner(config, SeededTasks("train", _NUM_TASKS), group.group_size, 0)
    for step in range(_NUM_STEPS):
        positions = range(step * _NUM_TASKS, (step + 1) * _NUM_TASKS)
        for ordinal, plan in zip(positions, planner.plan(0, positions, step), strict=True):
            program = planner.program(plan, ordinal, step)
            world = WORLDS[plan.task % len(WORLDS)]
            made = run_coroutine(played(program, world, plan.num_episodes, group.num_envs))
            made = replace(made, ordinal=ordinal)
            planner.swap(made, plan.task, step)
            planner.store(made, plan.task, step)
            planner.note(made, plan.task, step)
        planner.again(len(positions), step)
