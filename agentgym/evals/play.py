"""The episodes of a policy on the tasks of one environment, alone or as a part of a suite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.env.env import Env
from agentgym.evals.config import EvalConfig
from agentgym.evals.prices import Price
from agentgym.evals.runner import EvalSummary, evaluate
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.request import EpisodeLimits
from agentgym.rollout.roles import Cast
from agentgym.types import Task, Trajectory

_LIMITS = EpisodeLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Play:
    """The policy to evaluate, and the folder of its episodes."""

    config: EvalConfig
    """Its options; of a part of a suite those of :meth:`~agentgym.evals.suites.SuitePart.config`."""
    make_agent: MakeAgent
    out_dir: Path
    resume: bool = False
    """Keep the valid episodes in the folder."""
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None
    """Called after each new episode; it may stop the evaluation by raising :class:`RunStoppedError`."""
    on_attempt: Callable[[Trajectory], None] = lambda trajectory: None
    """Called after each attempt at an episode; it may stop the evaluation, too."""
    price: Price | None = None
    """Price of the policy's tokens."""
    roles: Cast = field(default_factory=dict)
    """Models that play sub-agents, or other players of a game."""


async def play_tasks(
    play: Play, tasks: Sequence[Task], make_env: Callable[[], Env], name: str, limits: EpisodeLimits = _LIMITS
) -> EvalSummary:
    """Evaluate a policy on tasks, and return the summary that its folder has then.

    Args:
        tasks: the tasks, each once per episode.
        make_env: makes an instance of the environment.
        name: name of the suite or environment in the summary.
        limits: limits of an episode's time.

    Raises:
        UsageError, RunStoppedError, CorruptDataError: as :func:`~agentgym.evals.runner.evaluate` does.
    """
    config = play.config
    pool = EnvPool(make_env, config.num_envs)
    try:
        return await evaluate(
            tasks,
            pool,
            play.make_agent,
            out_dir=play.out_dir,
            suite_or_env=name,
            policy=config.policy,
            seed=config.seed,
            group_config=GroupConfig(group_size=1, min_valid=1, num_envs=config.num_envs, limits=limits),
            resume=play.resume,
            on_episode=play.on_episode,
            on_attempt=play.on_attempt,
            roles=play.roles,
            scoring=config.scorers,
            price=play.price,
        )
    finally:
        await pool.close()
