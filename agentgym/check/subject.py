"""The environment under check and its tasks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

import numpy as np

from agentgym.check.episodes import MAX_TURNS, CheckEpisode, play
from agentgym.check.policies import Policy
from agentgym.env.env import Env
from agentgym.env.tasks import SPLITS
from agentgym.errors import UsageError
from agentgym.types import Task

DEFAULT_EPISODES: Final = 5
"""Episodes of each check where none are given."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The environment under check, with the number of episodes and the seed."""

    factory: Callable[[], Env]
    reference: str | None
    """Name by which another process can make the environment; None for a class or function."""
    num_episodes: int
    seed: int
    arguments: Mapping[str, object] = field(default_factory=dict)
    """Arguments with which the environment is made."""
    played: list[CheckEpisode] = field(default_factory=list, compare=False)
    """Random episodes that were played so far, one per task; checks that read or replay an episode share them."""
    played_s: list[float] = field(default_factory=list, compare=False)
    """Seconds that each of these episodes took."""

    @property
    def name(self) -> str:
        """The environment's name in the report."""
        return self.reference or str(getattr(self.factory, "__name__", type(self.factory).__name__))

    @property
    def episode_s(self) -> float:
        """Seconds of a usual random episode, without the start of what environments share; 0 if none was played."""
        return median(self.played_s) if self.played_s else 0.0

    @property
    def patience(self) -> float:
        """Factor of the time limits of whole checks: above 1 if more than the default number of episodes is played."""
        return max(1.0, self.num_episodes / DEFAULT_EPISODES)

    def rng(self, *stream: int) -> np.random.Generator:
        """Return a random generator that depends on the seed and the stream."""
        return np.random.default_rng((self.seed, *stream))

    def tasks(self, num_tasks: int | None = None) -> list[Task]:
        """Return tasks, by default one per episode, from all splits in turn; tasks repeat if there are few."""
        with contextlib.closing(self.factory()) as env:
            pools = [pool for split in SPLITS if len(pool := tasks_of(env, split))]
            if not pools:
                raise UsageError(f"{env.env_id} has no tasks in any split")
            rng = self.rng(1)
            count = self.num_episodes if num_tasks is None else num_tasks
            chosen = [pools[number % len(pools)] for number in range(count)]
            return [pool[int(rng.integers(len(pool)))] for pool in chosen]


def tasks_of(env: Env, split: str) -> Sequence[Task]:
    """Return the tasks of a split; none if the environment does not have the split."""
    try:
        return env.tasks(split)
    except UsageError:
        return ()


def played(subject: Subject, policy: Policy, tasks: Sequence[Task]) -> Generator[CheckEpisode]:
    """Play an episode of each task in one instance: many environments start slowly, and are reset fast."""
    with contextlib.closing(subject.factory()) as env:
        for number, task in enumerate(tasks):
            yield play(env, policy, task, subject.rng(10, number), max_turns=MAX_TURNS)
