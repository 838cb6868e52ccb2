"""The check of the gold policy: it succeeds on every task, and a failure says what the episode earned."""

from __future__ import annotations

import contextlib

from agentgym.check.episodes import CheckEpisode, brief, play
from agentgym.check.policies import oracle_action
from agentgym.check.report import CheckFailed
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.errors import UsageError
from agentgym.types import Message, RewardRole

ORACLE_TURNS = 1000
"""Turns after which a check stops an oracle's episode."""


def oracle(subject: Subject) -> str:
    """Check that the gold policy succeeds on every task."""
    with contextlib.closing(subject.factory()) as env:
        for number, task in enumerate(subject.tasks()):
            env.reset(options={"task": task})
            try:
                said: object = env.oracle()
            except UsageError:
                return "not applicable: no oracle"
            if not isinstance(said, Message):  # training shows it to the model as a message
                kind = type(said).__name__
                raise CheckFailed(f"oracle() returned a {kind}, expected a Message, as self.parse_action(text) makes")
            episode = play(env, oracle_action, task, subject.rng(7, number), max_turns=ORACLE_TURNS)
            if not episode.is_success:
                end = "without success" if episode.is_over else "not at all"
                told = f"task {task.id}: the oracle's episode ended {end} after {len(episode.steps)} turns"
                raise CheckFailed(f"{told}; {_why(env, episode)}")
    return f"{subject.num_episodes} of {subject.num_episodes} episodes succeed"


def _why(env: Env, episode: CheckEpisode) -> str:
    """Return what an episode without success earned, the refused actions, and the last action with its answer."""
    parts = [part for step in episode.steps for part in step.info["reward_parts"]]
    outcomes = [part.value for part in parts if part.role is RewardRole.OUTCOME]
    told = []
    if type(env).is_success is Env.is_success:
        needed = f"{env.success_outcome:g} is a success"
        told.append(
            f"its outcome is {sum(outcomes):g}, and {needed}"
            if outcomes
            else f"it earned no part of the role outcome, as self.finish(1.0) awards, and {needed}"
        )
    others = sorted({f"{part.name} ({part.role.value})" for part in parts if part.role is not RewardRole.OUTCOME})
    told += [f"other parts: {', '.join(others)}"] if others else []
    num_refused = sum(not step.info["is_valid"] for step in episode.steps)
    told += [f"{num_refused} of its actions were refused"] if num_refused else []
    last = episode.steps[-1]
    answer = " ".join(message.text for message in last.observation)
    told.append(f"last action {brief(str(last.action))}, answer {brief(answer)}")
    return "; ".join(told)
