"""Our rollouts as TRL's ``rollout_func``: agentgym plays the episodes, TRL computes credit and loss.

An episode is a row: its first prompt, and everything after it as the completion, in which ``env_mask`` marks sampled
tokens. Sampled ids are trained on as they are. TRL gives one advantage to a whole episode, and a row must be one
context window; :class:`~agentgym.trainers.trl.trainer.CreditGRPOTrainer` has neither limit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentgym.engine import SamplingParams
from agentgym.env.env import Env
from agentgym.errors import UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.rollout.agent import ModelAgent
from agentgym.rollout.context import FULL
from agentgym.rollout.group import GroupConfig, run_groups
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.engines.torch.engine import TorchEngine
from agentgym.trainers.models.model import as_ids
from agentgym.trainers.trl.environments import env_maker, task_dataset
from agentgym.trainers.trl.episode import EventLoopThread
from agentgym.types import Segment, Task, Trajectory

if TYPE_CHECKING:
    from datasets import Dataset


def rollout_dataset(
    env_id: str | Callable[[], Env], split: str = "train", num_tasks: int = 1000, **kwargs: Any
) -> Dataset:
    """Return the first tasks of a split as TRL's dataset: each prompt names its task, which is all that TRL passes on.

    Raises:
        MissingExtraError: the library ``datasets`` is not installed.
        UsageError: there is no such environment or split.
    """
    named = task_dataset(env_id, split, num_tasks, **kwargs)
    return named.map(lambda row: {"prompt": [{"role": "user", "content": _reference(row)}]})


def episode_return(completions: Sequence[object], episode_return: Sequence[float | None], **_: object) -> list[Any]:
    """Return each episode's return, None if its infrastructure failed: the reward function for the rollouts."""
    return list(episode_return)


