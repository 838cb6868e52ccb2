"""A check for rewards that a policy can earn again by repeating one call."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import isclose
from typing import Any

from agentgym.check.episodes import MAX_TURNS, ON_TURN, brief, replay, step_limit
from agentgym.check.outages import retried
from agentgym.check.policies import Policy, oracle_action, random_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.types import Message, RewardRole, Task

_NUM_REPEATS = 2
"""Times that a paid call is repeated. The default state key is the last observation, so only the second repetition
happens in the state that the call itself leads to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaidTwice:
    """A call that earned the same reward twice in the same state."""

    actions: tuple[Message, ...]
    """Actions of the episode up to the second time."""
    reward: float

    def __str__(self) -> str:
        action = self.actions[-1]
        call = brief(action.text or action.calls, 80)
        return f"the same call earned {self.reward:g} twice in the same state ({call})"


def repeated_rewards(subject: Subject) -> str:
    """Check that repeating one call never makes an episode succeed, and report other rewards that are paid twice."""
    found = ""
    with contextlib.closing(subject.factory()) as env:
        for number, task in enumerate(subject.tasks()):
            for policy in (random_action, oracle_action):
                paid = retried(partial(_play_repeating, subject, env, policy, task, number))
                if paid is not None:
                    _must_not_succeed(env, task, paid)
                    found = found or f"warning: {paid}: a policy will repeat it; pay once, or gate it"
    return found or "no call earned the same twice in the same state"


def _play_repeating(subject: Subject, env: Env, policy: Policy, task: Task, number: int) -> _PaidTwice | None:
    """Play an episode and repeat each paid call. Return the first that earns the same reward in the same state."""
    rng = subject.rng(11, number)
    with step_limit("reset"):
        observation, _ = env.reset(options={"task": task})
    earned: dict[tuple[str, str], float] = {}
    actions: list[Message] = []
    num_left = 0
    is_over = False
    while not is_over and len(actions) < MAX_TURNS:
        key = env.state_key()
        try:
            action = actions[-1] if num_left else policy(env, observation, rng)
        except Exception:
            if policy is oracle_action:  # there is no oracle, or it cannot continue from this state
                return None
            raise
        with step_limit(f"turn {len(actions) + 1}"):
            observation, _, terminated, truncated, info = env.step(action)
        actions.append(action)
        ON_TURN.get()(1)
        is_over = terminated or truncated
        num_left = max(0, num_left - 1)
        reward = _paid(info, RewardRole.OUTCOME, RewardRole.PROCESS)
        if reward <= 0:
            continue
        if isclose(earned.get((key, str(action)), 0.0), reward):
            return _PaidTwice(actions=tuple(actions), reward=reward)
        if (key, str(action)) not in earned and not num_left:
            num_left = _NUM_REPEATS
        earned[key, str(action)] = reward
    return None


def _must_not_succeed(env: Env, task: Task, paid: _PaidTwice) -> None:
    """Fail if repeating the call to the end makes an episode succeed that had not succeeded after the first time."""
    once = len(paid.actions) - 1
    episode = replay(env, [*paid.actions, *[paid.actions[-1]] * MAX_TURNS][:MAX_TURNS], task)
    outcome = sum(_paid(step.info, RewardRole.OUTCOME) for step in episode.steps[:once])
    if episode.is_success and outcome < env.success_outcome:
        raise CheckFailed(
            f"task {task.id}: {paid}, and repeating it succeeds after {len(episode.steps)} turns; pay an outcome once. "
            "If the states differ, state_key() must tell them apart"
        )


def _paid(info: Mapping[str, Any], *roles: RewardRole) -> float:
    return sum((float(part.value) for part in info["reward_parts"] if part.role in roles), 0.0)
