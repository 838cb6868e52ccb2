"""The plan of every group of a run: its environment, its task, its number of episodes and their length.

Groups are planned one step at a time, as :mod:`agentgym.rollout.mixture` assigns environments. Strategies may therefore
depend on earlier results, all ranks agree, and a resumed run makes the same plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from statistics import fmean

import numpy as np

from agentgym.errors import UsageError
from agentgym.rollout.branch import Start
from agentgym.rollout.mixture import Mixture, MixtureState
from agentgym.rollout.program import Facts, Planned, played_by
from agentgym.rollout.pruned import Prune
from agentgym.rollout.replay import RecordRef, Replayed, SuccessStore, Swap, choose_swap
from agentgym.rollout.rules import pruned_by, starts_by
from agentgym.rollout.strategies.config import StrategyConfig
from agentgym.rollout.strategies.extending import was_cut_short
from agentgym.rollout.strategies.history import TaskHistory, Visit
from agentgym.rollout.strategies.rubric import RubricOptions, checklists
from agentgym.rollout.waves import UNBRANCHED, AtOnce, ChooseStarts, Extended, InWaves
from agentgym.types import Task, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Decisions about a group before it starts."""

    env: int
    """Index of the environment."""
    task: int
    """Index into the environment's training tasks."""
    num_episodes: int
    max_turns: int | None
    """Most turns of an episode, in addition to the environment's limit."""
    num_hinted: int = 0
    """Episodes with hints."""
    num_hints: int = 0
    """Number of their turns with a hint."""
    num_demonstrated: int = 0
    """Episodes that the oracle plays."""
    visits: tuple[Visit, ...] = ()
    """Results of earlier groups of the task, if its program reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanState:
    """The state of a :class:`GroupPlanner` in a checkpoint."""

    mixture: MixtureState
    num_steps: int = 0
    """Steps whose groups are planned."""
    plans: Mapping[int, GroupPlan] = field(default_factory=dict)
    """Plans of groups that have not been trained, by ordinal."""
    history: tuple[Mapping[int, Sequence[tuple[int, ...]]], ...] = ()
    """Results of each environment's tasks."""
    successes: tuple[Mapping[int, Sequence[tuple[int, int, int]]], ...] = ()
    """Successes of each environment that can be replayed."""
    groups: tuple[Sequence[tuple[int, int]], ...] = ()
    """Steps and ordinals of each environment's groups that can be replayed, the oldest first."""


