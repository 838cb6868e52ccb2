"""A trial of a user's auxiliary losses and columns on made-up episodes, before a run warms up and plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle

from agentgym.env.env import Env
from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import ConfigError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import DemonstrationAgent
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.program_trial import Walk
from agentgym.trainers.data.columns import Column, record_columns, step_columns
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.trial import checked_rows
from agentgym.trainers.models.tiny import train_tokenizer
from agentgym.trainers.types import Tokenizer
from agentgym.types import Segment, Task, Trajectory, TrajectoryGroup

_ROOM = 100_000
_TEXTS = ("You stand in the middle.", "move: right", "move: left", "You are at 1.")
_WALKS = (("move: right",), ("move: left",), ("Let me see.", "fly: up", "move: right"), ("move: right", "move: left"))
"""Actions of each episode, again and again: a success, a failure, invalid turns before a success, and no end."""


def try_with_episodes(
    config: LossConfig, renderer: ChatRenderer | None, tokenizer: Tokenizer | None, task: Task | None = None
) -> None:
    """Call a user's auxiliary losses and columns with episodes as steps have them, and check what they return.

    The episodes earn 0 or 1: all kinds together, failures alone, and successes alone.

    Args:
        renderer, tokenizer: the run's; None to make them, where they are not known yet.
        task: a task of the run, whose data a function may read.

    Raises:
        ConfigError: one raised an error of its own, or returned something else than it must.
    """
    own = [(part, options) for part, options in config.parts() if part.family == "auxiliary loss" and part.is_own]
    columns = config.columns()
    reads_own = any(one.is_own and one.phase != "update" for one in columns)
    if not own and not reads_own:
        return
    tokenizer = tokenizer or train_tokenizer(_TEXTS, 400)
    renderer = renderer or ChatRenderer(tokenizer)
    task = task or Task(id="trial", split="train", seed=0)
    for name, episodes in _situations(run_coroutine(_played(renderer, task))).items():
        try:
            if reads_own:
                _try_columns(columns, episodes, task)
            for part, options in own:
                returned = part.invoke({"episodes": list(episodes), "renderer": renderer}, options)
                checked_rows(part, returned, len(tokenizer))
        except ConfigError as error:
            raise ConfigError(f"{error} (tried on made-up episodes: {name})") from error


def _try_columns(columns: Sequence[Column], episodes: Sequence[Trajectory], task: Task) -> None:
    """Compute the columns of a step of two groups, the second of one episode."""
    groups = [
        TrajectoryGroup(ordinal=at, task=task, trajectories=tuple(members))
        for at, members in enumerate((episodes, episodes[:1]))
    ]
    recorded = {group.ordinal: record_columns(group, columns) for group in groups}
    step_columns(recorded, {group.ordinal: len(group.valid) for group in groups}, columns)


async def _played(renderer: ChatRenderer, task: Task) -> Sequence[Trajectory]:
    """Return an episode of each of the walks, with tokens of the renderer."""
    left = iter(_WALKS)

    def make(env: Env, seed: int) -> DemonstrationAgent:
        actions = cycle(next(left))
        return DemonstrationAgent(lambda observation: env.parse_action(next(actions)), renderer, _ROOM, 1000)

    config = GroupConfig(group_size=len(_WALKS), min_valid=1, num_envs=1, max_retries=0)
    return (await GroupPlayer(EnvPool(Walk, 1), make, config, seed=0).play(0, task)).trajectories


def _situations(played: Sequence[Trajectory]) -> Mapping[str, Sequence[Trajectory]]:
    """Return sets of episodes by name; in one episode the context was shortened after its first turn."""
    won, lost = ([one for one in played if one.success is flag] for flag in (True, False))
    first, *turns = won[0].turns
    windows = replace(won[0], segments=(Segment((first,)), Segment(tuple(turns))))
    return {"all kinds": [*played, windows], "failures alone": lost, "successes alone": won}
