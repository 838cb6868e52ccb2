"""Collect rollouts from Python and return them as trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, closing

from agentgym.api.evaluation import (
    ChoosesAction,
    MakeEnv,
    PythonObjects,
    cast_of,
    env_maker,
    opened_in,
    plan_of,
    with_parts_of,
)
from agentgym.api.policies import check_policy
from agentgym.env.worker_thread import run_coroutine
from agentgym.errors import UsageError, raising_first_cause
from agentgym.evals.config import EvalConfig
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.settings import checked
from agentgym.types import Task, TrajectoryGroup


def collect_rollouts(  # noqa: PLR0913  (one per setting)
    env: str | MakeEnv,
    policy: str | ChoosesAction,
    *,
    kwargs: Mapping[str, object] | None = None,
    tasks: int | Sequence[Task] = 1,
    split: str = "train",
    group_size: int = 1,
    seed: int = 0,
    temperature: float | None = None,
    max_new_tokens: int | None = None,
    max_context_tokens: int | None = None,
    opponent: str = "",
    roles: Mapping[str, str] | None = None,
    num_envs: int = 32,
) -> tuple[TrajectoryGroup, ...]:
    """Run ``group_size`` episodes of each task and return them, one group per task. Write no files.

    If the policy is the folder of a training run, arguments left at None take the values of the run's own evaluation.

    An episode whose infrastructure failed is tried again, at most twice. If it still fails, ``group.trajectories``
    contains it with its status and error, and ``group.valid`` does not.

    Args:
        env: an id, ``file.py:Id``, an environment class, or a function that makes an environment.
        policy: as :func:`~agentgym.api.evaluation.evaluate` takes it.
        kwargs: arguments of the environment.
        tasks: number of tasks from the start of the split, or the tasks themselves.
        split: ``train``, ``valid`` or ``test``, if ``tasks`` is a number.
        group_size: episodes per task.
        seed: seed of the policy's sampling.
        temperature, max_new_tokens, max_context_tokens, opponent, roles: as in
            :func:`~agentgym.api.evaluation.evaluate`.
        num_envs: episodes played at the same time.

    Raises:
        UsageError: the environment, policy or split is unknown, or the split has fewer tasks than requested.
        RunStoppedError: more than half of the episodes failed because of the infrastructure.

    Example:
        >>> groups = collect_rollouts("agentgym/Household-v0", "oracle", tasks=2, group_size=3)
        >>> [len(group.valid) for group in groups], groups[0].trajectories[0].reward
        ([3, 3], 1.0)
    """
    asked: dict[str, object] = {"kwargs": kwargs, "temperature": temperature, "max_new_tokens": max_new_tokens}
    asked |= {"max_context_tokens": max_context_tokens, "opponent": opponent or None, "roles": roles, "seed": seed}
    given = plan_of(env, policy, {name: value for name, value in asked.items() if value is not None})
    config, objects = checked(EvalConfig, given), PythonObjects.of(env, policy)
    make_env = env_maker(config, objects)
    chosen = _chosen(make_env, tasks, split)
    with closing(make_env()) as probe:
        config = with_parts_of(probe, config)
    for named in (*([] if objects.make_agent else [config.policy]), *config.others.values()):
        check_policy(named, config)
    group = GroupConfig(group_size=group_size, min_valid=1, num_envs=num_envs)
    return raising_first_cause(lambda: run_coroutine(_collect(make_env, objects.make_agent, chosen, config, group)))


def _chosen(make_env: MakeEnv, tasks: int | Sequence[Task], split: str) -> Sequence[Task]:
    if not isinstance(tasks, int):
        if wrong := [one for one in tasks if not isinstance(one, Task)]:
            raise UsageError(f"tasks is a number of tasks or a list of Task, as env.tasks(split) has; got {wrong[0]!r}")
        return tasks
    if tasks < 1:
        raise UsageError(f"tasks must be at least 1, got {tasks}")
    env = make_env()
    try:
        found = env.tasks(split)
        if tasks > len(found):
            raise UsageError(f"{env.env_id} has {len(found)} tasks in the split {split}, fewer than tasks={tasks}")
        return found[:tasks]
    finally:
        env.close()


async def _collect(
    make_env: MakeEnv, made: MakeAgent | None, tasks: Sequence[Task], config: EvalConfig, group: GroupConfig
) -> tuple[TrajectoryGroup, ...]:
    num_slots = min(group.num_envs, len(tasks) * group.group_size)
    pool = EnvPool(make_env, num_slots)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(pool.close)
        make_agent = made or await opened_in(opened, config.policy, config, num_slots)
        cast = await cast_of(opened, config, num_slots)
        return await run_groups([*enumerate(tasks)], pool, make_agent, group, seed=config.seed, roles=cast)
