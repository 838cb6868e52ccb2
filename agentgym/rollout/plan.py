"""The plan of every group of a run: its environment, its task, its number of episodes and their length.

Groups are planned a step at a time, as :mod:`agentgym.rollout.mixture` assigns environments, so that strategies may
depend on what earlier steps showed, all ranks agree, and a resumed run plans what the first one would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from agentgym.rollout.mixture import Mixture, MixtureState
from agentgym.rollout.schedule import TaskSchedule
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.history import TaskHistory, Visit
from agentgym.types import Task, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What is decided about a group before it starts."""

    env: int
    """Index of the environment."""
    task: int
    """Index into the environment's training tasks."""
    num_episodes: int
    max_turns: int | None
    """Most turns of an episode, beside the environment's own limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The state of a :class:`GroupPlanner` in a checkpoint."""

    mixture: MixtureState
    num_steps: int = 0
    """Steps whose groups are planned."""
    plans: Mapping[int, GroupPlan] = field(default_factory=dict)
    """Planned groups that were not trained yet, by ordinal."""
    history: tuple[Mapping[int, Any], ...] = ()
    """The results of each environment's tasks."""

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> PlanState:
        """Return the state that ``dataclasses.asdict`` described."""
        plans = {int(ordinal): GroupPlan(**plan) for ordinal, plan in saved["plans"].items()}
        return cls(**{**saved, "mixture": MixtureState(**saved["mixture"]), "plans": plans})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


class EnvPlanner:
    """Plans the groups of one environment by its strategies.

    Args:
        group_size: episodes of a group where the budget does not say otherwise.
        seed: random numbers of a step derive from (seed, step).
        probed: a visit of each task from before the run, none if there were no such visits.
    """

    def __init__(
        self, config: StrategyConfig, tasks: Sequence[Task], group_size: int, seed: int, probed: Sequence[Visit] = ()
    ) -> None:
        self._config, self._group_size, self._seed = config, group_size, seed
        self._tasks, self._schedule = tasks, TaskSchedule(tasks, seed)
        self.history = TaskHistory({at: (visit,) for at, visit in enumerate(probed)})

    def task(self, index: int) -> Task:
        """Return a task by its index."""
        return self._tasks[index]

    def plan(self, env: int, positions: Sequence[int], step: int) -> list[GroupPlan]:
        """Plan the groups at ``positions`` of the environment's order, all of one step."""
        if not positions:
            return []
        config = self._config
        values = {
            "num_tasks": len(self._tasks),
            "positions": positions,
            "order": self._schedule.index,
            "history": self.history,
            "step": step,
            "rng": np.random.default_rng([self._seed, step]),
        }
        source = config.task_source
        tasks: list[int] = source.call(**source.arguments(values, config.tasks))
        horizon = config.horizon_rule
        max_turns = horizon.call(**horizon.arguments({"step": step}, config.horizon))
        return [GroupPlan(env, task, size, max_turns) for task, size in zip(tasks, self._sizes(tasks), strict=True)]

    def _sizes(self, tasks: Sequence[int]) -> list[int]:
        if self._config.extends_groups:
            return [self._group_size] * len(tasks)
        rule = self._config.budget_rule
        values = {"rates": [self.history.rate(task) for task in tasks], "group_size": self._group_size}
        sizes: list[int] = rule.call(**rule.arguments(values, self._config.budget))
        return sizes

    @property
    def extend(self) -> Callable[[float], int] | None:
        """Return how many episodes a finished group gets beside, by its success rate; None if none ever does."""
        return partial(self._added, self._config.budget_rule) if self._config.extends_groups else None

    def _added(self, rule: Any, rate: float) -> int:
        values = {"rate": rate, "group_size": self._group_size}
        return int(rule.call(**rule.arguments(values, self._config.budget)))


class GroupPlanner:
    """Plans the groups of a run, step by step.

    Args:
        state: the state to resume from.
    """

    def __init__(
        self,
        mixture: Callable[[MixtureState | None], Mixture],
        envs: Sequence[EnvPlanner],
        groups_per_step: int,
        state: PlanState | None = None,
    ) -> None:
        self._mixture = mixture(state.mixture if state else None)
        self._envs, self._groups_per_step = envs, groups_per_step
        self._num_steps = state.num_steps if state else 0
        self._plans = dict(state.plans) if state else {}
        for env, history in zip(envs, state.history if state else (), strict=False):
            env.history = TaskHistory.from_dict(history)

    @property
    def state(self) -> PlanState:
        """The state to save in a checkpoint."""
        return PlanState(
            mixture=self._mixture.state,
            num_steps=self._num_steps,
            plans=dict(self._plans),
            history=tuple(env.history.to_dict() for env in self._envs),
        )

    def plan(self, ordinal: int) -> GroupPlan:
        """Return the plan of a group."""
        while self._num_steps * self._groups_per_step <= ordinal:
            self._plan_step()
        return self._plans[ordinal]

    def observe(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Take in the groups of a step, whose plans are not needed any more."""
        rates: list[tuple[int, float]] = []
        for group in groups:
            plan = self._plans.pop(group.ordinal, None)
            if plan is None:  # a rank that does not play has planned nothing
                continue
            num_successes = sum(bool(member.success) for member in group.valid)
            self._envs[plan.env].history.add(plan.task, Visit(step, len(group.valid), num_successes))
            if group.valid:
                rates.append((plan.env, num_successes / len(group.valid)))
        self._mixture.observe(rates)

    def metrics(self) -> dict[str, float]:
        """Return how many different tasks were played so far."""
        return {"num_tasks_played": float(sum(len(env.history) for env in self._envs))}

    def _plan_step(self) -> None:
        step = self._num_steps
        ordinals = range(step * self._groups_per_step, (step + 1) * self._groups_per_step)
        places = {ordinal: self._mixture.place(ordinal) for ordinal in ordinals}
        self._mixture.forget(ordinals)
        for at, env in enumerate(self._envs):
            own = [ordinal for ordinal, (of, _) in places.items() if of == at]
            plans = env.plan(at, [places[ordinal][1] for ordinal in own], step)
            self._plans |= dict(zip(own, plans, strict=True))
        self._num_steps += 1
