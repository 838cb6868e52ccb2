"""Games: environments in which several players move in turn, each with a conversation of its own.

Authors write positions (:class:`GameState`) that never change, and a :class:`GameEnv` that deals the first one. Such an
environment is played in three ways:

* against a built-in opponent (``opponent="random"`` or a name the game has): one player, like any other environment;
* by self-play (``opponent="self"``): ``step`` takes the moves of all players in turn, and rollouts give every player a
  conversation and a trajectory of its own (:mod:`agentgym.rollout.match`);
* by hand: in self-play mode a person, or two, move for all players.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from agentgym.canonical import canonical
from agentgym.env.env import Env
from agentgym.errors import ResetNeededError, UsageError, require_known
from agentgym.settings import Range, check_number
from agentgym.types import Message, Observation, RewardPart, Task

SELF, RANDOM = "self", "random"


class GameState(Protocol):
    """A position of a game. It never changes: a move makes another one."""

    @property
    def player(self) -> int:
        """Return the player who moves, counted from 0; of no meaning once the game is over."""
        ...

    def actions(self) -> tuple[str, ...]:
        """The legal moves, in lower case; empty exactly when the game is over."""
        ...

    def after(self, action: str) -> Self:
        """The position that a legal move leads to."""
        ...

    def returns(self) -> tuple[float, ...]:
        """Return each player's reward, once the game is over."""
        ...

    def view(self, player: int) -> str:
        """All that a player knows of the position (its information state), and at the end the result."""
        ...


Opponent = Callable[[Any, np.random.Generator], str]
"""Chooses a legal move in a :class:`GameState`."""


def random_opponent(state: GameState, rng: np.random.Generator) -> str:
    """Any legal move, each as likely as the others."""
    actions = state.actions()
    return actions[int(rng.integers(len(actions)))]


