"""``agentgym/WikiWorld-v0``: answer questions of one to four hops from a made encyclopedia."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from agentgym.envs.search.question import Question
from agentgym.envs.search.search_env import SearchEnv
from agentgym.envs.search.world import Difficulty, World, world_of, world_seed_of
from agentgym.errors import ResetNeededError, unknown_name
from agentgym.tasks import SeededTasks
from agentgym.tools.retrieval.types import Retriever
from agentgym.types import Task

_KNOBS = tuple(item.name for item in fields(Difficulty))
_FOLLOWING = ("world", "question", "answers")
"""What of a task's data follows from its seed and the rest."""


class WikiWorldEnv(SearchEnv):
    """Answer questions from an encyclopedia of made-up people, places and works, by search.

    Facts are drawn from a seed and pages written from them; a question asks for what a chain of facts leads to, and
    has one right answer. Nothing of it can be known beforehand. Tasks hold the reference answers in their data, for
    information gain.

    Args:
        num_pages, hops, aliases, stale_pages, distractors, injections, vocabulary, fillers, relations, num_worlds: see
            :class:`~agentgym.envs.search.world.Difficulty`.
        others: see :class:`~agentgym.envs.search.search_env.SearchEnv`.

    Raises:
        UsageError: a value is out of range; the message says what is allowed.

    Example:
        >>> env = WikiWorldEnv(num_pages=60)
        >>> observation, info = env.reset(options={"task": 1})
        >>> while not (step := env.step(env.oracle()))[2]:
        ...     pass
        >>> step[1]
        1.0
    """

    def __init__(self, **arguments: Any) -> None:
        knobs = {name: arguments.pop(name) for name in _KNOBS if name in arguments}
        self.difficulty = Difficulty(**knobs)
        self._world: World | None = None
        super().__init__(**arguments)

    def pose(self, task: Task) -> Question:
        difficulty = self._difficulty_of(task.data)
        self._world = world_of(difficulty, task.data.get("world", world_seed_of(difficulty, task.seed)))
        return self._world.question(task.seed)

    @property
    def world(self) -> World:
        """The world of the current episode."""
        if self._world is None:
            raise ResetNeededError(f"{self.env_id}: no world before reset()")
        return self._world

    @property
    def retriever(self) -> Retriever:
        return self.world.retriever

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 questions to train on, 1,000 to validate, 1,000 to test; no world is in two splits."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._data_of)

    def _data_of(self, seed: int) -> Mapping[str, Any]:
        world_seed = world_seed_of(self.difficulty, seed)
        question = world_of(self.difficulty, world_seed).question(seed)
        following = {"world": world_seed, "question": question.text, "answers": question.answers}
        return {**self.difficulty.as_data(), **following}

    def _difficulty_of(self, data: Mapping[str, Any]) -> Difficulty:
        for name in data:
            if name not in _KNOBS and name not in _FOLLOWING:
                raise unknown_name("WikiWorld task data", name, (*_KNOBS, *_FOLLOWING))
        return replace(self.difficulty, **{name: data[name] for name in _KNOBS if name in data})
