"""``agentgym/TicTacToe-v0``: tic-tac-toe with numbered squares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from agentgym.env.game_env import GameEnv, GameState, Opponent, random_opponent
from agentgym.settings import Range, check_number
from agentgym.types import Task

MARKS = ("X", "O")
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))


@dataclass(frozen=True, slots=True)
class TicTacToeState:
    """The nine squares from the top left, each with a mark or a space.

    Example:
        >>> TicTacToeState("XX OO    ").after("3").returns()
        (1.0, -1.0)
    """

    board: str = " " * 9

    @property
    def player(self) -> int:
        """Player to move."""
        return int(self.board.count("X") > self.board.count("O"))

    @property
    def winner(self) -> int | None:
        """Player with three marks in a line, or None."""
        for a, b, c in LINES:
            if self.board[a] != " " and self.board[a] == self.board[b] == self.board[c]:
                return MARKS.index(self.board[a])
        return None

    def actions(self) -> tuple[str, ...]:
        """Return the numbers of the free squares; empty at the end."""
        if self.winner is not None:
            return ()
        return tuple(str(square + 1) for square, mark in enumerate(self.board) if mark == " ")

    def after(self, action: str) -> TicTacToeState:
        """Return the state after a move."""
        at = int(action) - 1
        return TicTacToeState(self.board[:at] + MARKS[self.player] + self.board[at + 1 :])

    def returns(self) -> tuple[float, float]:
        """Return 1 for the winner and -1 for the loser, or 0 for a draw."""
        first = {0: 1.0, 1: -1.0, None: 0.0}[self.winner]
        return (first, -first)

    def view(self, player: int) -> str:
        """Return the board with the numbers of free squares."""
        shown = [str(at + 1) if mark == " " else mark for at, mark in enumerate(self.board)]
        rows = "\n".join(" ".join(shown[row : row + 3]) for row in (0, 3, 6))
        if self.actions():
            return f"{rows}\nYou are {MARKS[player]}."
        result = {1.0: "You win.", -1.0: "You lose.", 0.0: "A draw."}[self.returns()[player]]
        return f"{rows}\n{result}"


@cache
def value(state: TicTacToeState) -> float:
    """Return the first player's reward if both play perfectly from a position."""
    if not state.actions():
        return state.returns()[0]
    values = [value(state.after(action)) for action in state.actions()]
    return max(values) if state.player == 0 else min(values)


def perfect_actions(state: TicTacToeState) -> tuple[str, ...]:
    """Return the moves of perfect play.

    Example:
        >>> perfect_actions(TicTacToeState("XX OO    "))
        ('3',)
    """
    return tuple(action for action in state.actions() if value(state.after(action)) == value(state))


def perfect_opponent(state: TicTacToeState, rng: np.random.Generator) -> str:
    """Return a perfect move, drawn uniformly."""
    actions = perfect_actions(state)
    return actions[int(rng.integers(len(actions)))]


class TicTacToeEnv(GameEnv):
    """Tic-tac-toe, played with the numbers of free squares. A win is 1, a draw 0, a loss -1; a draw is a success, too.

    Args:
        opponent: ``optimal``, ``random``, or ``self``.
        seat: the agent's seat, 0 (X, moves first) or 1 (O); None draws one per episode.
        num_random_moves: number of random marks at the start (0 to 4, without a line of three).
        explain: include the rules in the first message to a player.
        max_errors: impossible moves a player may make before it forfeits.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = TicTacToeEnv(opponent="self", explain=False)
        >>> print(env.reset(seed=0)[0][0].text)
        1 2 3
        4 5 6
        7 8 9
        You are X.
    """

    success_outcome: ClassVar[float] = 0.0
    rules: ClassVar[str] = "Tic-tac-toe: three in a line win. Say the number of a free square."
    opponents: ClassVar[Mapping[str, Opponent]] = {"optimal": perfect_opponent, "random": random_opponent}

    def __init__(
        self,
        *,
        opponent: str = "optimal",
        seat: int | None = None,
        num_random_moves: int = 0,
        explain: bool = True,
        max_errors: int = 1,
        render_mode: str | None = None,
    ) -> None:
        check_number("num_random_moves", num_random_moves, Range(at_least=0, at_most=4))
        self._num_random_moves = num_random_moves
        super().__init__(opponent=opponent, seat=seat, explain=explain, max_errors=max_errors, render_mode=render_mode)

    def deal(self, task: Task) -> TicTacToeState:
        """Draw a position after random moves that is a draw under perfect play."""
        while True:
            state = TicTacToeState()
            for _ in range(self._num_random_moves):
                state = state.after(random_opponent(state, self.np_random))
            if value(state) == 0:
                return state

    def best_action(self, state: GameState) -> str:
        assert isinstance(state, TicTacToeState)
        return perfect_actions(state)[0]