class EnvPlanner:
    """A planner of the groups of one environment, which applies its strategies.

    Args:
        group_size: episodes of a group, unless the budget changes it.
        seed: random numbers of a step derive from (seed, step).
        probed: a visit of each task from before the run, none if there were no such visits.
        pool: successes from before the run by task, which can be replayed.
        criteria: lines of the checklist that guidance shows.
        at: returns the strategies and the group size of a step, which differ in scheduled numbers alone; by default
            they are the same at every step.
    """

    def __init__(
        self,
        config: StrategyConfig,
        tasks: Sequence[Task],
        group_size: int,
        seed: int,
        probed: Sequence[Visit] = (),
        *,
        pool: Mapping[int, Sequence[RecordRef]] | None = None,
        criteria: Sequence[str] = (),
        at: Callable[[int], tuple[StrategyConfig, int]] | None = None,
    ) -> None:
        self._config, self._seed, self._criteria = config, seed, criteria
        self._at = at or (lambda step: (config, group_size))
        self._baseline = (-1, 0.0)
        """A step, and the median success of groups before it."""
        self._tasks, self._schedule = tasks, TaskSchedule(tasks, seed)
        self.history = TaskHistory({at: (visit,) for at, visit in enumerate(probed)})
        self.successes = SuccessStore()
        for task, places in (pool or {}).items():
            self.successes.add(task, places, config.replay.keep)
        self.groups: list[tuple[int, int]] = []
        """Steps and ordinals of groups that can be replayed, the oldest first."""

    def task(self, index: int) -> Task:
        """Return a task by its index."""
        return self._tasks[index]

    def plan(self, env: int, positions: Sequence[int], step: int) -> list[GroupPlan]:
        """Plan the groups at ``positions`` of the environment's order, all of which belong to one step."""
        if not positions:
            return []
        config, group_size = self._at(step)
        tasks: list[int] = config.call(
            "tasks",
            num_tasks=len(self._tasks),
            positions=positions,
            order=self._schedule.index,
            history=self.history,
            step=step,
            rng=np.random.default_rng([self._seed, step]),
        )
        return [
            GroupPlan(
                env,
                task,
                size,
                self._max_turns(config, task, step),
                *self._help(config, task, size, step),
                visits=self.history.visits(task) if config.reads_facts else (),
            )
            for task, size in zip(map(int, tasks), self._sizes(config, tasks, group_size), strict=True)
        ]

    def program(self, plan: GroupPlan, ordinal: int, step: int) -> Planned:
        """Return the program that plays a planned group."""
        config, _ = self._at(step)
        facts = Facts(step=step, visits=plan.visits)
        if config.runs_program:
            rule = config.rule("program")
            program = Planned(play=played_by(rule, config.program), name=f"program {rule.name!r}", uses=config.uses)
        elif branch := self.branch(ordinal, step):
            program = Planned(play=InWaves(branch))
        elif prune := self.prune(plan.task, step, facts):
            program = Planned(play=prune, uses=UNBRANCHED)
        else:
            program = Planned(play=AtOnce(self._helped(plan, ordinal, step)), uses=UNBRANCHED)
        if extend := self.extend(step):
            program = replace(program, play=Extended(program.play, extend))
        return replace(program, facts=facts, rng_seed=self._seed)

    def _helped(self, plan: GroupPlan, ordinal: int, step: int) -> list[Start]:
        """Return the starts of the last episodes of a group, with hints or demonstrations."""
        texts = self.checklists(ordinal, plan.num_episodes, step) or [""] * plan.num_hinted
        hinted = [Start(num_hints=plan.num_hints, hint=text) for text in texts]
        return hinted + [Start(demonstrates=True)] * plan.num_demonstrated

    def branch(self, ordinal: int, step: int = 0) -> ChooseStarts | None:
        """Return the function that chooses the starts of a group's episodes, or None if all begin at the start."""
        if not self._config.branches:
            return None
        config, group_size = self._at(step)
        return starts_by(
            config.rule("branching"),
            config.branching,
            group_size,
            lambda num: np.random.default_rng([self._seed, ordinal, num]),
        )

    def prune(self, task: int, step: int = 0, facts: Facts | None = None) -> Prune | None:
        """Return the pruning of a group of a task, or None if all episodes are played to their end."""
        if not self._config.prunes:
            return None
        config, _ = self._at(step)
        rate = self.history.rate(task) if facts is None else facts.rate
        return pruned_by(config.rule("pruning"), config.pruning, rate)

    def swap(self, group: TrajectoryGroup, task: int, step: int) -> Swap | None:
        """Return the earlier episode that replaces a member of a group, or None."""
        if not self._config.replays or self._config.replays_groups:
            return None
        config, _ = self._at(step)
        rng = np.random.default_rng([self._seed, step, group.ordinal])
        ages = [step - place.step for place in self.successes.places(task)]
        if config.rule("replay").reads("baseline") and self._baseline[0] != step:
            self._baseline = (step, self.history.median_rate(step - config.replay.window))

        def choose(successes: Sequence[bool | None], num_stored: int) -> tuple[int, int] | None:
            chosen: tuple[int, int] | None = config.call(
                "replay",
                successes=successes,
                num_stored=num_stored,
                ages=ages,
                baseline=self._baseline[1],
                step=step,
                rng=rng,
            )
            return chosen

        return choose_swap(group, self.successes, task, choose)

    def store(self, group: TrajectoryGroup, task: int, step: int) -> None:
        """Store a finished group, or its successes, if these are replayed."""
        if self._config.replays_groups:
            window = self._at(step)[0].replay.window
            self.groups = [at for at in self.groups if at[0] > step - window] + [(step, group.ordinal)]
        elif self._config.replays:
            won = [RecordRef(step, group.ordinal, at) for at, member in enumerate(group.trajectories) if member.success]
            self.successes.add(task, won, self._at(step)[0].replay.keep)

    def again(self, num_fresh: int, step: int) -> list[RecordRef]:
        """Return the earlier groups that are trained beside the fresh ones of a step."""
        if not self._config.replays_groups or not num_fresh:
            return []
        config, _ = self._at(step)
        ages = [step - at for at, _ in self.groups]
        rng = np.random.default_rng([self._seed, step, num_fresh])
        chosen: list[int] = config.call("replay", group_ages=ages, num_fresh=num_fresh, step=step, rng=rng)
        return [RecordRef(*self.groups[at], 0) for at in chosen]

    def note(self, group: TrajectoryGroup, task: int, step: int) -> float | None:
        """Add a group that was played to the history, and return its success rate; None if it has no evidence."""
        unaided = [member for member in group.valid if member.is_unaided]
        if not unaided:
            return None
        num_successes = sum(bool(member.success) for member in unaided)
        num_cut = longest = 0
        if self._config.extends_turns:
            num_cut = sum(map(was_cut_short, unaided))
            longest = max((len(member.turns) for member in unaided if member.success), default=0)
        self.history.add(task, Visit(step, len(unaided), num_successes, num_cut, longest))
        return num_successes / len(unaided)

    def _max_turns(self, config: StrategyConfig, task: int, step: int) -> int | None:
        most: int | None = config.call("horizon", step=step, visits=self.history.visits(task))
        return most

    def checklists(self, ordinal: int, num_episodes: int, step: int) -> list[str]:
        """Return the checklists of a group, one for each episode that sees one."""
        options, rng = self._at(step)[0].guidance, np.random.default_rng([self._seed, ordinal])
        if not isinstance(options, RubricOptions):
            return []
        return checklists(self._criteria, num_episodes, step, options, rng)

    def _help(self, config: StrategyConfig, task: int, size: int, step: int) -> tuple[int, int, int]:
        """Return the numbers of episodes with hints, of their turns with a hint, and of demonstrations."""
        rate = self.history.rate(task)
        num_helped, num_hints = config.call("guidance", rate=rate, group_size=size, step=step, criteria=self._criteria)
        return (0, 0, int(num_helped)) if config.demonstrates else (int(num_helped), int(num_hints), 0)

    def _sizes(self, config: StrategyConfig, tasks: Sequence[int], group_size: int) -> list[int]:
        if config.extends_groups:
            return [group_size] * len(tasks)
        rates = [self.history.rate(task) for task in tasks]
        sizes: list[int] = config.call("budget", rates=rates, group_size=group_size)
        return sizes

    def extend(self, step: int) -> Callable[[float], int] | None:
        """Return the function from a finished group's success rate to its number of additional episodes, or None."""
        return partial(self._added, *self._at(step)) if self._config.extends_groups else None

    def _added(self, config: StrategyConfig, group_size: int, rate: float) -> int:
        return int(config.call("budget", rate=rate, group_size=group_size))