class GameEnv(Env):
    """A game of several players; subclasses implement :meth:`deal`.

    A move is the last line of what a player says. A player that says something else is told what is possible; after
    ``max_errors`` of that in a game the next one forfeits it: the player gets ``-forfeit``, the others share as much.

    Args:
        opponent: ``self``, ``random``, or an opponent the game brings (:attr:`opponents`).
        seat: player that the agent is against an opponent, counted from 0; None draws one for each episode.
        explain: the first message to a player has the game's rules.
        max_errors: impossible moves that a player may make in a game.

    Raises:
        UsageError: there is no such opponent or seat.
    """

    players: ClassVar[tuple[str, ...]] = ("player 1", "player 2")
    rules: ClassVar[str] = ""
    """What is said first to each player."""
    forfeit_cost: ClassVar[float] = 1.0
    """The most that a player can lose."""
    opponents: ClassVar[Mapping[str, Opponent]] = {}

    def __init__(
        self,
        *,
        opponent: str = RANDOM,
        seat: int | None = None,
        explain: bool = True,
        max_errors: int = 1,
        render_mode: str | None = None,
    ) -> None:
        known = {RANDOM: random_opponent, **self.opponents}
        require_known("opponent", opponent, (SELF, *known))
        if seat is not None and not 0 <= seat < len(self.players):
            raise UsageError(f"seat is a player from 0 to {len(self.players) - 1}, or None; got {seat!r}")
        check_number("max_errors", max_errors, Range(at_least=0))
        self.__opponent = known.get(opponent)
        self.__given_seat, self.__explain, self.__max_errors = seat, explain, max_errors
        self.__state: GameState | None = None
        self.__seat: int | None = None
        self.__acted: frozenset[int] = frozenset()
        self.__errors: tuple[int, ...] = ()
        self.__loser: int | None = None
        super().__init__(render_mode=render_mode)

    # ------------------------------------------------------------------------------------ what authors implement

    def deal(self, task: Task) -> GameState:
        """The first position of a task; what is random in it is drawn from ``self.np_random``."""
        raise NotImplementedError(f"{type(self).__name__} must implement deal(task)")

    def best_action(self, state: GameState) -> str:
        """The move of a gold policy.

        Raises:
            UsageError: the game has none.
        """
        raise UsageError(f"{self.env_id} has no oracle; choose another policy (random, or a model folder)")

    # -------------------------------------------------------------------------------------- what match players ask

    @property
    def num_players(self) -> int:
        """Players whose moves come through ``step``: all of them in self-play, else one."""
        return 1 if self.__opponent else len(self.players)

    @property
    def player(self) -> int:
        """The player who moves."""
        return self.state.player

    @property
    def state(self) -> GameState:
        """The position of the current game."""
        if self.__state is None:
            raise ResetNeededError(f"{self.env_id}: no position before reset()")
        return self.__state

    def said_to(self, player: int) -> Observation:
        """Return what a player reads next: the rules if it has not acted yet, and its observation."""
        lines = [self.rules] if self.__explain and self.rules and player not in self.__acted else []
        if self.__loser is not None:
            lines.append("You forfeit the game." if player == self.__loser else "You win: the other player forfeits.")
        else:
            lines.append(self.state.view(player))
        return (Message("user", "\n".join(lines)),)

    def returns(self) -> tuple[float, ...]:
        """Return each player's reward; the sum is 0 if a game was forfeited."""
        if self.__loser is None:
            return self.state.returns()
        others = self.forfeit_cost / (len(self.players) - 1)
        return tuple(-self.forfeit_cost if p == self.__loser else others for p in range(len(self.players)))

    def parts_of(self, player: int) -> tuple[RewardPart, ...]:
        """The reward of a player for the game that is over; it goes to the player's last turn."""
        return (RewardPart("outcome", float(self.returns()[player])),)

    def success_of(self, player: int) -> bool:
        """Return True if a player has won, as :attr:`success_outcome` defines it."""
        return self.returns()[player] >= self.success_outcome - 1e-9

    def forfeit(self, player: int) -> None:
        """End the game: a player cannot go on."""
        self.__loser = player
        self.finish()

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> Observation:
        self.__state, self.__acted, self.__loser = self.deal(task), frozenset(), None
        self.__errors = (0,) * len(self.players)
        self.__seat = None
        if self.__opponent:
            drawn = int(self.np_random.integers(len(self.players)))
            self.__seat = drawn if self.__given_seat is None else self.__given_seat
            self._let_opponents_move()
        return self.said_to(self.player)

    def respond(self, action: Message) -> Observation:
        player = self.player
        self.__acted |= {player}
        move = self.move_in(action.text)
        if move is None:
            return self._refuse_move(player)
        self.__state = self.state.after(move)
        self._let_opponents_move()
        if self.state.actions():
            return self.said_to(self.player)
        self.finish(self.returns()[player])
        return self.said_to(player)

    def move_in(self, text: str) -> str | None:
        """The legal move that a text ends with, None if its last line is none; brackets around it do not matter."""
        lines = [line.strip().strip("[]").strip().lower() for line in text.split("\n") if line.strip()]
        return lines[-1] if lines and lines[-1] in self.state.actions() else None

    def _refuse_move(self, player: int) -> Observation:
        self.refuse()
        self.__errors = tuple(count + (p == player) for p, count in enumerate(self.__errors))
        if self.__errors[player] > self.__max_errors:
            self.forfeit(player)
            self.finish(self.returns()[player])
            return self.said_to(player)
        shown = ", ".join(self.state.actions()[:20])
        return (Message("user", f"That is no move you can make. Write one of these on the last line: {shown}"),)

    def _let_opponents_move(self) -> None:
        while self.__opponent and self.state.actions() and self.state.player != self.__seat:
            self.__state = self.state.after(self.__opponent(self.state, self.np_random))

    # ----------------------------------------------------------------------------------------- beside gymnasium's

    def state_key(self) -> str:
        """Return the observation of the player who moves; at the end, that of all."""
        if not self.state.actions() or self.__loser is not None:
            return canonical([self.__loser, [self.state.view(player) for player in range(len(self.players))]])
        return canonical([self.player, self.state.view(self.player)])

    def dump_state(self) -> object:
        return self.__state, self.__seat, self.__acted, self.__errors, self.__loser

    def load_state(self, state: Any) -> None:
        self.__state, self.__seat, self.__acted, self.__errors, self.__loser = state

    def oracle(self) -> Message:
        return Message("assistant", self.best_action(self.state))

    def admissible_actions(self) -> tuple[str, ...]:
        return self.state.actions()
