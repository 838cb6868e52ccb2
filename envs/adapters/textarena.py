"""``agentgym/TextArena-v0``: TextArena's games for one or two players, with the other player inside the environment.

Source: "TextArena"; LeonGuertler/TextArena, MIT licence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from agentgym.env.tasks import SeededTasks
from agentgym.envs.adapters.engine_env import EngineEnv
from agentgym.errors import UsageError, require_extra
from agentgym.types import Task


class TextArenaEnv(EngineEnv):
    """A game of TextArena. The outcome is the engine's reward of the agent's seat at the end, -1 to 1.

    For games that need word lists from the network, an account or more than two players, the engine raises its own
    error. The state key is the engine's ``game_state``, which in some games contains a history.

    Args:
        game: an id of TextArena; ids that end in ``-raw`` show only the game's own messages.
        opponent: the other player in a game for two: ``random`` for a random legal move of the forms that the rules
            show in brackets, or a list of moves that is repeated cyclically, without those that are illegal then. If
            the opponent finds no legal move, the episode fails and counts for nobody.
        seat: player number of the agent, 0 (who usually begins) or 1.
        max_turns, interface, step_timeout_s, load_timeout_s: see :class:`EngineEnv`. With ``text``, the whole message
            is the action, as in TextArena.

    Raises:
        MissingExtraError: TextArena is not installed.
    """

    worker_module: ClassVar[str] = "agentgym.envs.adapters.textarena_worker"
    takes_plain_commands: ClassVar[bool] = False

    def __init__(
        self,
        *,
        game: str = "TicTacToe-v0-raw",
        opponent: str | Sequence[str] = "random",
        seat: int = 0,
        max_turns: int = 50,
        **kwargs: Any,
    ) -> None:
        require_extra("agentgym/TextArena-v0", "textarena", "textarena")
        if seat not in (0, 1):
            raise UsageError(f"seat is 0 or 1, got {seat}")
        if not opponent or (isinstance(opponent, str) and opponent != "random"):
            raise UsageError(f"opponent is random or a list of moves, got {opponent!r}")
        self._data = {
            "game": game,
            "opponent": opponent if isinstance(opponent, str) else list(opponent),
            "seat": seat,
        }
        super().__init__(max_turns=max_turns, **kwargs)

    def read_line(self, text: str) -> str:
        return text.strip()

    def tasks(self, split: str) -> Sequence[Task]:
        """Return games by seed. Deterministic games differ only in the moves of a random opponent."""
        return SeededTasks(split, 1_000_000 if split == "train" else 1_000, self._data)

    def request_of(self, task: Task) -> Mapping[str, Any]:
        return {**self._data, **task.data, "seed": task.seed}
