"""Check that no trick scores: an agent that goes for the grader instead of the task gets nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np

from agentgym.check.episodes import play, replay
from agentgym.check.policies import oracle_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.errors import UsageError
from agentgym.types import Message, RewardRole, Task

_NUM_TASKS = 2  # a cheat that works does so on any task
_ORACLE_TURNS = 1000
_TOLERANCE = 1e-9


def cheats(subject: Subject) -> str:
    """No cheat that the environment knows of earns an outcome, and the gold policy still does afterwards."""
    names: set[str] = set()
    for number, task in enumerate(subject.tasks(min(_NUM_TASKS, subject.num_episodes))):
        with contextlib.closing(subject.factory()) as env:
            env.reset(options={"task": task})
            tricks = env.cheats()
            for name, actions in tricks.items():
                _must_fail(name, env, task, actions)
                names.add(name)
            if tricks:
                _must_still_win(env, task, subject.rng(12, number))
    if not names:
        return "not applicable: the environment names no cheats"
    return f"none of {len(names)} scores: {', '.join(sorted(names))}"


def _must_fail(name: str, env: Env, task: Task, actions: Sequence[Message]) -> None:
    episode = replay(env, actions, task)
    parts = [part for step in episode.steps for part in step.info["reward_parts"]]
    outcome = sum(part.value for part in parts if part.role is RewardRole.OUTCOME)
    if episode.is_success or outcome > _TOLERANCE:
        raise CheckFailed(f"task {task.id}: the cheat {name!r} earns an outcome of {outcome:g}")


def _must_still_win(env: Env, task: Task, rng: np.random.Generator) -> None:
    try:
        episode = play(env, oracle_action, task, rng, max_turns=_ORACLE_TURNS)
    except UsageError:
        return  # no oracle
    if not episode.is_success:
        raise CheckFailed(f"task {task.id}: after the cheats the oracle no longer succeeds")
