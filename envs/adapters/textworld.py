"""``agentgym/TextWorld-v0``: games that TextWorld generates from a seed, run by its own engine.

Source: "TextWorld: A Learning Environment for Text-based Games"; microsoft/TextWorld, MIT licence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym.env.tasks import SeededTasks
from agentgym.envs.adapters.engine_env import EngineEnv
from agentgym.errors import UsageError, require_extra, require_known
from agentgym.types import Task

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "custom": {"rooms": 2, "objects": 4, "quest_length": 3},
    "tw-simple": {"rewards": "dense", "goal": "detailed", "test": False},
    "tw-coin_collector": {"level": 1},
    "tw-treasure_hunter": {"level": 1},
    "tw-cooking": {"recipe": 1, "take": 1, "go": 1, "open": True, "cook": False, "cut": False, "drop": False,
                   "recipe_seed": 0, "split": None},
}  # fmt: skip
"""Kinds of games with TextWorld's settings and their default values here."""


class TextWorldEnv(EngineEnv):
    """A text game that TextWorld generates from the task's seed. The reward is the increase of the share of the score.

    Generating a game takes seconds, so games are cached in a folder.

    Args:
        game: ``custom`` (rooms, objects, quest_length) or a challenge: ``tw-simple``, ``tw-coin_collector``,
            ``tw-treasure_hunter`` (level), ``tw-cooking`` (recipe, take, go, open, cook, cut, drop).
        settings: settings of the kind that replace the defaults.
        max_turns, interface, step_timeout_s, load_timeout_s: see :class:`EngineEnv`.

    Raises:
        MissingExtraError: TextWorld is not installed.
        UsageError: there is no such kind of game or setting.
    """

    worker_module: ClassVar[str] = "agentgym.envs.adapters.textworld_worker"

    def __init__(
        self,
        *,
        game: str = "custom",
        settings: Mapping[str, Any] | None = None,
        max_turns: int = 50,
        **kwargs: Any,
    ) -> None:
        require_extra("agentgym/TextWorld-v0", "textworld", "textworld")
        require_known("kind of TextWorld game", game, SETTINGS)
        for name in settings or {}:
            require_known(f"setting of {game}", name, SETTINGS[game])
        self._data = {"game": game, "settings": {**SETTINGS[game], **(settings or {})}}
        super().__init__(max_turns=max_turns, **kwargs)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return games by seed. TextWorld's own splits, which only tw-cooking has, are a setting."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._data)

    def request_of(self, task: Task) -> Mapping[str, Any]:
        data = {**self._data, **task.data}
        if data["game"] not in SETTINGS:
            raise UsageError(f"task {task.id!r} names the game {data['game']!r}; there are {', '.join(SETTINGS)}")
        return {**data, "seed": task.seed}
