"""The process that runs TextArena's games for one environment; see :mod:`agentgym.envs.adapters.textarena`.

TextArena uses Python's global random generator and prints to standard output, so it runs in its own process.
"""

from __future__ import annotations

import importlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentgym.envs.adapters.textarena_moves import candidates, first_legal, has_forfeited, legal_moves, moves_in
from agentgym.envs.adapters.worker_main import serve

Opponent = Callable[[Any, Sequence[str]], str | None]
"""A function that chooses the other player's action from the game and the moves that it has been shown, or None."""


MOST_SHOWN = 60
"""Most texts in brackets that are kept for a player, the latest first."""


class Table:
    """A table with at most one game, and the agent's opponent."""

    def __init__(self) -> None:
        self._arena: Any = importlib.import_module("textarena")
        self._game: Any = None
        self._opponent: Opponent = lambda game, shown: None
        self._shown: dict[int, list[str]] = {}
        """Texts in brackets that each player has seen."""
        self._seed = 0
        self._seat = 0
        self._said = ""
        self._score = 0.0
        self._is_over = False

    def start(self, game: str, opponent: str | Sequence[str], seat: int, seed: int) -> dict[str, Any]:
        """Begin a game. The opponent moves first if the agent does not have the first seat."""
        try:
            self._begin(game, seed)
        except Exception as error:
            return {"refused": f"TextArena cannot play {game!r} here: {type(error).__name__}: {error}"}
        self._opponent = random_opponent(seed) if opponent == "random" else scripted_opponent(opponent)
        self._seat = seat if self._num_players > 1 else 0
        self._said, self._score, self._is_over = "", 0.0, False
        self._shown, self._seed = {}, seed
        self._let_others_play()
        return self._seen(is_valid=True)

    def step(self, command: str) -> dict[str, Any]:
        """Execute the agent's action and then the opponent's."""
        self._said = ""
        num_errors = self._game.state.error_count
        self._is_over, _ = self._game.step(command)
        is_lost = bool((self._game.state.game_info or {}).get(self._seat, {}).get("invalid_move"))
        is_valid = not is_lost and self._game.state.error_count <= num_errors
        self._let_others_play()
        if self._is_over:
            rewards, info = self._game.close()
            self._score = float((rewards or {}).get(self._seat, 0.0))
            self._said += "\n" + str(info.get(self._seat, {}).get("reason") or "The game is over.")
        return self._seen(is_valid)

    def admissible(self) -> dict[str, Any]:
        """Return the legal moves of the forms that the agent has been shown."""
        if self._is_over:
            return {"commands": []}
        return {"commands": legal_moves(self._game, self._shown.get(self._seat, []), self._seed)}

    def _begin(self, game: str, seed: int) -> None:
        made = self._arena.make(game)
        for self._num_players in (1, 2):
            try:
                made.reset(num_players=self._num_players, seed=seed % 2**31)
                break
            except Exception:
                if self._num_players == 2:
                    raise
        self._game = made

    def _let_others_play(self) -> None:
        while not self._is_over:
            player, shown = self._game.get_observation()
            text = "\n".join(_line(sender, words) for sender, words, *_ in _entries(shown))
            self._shown[player] = moves_in("\n".join([text, *self._shown.get(player, [])]))[:MOST_SHOWN]
            if player == self._seat:
                self._said += text
                return
            move = self._opponent(self._game, self._shown[player])
            if move is None:
                raise RuntimeError(
                    f"the opponent knows no legal move after: {text[-300:]!r}; give opponent=[MOVE, ...]"
                )
            self._is_over, _ = self._game.step(move)
            if has_forfeited(self._game, player):
                raise RuntimeError(f"the opponent forfeits by {move!r}, which is no success of the agent")

    def _seen(self, is_valid: bool) -> dict[str, Any]:
        state = self._game.state
        key = json.dumps([state.game_state, state.current_player_id, self._is_over], sort_keys=True, default=str)
        return {
            "said": self._said.strip() or "Go on.",
            "score": self._score,
            "is_over": self._is_over,
            "is_valid": is_valid,
            "key": key,
            "plan": None,
        }


def random_opponent(seed: int) -> Opponent:
    """Return an opponent that draws one of the legal moves of the forms that its observations show."""
    rng = random.Random(seed)
    return lambda game, shown: first_legal(game, candidates(shown, rng))


def scripted_opponent(moves: Sequence[str]) -> Opponent:
    """Return an opponent that repeats a list of moves cyclically, without those that are illegal at the time."""
    following: Iterator[str] = itertools.cycle(moves)
    return lambda game, shown: first_legal(game, itertools.islice(following, len(moves)))


def _entries(shown: Any) -> Sequence[Any]:
    return [(-1, shown)] if isinstance(shown, str) else list(shown)


def _line(sender: int, words: str) -> str:
    return words if sender == -1 else f"Player {sender}: {words}"


if __name__ == "__main__":
    serve(Table)