class EnvRollouts:
    """The ``rollout_func`` of a ``GRPOTrainer``.

    Args:
        env: a registered id, ``module:Id``, ``file.py:Id``, or a function that makes an environment.
        group: settings of groups; ``group_size`` is TRL's ``num_generations``.
        chat: settings of the chat template.
        max_context_tokens: largest length of a conversation; 0 means the model's own limit, at most 4096.
        kwargs: arguments of the environment, if ``env`` is a name.

    ``docs/outside.md`` has an example that runs.
    """

    def __init__(
        self,
        env: str | Callable[[], Env],
        *,
        group: GroupConfig = GroupConfig(),  # noqa: B008  (frozen)
        chat: ChatConfig = ChatConfig(),  # noqa: B008  (frozen)
        max_context_tokens: int = 0,
        **kwargs: Any,
    ) -> None:
        self._pool = EnvPool(env_maker(env, kwargs), group.num_envs)
        self._group, self._chat, self._max_context_tokens = group, chat, max_context_tokens
        self._loop = EventLoopThread("rollouts")
        self._engine: TorchEngine | None = None
        self._tasks: dict[str, Sequence[Task]] = {}
        self._num_groups = 0

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Play an episode for each prompt, with the trainer's current weights.

        Raises:
            UsageError: a prompt names no task, or an episode has several context windows.
            RunStoppedError: too many episodes failed.
        """
        references = [_task_of(prompt) for prompt in prompts]
        episodes = self._loop.run(self._play(references, trainer))
        filler = trainer.processing_class.eos_token_id or 0
        rows = [_row(episode, filler) for episode in episodes]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def close(self) -> None:
        """Close the engine and the environments; a second call does nothing."""
        if not self._loop.is_stopped:
            self._loop.run(self._close())
            self._loop.stop()

    async def _play(self, references: Sequence[tuple[str, int]], trainer: Any) -> list[Trajectory]:
        """Play groups of neighbouring prompts that name one task, which is how TRL repeats them."""
        size = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        tasks = [await self._task(*references[at]) for at in range(0, len(references), size)]
        if any(len(set(references[at : at + size])) > 1 for at in range(0, len(references), size)):
            raise UsageError(f"TRL's batch has no {size} neighbouring prompts of one task (num_generations)")
        engine = self._engine_of(trainer)
        await engine.update_weights(trainer.state.global_step)
        generation = trainer.accelerator.unwrap_model(trainer.model).generation_config
        renderer = ChatRenderer(trainer.processing_class, self._chat, as_ids(generation.eos_token_id))
        sampling = SamplingParams(
            max_new_tokens=trainer.args.max_completion_length, temperature=trainer.args.temperature
        )

        def make_agent(env: Env, seed: int) -> ModelAgent:
            return ModelAgent(engine, renderer.for_words(env.takes_words), sampling, seed, FULL, env.max_turns)

        group = replace(self._group, group_size=size, min_valid=min(self._group.min_valid, size))
        numbered = list(enumerate(tasks, self._num_groups))
        self._num_groups += len(tasks)
        groups = await run_groups(numbered, self._pool, make_agent, group, seed=trainer.args.seed)
        return [trajectory for played in groups for trajectory in played.trajectories]

    def _engine_of(self, trainer: Any) -> TorchEngine:
        if self._engine is None:
            model = trainer.accelerator.unwrap_model(trainer.model)
            longest = self._max_context_tokens or min(int(getattr(model.config, "max_position_embeddings", 4096)), 4096)
            self._engine = TorchEngine(model, num_slots=self._group.num_envs, max_context_tokens=longest)
        return self._engine

    async def _task(self, split: str, index: int) -> Task:
        if split not in self._tasks:
            async with self._pool.lend() as loan:
                self._tasks[split] = loan.env.tasks(split)
        if index >= len(self._tasks[split]):
            raise UsageError(f"split {split!r} has {len(self._tasks[split])} tasks, and a prompt names number {index}")
        return self._tasks[split][index]

    async def _close(self) -> None:
        if self._engine is not None:
            await self._engine.close()
        await self._pool.close()


def _reference(row: Mapping[str, Any]) -> str:
    return json.dumps({"task_split": row["task_split"], "task_index": row["task_index"]})


def _task_of(prompt: Any) -> tuple[str, int]:
    try:
        named = json.loads(prompt[-1]["content"])
        return str(named["task_split"]), int(named["task_index"])
    except (ValueError, TypeError, KeyError, IndexError):
        raise UsageError(
            "a prompt names no task; make the dataset with agentgym.trainers.trl.rollout_func.rollout_dataset"
        ) from None


def _row(episode: Trajectory, filler: int) -> dict[str, Any]:
    """Return an episode in the form of a TRL row.

    A failed episode has no return, and none of its tokens train.

    Args:
        filler: the token in the row of an episode that failed before its first turn, because TRL's rows are never
            empty.
    """
    if not episode.turns:
        empty = {"prompt_ids": [filler], "completion_ids": [filler], "logprobs": [0.0], "env_mask": [0]}
        return {**empty, "episode_return": None}
    if len(episode.segments) > 1:
        raise UsageError(
            f"an episode has {len(episode.segments)} context windows, since the chat template changes earlier "
            "messages, and TRL's row is one; CreditGRPOTrainer trains on all of them"
        )
    segment = episode.segments[0]
    num_prompt = len(segment.turns[0].prompt_ids)
    is_sampled = list(segment.loss_mask)[num_prompt:]
    return {
        "prompt_ids": list(segment.token_ids[:num_prompt]),
        "completion_ids": list(segment.token_ids[num_prompt:]),
        "logprobs": _logprobs(segment)[num_prompt:],
        "env_mask": is_sampled if episode.status.is_evidence else [0] * len(is_sampled),
        "episode_return": episode.reward,
    }


def _logprobs(segment: Segment) -> list[float]:
    values: list[float] = []
    for turn in segment.turns:
        values += [0.0] * len(turn.prompt_ids) + list(turn.completion.logprobs)
    return values
