"""Batches of credited trajectories for an external trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentgym.credit.compose import credit_groups
from agentgym.credit.state import CreditState
from agentgym.engine import Engine, SamplingParams
from agentgym.env.env import Env
from agentgym.errors import UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import Agent, ModelAgent
from agentgym.rollout.group import run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import record_path, write_records
from agentgym.rollout.seeds import derive_seed
from agentgym.trainers.data.samples import FilteredGroup, filter_groups
from agentgym.trainers.trl.environments import TASK_COLUMNS
from agentgym.trainers.trl.episode import EventLoopThread
from agentgym.trainers.trl.settings import CreditSettings
from agentgym.trainers.types import StateDict
from agentgym.types import Task, TrajectoryGroup


class CreditedRollouts:
    """Rollouts with credit: groups for the tasks of a dataset's rows, and the credit of each turn.

    Sampling depends on the seed and on the number of groups played so far.
    """

    def __init__(
        self,
        pool: EnvPool,
        engine: Engine,
        renderer: ChatRenderer,
        settings: CreditSettings,
        sampling: SamplingParams,
        *,
        seed: int,
    ) -> None:
        self._pool, self._engine, self._renderer = pool, engine, renderer
        self._settings, self._sampling, self._seed = settings, sampling, seed
        self._loop = EventLoopThread("rollouts")
        self._tasks: dict[str, Sequence[Task]] = {}
        self._num_groups = self._num_batches = 0
        self._credit_state = CreditState()

    def play(
        self, rows: Sequence[Mapping[str, object]], group_size: int, *, version: int, is_training: bool
    ) -> list[FilteredGroup]:
        """Play and credit one group for every ``group_size`` rows, with the model's current weights as ``version``.

        Raises:
            UsageError: a row has no task, or the rows of a group have several.
            RunStoppedError: too many episodes failed.
        """
        tasks = self._loop.run(self._tasks_of(rows, group_size))
        first = self._num_groups if is_training else 0
        seed = self._seed if is_training else derive_seed(self._seed, "evaluation")
        groups = self._loop.run(self._play(list(enumerate(tasks, first)), group_size, version, seed))
        result = credit_groups(groups, self._settings.credit, state=self._credit_state)
        min_valid = self._min_valid(group_size)
        verdicts = filter_groups(groups, result, min_valid, self._settings.zero_variance_filter)
        if is_training:
            self._credit_state = result.state
            self._num_groups += len(groups)
            self._keep(verdicts)
        return verdicts

    def to_dict(self) -> StateDict:
        """Return the state for a checkpoint, as plain numbers."""
        return {
            "num_groups": self._num_groups,
            "num_batches": self._num_batches,
            "credit": self._credit_state.to_dict(),
        }

    def load_dict(self, state: StateDict) -> None:
        """Restore the state that :meth:`to_dict` returned."""
        self._num_groups, self._num_batches = int(state["num_groups"]), int(state["num_batches"])
        self._credit_state = CreditState.from_dict(state["credit"])

    def close(self) -> None:
        """Close the engine and the environments; a second call does nothing."""
        if not self._loop.is_stopped:
            self._loop.run(self._close())
            self._loop.stop()

    def _min_valid(self, group_size: int) -> int:
        return min(self._settings.group.min_valid, group_size)

    def _make_actor(self, env: Env, seed: int) -> Agent:
        context = self._settings.context
        renderer = self._renderer.for_words(env.takes_words)
        return ModelAgent(self._engine, renderer, self._sampling, seed, context, env.max_turns)

    async def _play(
        self, tasks: Sequence[tuple[int, Task]], group_size: int, version: int, seed: int
    ) -> tuple[TrajectoryGroup, ...]:
        await self._engine.update_weights(version)
        group = replace(self._settings.group, group_size=group_size, min_valid=self._min_valid(group_size))
        groups = await run_groups(tasks, self._pool, self._make_actor, group, seed=seed)
        if any(trajectory.player for played in groups for trajectory in played.trajectories):
            raise UsageError(
                "TRL's batches have one row for each member of a group, and this game has an episode for each player: "
                "give it an opponent (its argument opponent), or train it with agentgym train"
            )
        return groups

    async def _tasks_of(self, rows: Sequence[Mapping[str, object]], group_size: int) -> list[Task]:
        return [await self._task(rows[at : at + group_size]) for at in range(0, len(rows), group_size)]

    async def _task(self, rows: Sequence[Mapping[str, Any]]) -> Task:
        row = rows[0]
        if any(name not in row for name in TASK_COLUMNS):
            raise UsageError(
                f"the dataset has the columns {', '.join(row)}, not {', '.join(TASK_COLUMNS)}; "
                "make it with agentgym.trainers.trl.environments.task_dataset"
            )
        assert all(other["task_id"] == row["task_id"] for other in rows), "TRL repeats a row for each member of a group"
        split, index = str(row["task_split"]), int(row["task_index"])
        if split not in self._tasks:
            async with self._pool.lend() as loan:
                self._tasks[split] = loan.env.tasks(split)
        tasks = self._tasks[split]
        task = tasks[index] if index < len(tasks) else None
        if task is None or task.id != row["task_id"]:
            found = f"nothing among {len(tasks)} tasks" if task is None else task.id
            raise UsageError(
                f"row {index} of split {split!r} says task {row['task_id']!r}, and the environment has {found}; make "
                "the dataset with the arguments that the environments are made with"
            )
        return task

    def _keep(self, verdicts: Sequence[FilteredGroup]) -> None:
        if self._settings.record_dir is not None:
            records = (verdict.to_record() for verdict in verdicts)
            write_records(record_path(self._settings.record_dir, self._num_batches), records)
        self._num_batches += 1

    async def _close(self) -> None:
        await self._engine.close()
        await self._pool.close()
