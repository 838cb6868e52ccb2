"""Tasks about generated worlds: the base of the environments over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from agentgym.env.tasks import SeededTasks
from agentgym.envs.search.question import Question
from agentgym.envs.search.question_env import QuestionEnv
from agentgym.envs.search.world import Difficulty, World, world_of, world_seed_of
from agentgym.envs.search.world_facts import RELATION_NAMES
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import unknown_name
from agentgym.types import Task

KNOBS = tuple(item.name for item in fields(Difficulty))
_FOLLOWING = ("world", "question", "answers")
"""Keys of a task's data that follow from its seed and the other keys."""


class WorldEnv(QuestionEnv):
    """Questions about a made encyclopedia. Tasks hold the reference answers in their data, for information gain.

    Args:
        num_pages: size of the encyclopedia, 16 to 100,000.
        hops: number of facts from the thing that the question names to the answer, 1 to 4; a number or several.
        aliases: share of things with a second name, by which questions and pages may call them.
        stale_pages: share of pages with facts of an earlier year; questions ask for current facts.
        distractors: share of pages that name things but answer no question.
        injections: share of pages that tell the reader to ignore the task.
        vocabulary: number of words that names are made of.
        fillers: sentences without facts on every page of a thing.
        relations: relations that pages state and questions ask for, of
            :data:`~agentgym.envs.search.world_facts.RELATION_NAMES`.
        num_worlds: encyclopedias of a split; 0 gives every task its own.
        others: see :class:`~agentgym.envs.search.question_env.QuestionEnv`.

    Raises:
        UsageError: a value is out of range; the message says what is allowed.
    """

    world = SinceReset[World]()
    """The world of the current episode."""

    def __init__(  # noqa: PLR0913  (knobs, all by name)
        self,
        *,
        num_pages: int = 500,
        hops: int | Sequence[int] = (1, 2),
        aliases: float = 0.2,
        stale_pages: float = 0.1,
        distractors: float = 0.1,
        injections: float = 0.0,
        vocabulary: int = 400,
        fillers: int = 2,
        relations: Sequence[str] = RELATION_NAMES,
        num_worlds: int = 1,
        **others: Any,
    ) -> None:
        self.difficulty = Difficulty(
            num_pages=num_pages,
            hops=(hops,) if isinstance(hops, int) else tuple(hops),
            aliases=aliases,
            stale_pages=stale_pages,
            distractors=distractors,
            injections=injections,
            vocabulary=vocabulary,
            fillers=fillers,
            relations=tuple(relations),
            num_worlds=num_worlds,
        )
        super().__init__(**others)

    def pose(self, task: Task) -> Question:
        difficulty = self._difficulty_of(task.data)
        self.world = world_of(difficulty, task.data.get("world", world_seed_of(difficulty, task.seed)))
        self.retriever = self.world.retriever
        return self.world.question(task.seed)

    @property
    def task_type(self) -> str:
        """Number of facts between the question's names and the answer."""
        num_hops = len(self.question.gold)
        return f"{num_hops} hop" + ("s" if num_hops > 1 else "")

    def tasks(self, split: str) -> Sequence[Task]:
        """1,000,000 questions to train on, 1,000 to validate, 1,000 to test; no world is in two splits."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._data_of)

    # --------------------------------------------------------------------------------------------------- private

    def _data_of(self, seed: int) -> Mapping[str, object]:
        world_seed = world_seed_of(self.difficulty, seed)
        question = world_of(self.difficulty, world_seed).question(seed)
        following = {"world": world_seed, "question": question.text, "answers": question.answers}
        return {**self.difficulty.as_data(), **following}

    def _difficulty_of(self, data: Mapping[str, Any]) -> Difficulty:
        for name in data:
            if name not in KNOBS and name not in _FOLLOWING:
                raise unknown_name(f"{self.env_id} task data", name, (*KNOBS, *_FOLLOWING))
        return replace(self.difficulty, **{name: data[name] for name in KNOBS if name in data})
