"""Games of a user: how moves are read, and positions that no game can begin with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import pytest

from agentgym import GameEnv, Task
from agentgym.errors import EnvError


@dataclass(frozen=True)
class Race:
    """A race of two players over squares."""

    left: int
    player: int = 0
    moves: tuple[str, ...] = ("Nf3", "b4", "B4", "[2, 1]")
    passes_on: bool = True

    def actions(self) -> tuple[str, ...]:
        return self.moves if self.left else ()

    def after(self, action: str) -> Self:
        left = self.left - 1 if self.passes_on else self.left
        return replace(self, left=left, player=1 - self.player if self.passes_on else self.player)

    def returns(self) -> tuple[float, ...]:
        return (1.0, -1.0)

    def view(self, player: int) -> str:
        return f"{self.left} squares are left."


def race(position: Race) -> Callable[..., GameEnv]:
    class RaceEnv(GameEnv):
        """Reach the end."""

        def deal(self, task: Task) -> Race:
            return position

    return RaceEnv


def test_moves_are_read_in_any_case_and_with_brackets() -> None:
    env = race(Race(3))(opponent="self")
    env.reset(seed=0)
    said = ("Nf3", "I play\n[nf3]", "NF3", "[2, 1]", "2, 1", "b4", "B4", "[b4]", "Nf", "")
    assert [env.move_in(text) for text in said] == [
        *("Nf3", "Nf3", "Nf3", "[2, 1]", "[2, 1]", "b4", "B4"),
        *(None, None, None),  # two moves differ from [b4] by no more than case and brackets
    ]
    assert env.step("Nf3")[4].get("is_valid", True)


def test_a_game_that_ends_before_the_agent_moves_gives_no_result() -> None:
    env = race(Race(1))(opponent="random", seat=1)
    with pytest.raises(EnvError, match="is over before the agent's first move"):
        env.reset(seed=0)
    assert race(Race(1))(opponent="random", seat=0).reset(seed=0)[0]
    with pytest.raises(EnvError, match="is over before the agent's first move"):
        race(Race(0))(opponent="self").reset(seed=0)


def test_positions_of_unknown_players_and_endless_games_are_named() -> None:
    with pytest.raises(EnvError, match="player 2 is to move, expected 0 to 1"):
        race(Race(3, player=2))(opponent="self").reset(seed=0)
    with pytest.raises(EnvError, match="the opponent has moved 10,000 times in a row"):
        race(Race(3, passes_on=False))(opponent="random", seat=1).reset(seed=0)


@pytest.mark.parametrize("found", [(1.0,), (1.0, -1.0, 0.0), 1.0, ("won", "lost")])
def test_returns_are_one_number_for_each_player(found: object) -> None:
    class Odd(Race):
        def returns(self) -> tuple[float, ...]:
            return found  # type: ignore[return-value]

    env = race(Odd(1))(opponent="self")
    env.reset(seed=0)
    with pytest.raises(EnvError, match="expected 2 numbers, one for each player"):
        env.step("Nf3")


@pytest.mark.parametrize("moves", [(1, 2), "Nf3", 3])
def test_moves_are_texts(moves: object) -> None:
    with pytest.raises(EnvError, match="expected moves as texts"):
        race(Race(3, moves=moves))(opponent="self").reset(seed=0)  # type: ignore[arg-type]
