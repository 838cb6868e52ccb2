"""Groups: G episodes of one task from one start state, many groups at a time.

A member that the infrastructure spoilt is played again on a fresh environment, with the same seeds, up to a limit; what
still fails is left out by those who come after. One bad episode stops neither its siblings nor the run; a failure rate
above the limit stops the run with the reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentgym.errors import ConfigError, InfrastructureError, RunStoppedError
from agentgym.rollout.actor import MakeActor
from agentgym.rollout.loop import EpisodeLimits, run_episode
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.seeds import derive_seed
from agentgym.types import Status, Task, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """How groups are played."""

    group_size: int = 8
    min_valid: int = 2
    """Members that must be evidence about the policy; a group with fewer is dropped and counted."""
    num_envs: int = 64
    """Episodes played at the same time."""
    max_retries: int = 2
    """Times an episode is played again after the infrastructure failed."""
    max_failure_rate: float = 0.5
    """Share of episodes lost to the infrastructure, retries included, above which the run stops."""
    limits: EpisodeLimits = EpisodeLimits()

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ConfigError(f"group_size must be at least 1, got {self.group_size}")
        if not 1 <= self.min_valid <= self.group_size:
            raise ConfigError(f"min_valid must be between 1 and group_size ({self.group_size}), got {self.min_valid}")
        if self.num_envs < 1 or self.max_retries < 0:
            raise ConfigError("num_envs must be at least 1 and max_retries at least 0")
        if not 0 <= self.max_failure_rate <= 1:
            raise ConfigError(f"max_failure_rate must be between 0 and 1, got {self.max_failure_rate}")


async def run_group(
    ordinal: int,
    task: Task,
    pool: EnvPool,
    make_actor: MakeActor,
    config: GroupConfig,
    *,
    seed: int,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> TrajectoryGroup:
    """Play ``group_size`` episodes of a task, all at once as far as the pool allows.

    Args:
        ordinal: the task's in the run; sampling seeds derive from (seed, ordinal, member).
        on_episode: called after each finished episode, for progress.
    """

    async with asyncio.TaskGroup() as running:
        jobs = [
            running.create_task(_play(ordinal, task, member, pool, make_actor, config, seed, on_episode))
            for member in range(config.group_size)
        ]
    return _joined(ordinal, task, jobs)


async def run_groups(
    tasks: Sequence[tuple[int, Task]],
    pool: EnvPool,
    make_actor: MakeActor,
    config: GroupConfig,
    *,
    seed: int,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
) -> tuple[TrajectoryGroup, ...]:
    """:func:`run_group` of every (ordinal, task), all at once.

    Raises:
        RunStoppedError: more than ``max_failure_rate`` of the episodes were lost to the infrastructure.
    """
    # one task group over all members: what goes wrong in one stops the others at once
    async with asyncio.TaskGroup() as running:
        jobs = [
            [
                running.create_task(_play(ordinal, task, member, pool, make_actor, config, seed, on_episode))
                for member in range(config.group_size)
            ]
            for ordinal, task in tasks
        ]
    groups = tuple(_joined(ordinal, task, members) for (ordinal, task), members in zip(tasks, jobs, strict=True))
    check_failure_rate(groups, config)
    return groups


async def _play(
    ordinal: int,
    task: Task,
    member: int,
    pool: EnvPool,
    make_actor: MakeActor,
    config: GroupConfig,
    seed: int,
    on_episode: Callable[[Trajectory], None],
) -> Trajectory:
    trajectory = await _run_member(task, pool, make_actor, config, derive_seed(seed, ordinal, member))
    on_episode(trajectory)
    return trajectory


def _joined(ordinal: int, task: Task, members: Sequence[asyncio.Task[Trajectory]]) -> TrajectoryGroup:
    return TrajectoryGroup(ordinal=ordinal, task=task, trajectories=tuple(job.result() for job in members))


async def _run_member(task: Task, pool: EnvPool, make_actor: MakeActor, config: GroupConfig, seed: int) -> Trajectory:
    for attempt in range(config.max_retries + 1):
        try:
            async with pool.lend() as loan:
                actor = make_actor(loan.env, seed)
                trajectory = await run_episode(loan.env, task, actor, config.limits, seed=seed, num_retries=attempt)
                loan.is_spoilt = not trajectory.status.is_evidence
        except InfrastructureError as error:  # the environment could not even be made
            trajectory = Trajectory(
                task=task, env_id="", status=Status.ENV_ERROR, segments=(), seed=seed, error=str(error),
                num_retries=attempt,
            )  # fmt: skip
        if trajectory.status.is_evidence:
            break
    return trajectory


def check_failure_rate(groups: Sequence[TrajectoryGroup], config: GroupConfig) -> None:
    """Stop a run whose infrastructure fails too often.

    Raises:
        RunStoppedError: more than ``max_failure_rate`` of the episodes were lost; with the most frequent reason.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    lost = [t for t in trajectories if not t.status.is_evidence]
    if len(lost) <= config.max_failure_rate * len(trajectories):
        return
    reasons = Counter(t.error or t.status for t in lost)
    reason, count = reasons.most_common(1)[0]
    raise RunStoppedError(
        f"{len(lost)} of {len(trajectories)} episodes were lost to the infrastructure after {config.max_retries} "
        f"retries each (limit {config.max_failure_rate:.0%}); most often ({count}x): {reason}"
    )