class GroupPlanner:
    """A planner of the groups of a run, which plans one step at a time.

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
        self._limits: list[int] = []
        for env, history in zip(envs, state.history if state else (), strict=False):
            env.history = TaskHistory.from_dict(history)
        for env, successes in zip(envs, state.successes if state else (), strict=False):
            env.successes = SuccessStore.from_dict(successes)
        for env, groups in zip(envs, state.groups if state else (), strict=False):
            env.groups = [(int(step), int(ordinal)) for step, ordinal in groups]

    @property
    def state(self) -> PlanState:
        """The state to save in a checkpoint."""
        return PlanState(
            mixture=self._mixture.state,
            num_steps=self._num_steps,
            plans=dict(self._plans),
            history=tuple(env.history.to_dict() for env in self._envs),
            successes=tuple(env.successes.to_dict() for env in self._envs),
            groups=tuple(tuple(env.groups) for env in self._envs),
        )

    def plan(self, ordinal: int) -> GroupPlan:
        """Return the plan of a group."""
        while self._num_steps * self._groups_per_step <= ordinal:
            self._plan_step()
        return self._plans[ordinal]

    def observe(self, step: int, groups: Sequence[TrajectoryGroup]) -> Replayed:
        """Record the results of a step's groups and drop their plans.

        Returns:
            the earlier episodes that are replayed in this step.
        """
        # a rank that does not play has planned nothing
        known = [(group, self._plans.pop(group.ordinal)) for group in groups if group.ordinal in self._plans]
        # before anything of this step is stored: its records, which swaps read, are not written yet
        swaps = [self._envs[plan.env].swap(group, plan.task, step) for group, plan in known]
        num_fresh = Counter(plan.env for _, plan in known)
        again = [place for at, env in enumerate(self._envs) for place in env.again(num_fresh[at], step)]
        rates: list[tuple[int, float]] = []
        for group, plan in known:
            self._envs[plan.env].store(group, plan.task, step)
            rate = self._envs[plan.env].note(group, plan.task, step)
            rates += [] if rate is None else [(plan.env, rate)]
        self._limits = [plan.max_turns for _, plan in known if plan.max_turns is not None]
        self._mixture.observe(rates)
        return Replayed(tuple(swap for swap in swaps if swap is not None), tuple(again))

    def metrics(self) -> dict[str, float]:
        """Return the number of different tasks so far."""
        limit = {"turn_limit": fmean(self._limits)} if self._limits else {}
        return {"num_tasks_played": float(sum(len(env.history) for env in self._envs)), **limit}

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


# ------------------------------------- the task order of a run, which depends on the seed and the ordinal only


class TaskSchedule:
    """The task order of a run: every task once per epoch, in an order that depends on seed and epoch.

    Example:
        >>> from agentgym.env.tasks import SeededTasks
        >>> schedule = TaskSchedule(SeededTasks("train", 4), seed=0)
        >>> sorted(task.id for _, task in schedule.take(0, 4))
        ['train-0', 'train-1', 'train-2', 'train-3']
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        if not tasks:
            raise UsageError("there are no tasks in this split")
        self._tasks, self._seed = tasks, seed

    def take(self, first_ordinal: int, count: int) -> list[tuple[int, Task]]:
        """Return ``count`` tasks from ``first_ordinal`` on, each with its ordinal."""
        return [(ordinal, self.task(ordinal)) for ordinal in range(first_ordinal, first_ordinal + count)]

    def task(self, ordinal: int) -> Task:
        """Return the task of an ordinal."""
        return self._tasks[self.index(ordinal)]

    def index(self, ordinal: int) -> int:
        """Return the index of an ordinal's task."""
        epoch, position = divmod(ordinal, len(self._tasks))
        return int(_order(self._seed, epoch, len(self._tasks))[position])


@lru_cache(maxsize=4)  # of generated tasks there are a million, and several schedules of a run have the same order
def _order(seed: int, epoch: int, num_tasks: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(num_tasks)
