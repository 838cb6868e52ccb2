"""Games: environments in which several players move in turn, each with its own conversation.

Authors write immutable positions (:class:`GameState`) and a :class:`GameEnv` that deals the first one. A game can be
played in three ways:

* against a built-in opponent (``opponent="random"`` or another name of the game), as a single-player environment;
* by self-play (``opponent="self"``): ``step`` takes the moves of all players in turn, and in rollouts every player has
  its own conversation and trajectory (:mod:`agentgym.rollout.match`);
* by hand: in self-play mode, one or two persons move for all players.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from agentgym.canonical import canonical
from agentgym.env.match_env import MatchEnv
from agentgym.errors import EnvError, ResetNeededError, UsageError, require_known
from agentgym.settings import Range, check_number
from agentgym.types import Message, Observation, RewardPart, Task

SELF, RANDOM = "self", "random"
_MOST_OPPONENT_MOVES = 10_000
"""Moves in a row of built-in opponents, after which a game counts as endless."""


class GameState(Protocol):
    """A position of a game. It is immutable: a move makes a new position."""

    @property
    def player(self) -> int:
        """Return the player to move, counted from 0; without meaning after the end of the game."""
        ...

    def actions(self) -> tuple[str, ...]:
        """Return the legal moves, of which no two are equal; empty if and only if the game is over."""
        ...

    def after(self, action: str) -> Self:
        """Return the position after a legal move."""
        ...

    def returns(self) -> tuple[float, ...]:
        """Return each player's reward at the end of the game."""
        ...

    def view(self, player: int) -> str:
        """Return all that a player knows about the position (its information state), and at the end the result."""
        ...


Opponent = Callable[[Any, np.random.Generator], str]
"""A function that chooses a legal move in a :class:`GameState`."""


def random_opponent(state: GameState, rng: np.random.Generator) -> str:
    """Return a legal move, drawn uniformly."""
    actions = state.actions()
    return actions[int(rng.integers(len(actions)))]


def _are_all(found: object, kind: type) -> bool:
    return isinstance(found, list | tuple) and all(isinstance(one, kind) for one in found)


def _plain(move: str) -> str:
    return move.strip().strip("[]").strip().casefold()


class GameEnv(MatchEnv):
    """A game for several players; subclasses implement :meth:`deal`.

    A move is the last line of a player's message. After an impossible move the player reads the possible ones. A player
    that makes more than ``max_errors`` impossible moves forfeits the game: it gets ``-forfeit_cost``, and the other
    players share that amount.

    Args:
        opponent: ``self``, ``random``, or one of the game's :attr:`opponents`.
        seat: the agent's player number against an opponent, from 0; None draws one per episode.
        explain: include the game's rules in the first message to a player.
        max_errors: impossible moves that a player may make per game.

    Raises:
        UsageError: there is no such opponent or seat.
    """

    rules: ClassVar[str] = ""
    """Rules of the game, which each player reads first."""
    forfeit_cost: ClassVar[float] = 1.0
    """Largest possible loss of a player."""
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

    # ------------------------------------------------------------------------------------ methods to implement

    def deal(self, task: Task) -> GameState:
        """Return the first position of a task; draw random parts from ``self.np_random``."""
        raise NotImplementedError(f"{type(self).__name__} must implement deal(task)")

    def best_action(self, state: GameState) -> str:
        """Return the move of a gold policy.

        Raises:
            UsageError: the game has no gold policy.
        """
        raise UsageError(f"{self.env_id} has no oracle; choose another policy (random, or a model folder)")

    # -------------------------------------------------------------------------------------- interface for matches

    @property
    def num_players(self) -> int:
        """Number of players who move through ``step``: all in self-play, else one."""
        return 1 if self.__opponent else len(self.players)

    @property
    def player(self) -> int:
        """Player to move."""
        return self.state.player

    @property
    def state(self) -> GameState:
        """Current position."""
        if self.__state is None:
            raise ResetNeededError(f"{self.env_id}: no position before reset()")
        return self.__state

    def said_to(self, player: int) -> Observation:
        """Return the next messages to a player: its observation, preceded by the rules if it has not acted yet."""
        lines = [self.rules] if self.__explain and self.rules and player not in self.__acted else []
        if self.__loser is not None:
            lines.append("You forfeit the game." if player == self.__loser else "You win: the other player forfeits.")
        else:
            lines.append(self.state.view(player))
        return (Message("user", "\n".join(lines)),)

    def returns(self) -> tuple[float, ...]:
        """Return each player's reward; the rewards of a forfeited game sum to 0.

        Raises:
            EnvError: the position has not one number for each player.
        """
        if self.__loser is None:
            found: Any = self.state.returns()
            if not _are_all(found, Real) or len(found) != len(self.players):
                raise EnvError(
                    f"{self.env_id}: returns() of the position gave {str(found)[:80]}, expected {len(self.players)} "
                    "numbers, one for each player"
                )
            return tuple(found)
        others = self.forfeit_cost / (len(self.players) - 1)
        return tuple(-self.forfeit_cost if p == self.__loser else others for p in range(len(self.players)))

    def parts_of(self, player: int) -> tuple[RewardPart, ...]:
        """Return a player's reward parts for the finished game, which belong to the player's last turn."""
        return (RewardPart("outcome", float(self.returns()[player])),)

    def success_of(self, player: int) -> bool:
        """Return True if a player has won, as :attr:`success_outcome` defines it."""
        return self.returns()[player] >= self.success_outcome - 1e-9

    @property
    def is_forfeit(self) -> bool:
        return self.__loser is not None

    def forfeit(self, player: int) -> None:
        """End the game because a player cannot continue."""
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
        self.__state = self._until_asked(self.state)
        if not self.state.actions():
            raise EnvError(
                f"{self.env_id}: the game of task {task.id} is over before the agent's first move, so its result says "
                "nothing of the agent; deal a position that leaves it one"
            )
        return self.said_to(self.player)

    def respond(self, action: Message) -> Observation:
        player = self.player
        self.__acted |= {player}
        move = self.move_in(action.text)
        if move is None:
            return self._refuse_move(player)
        self.__state = self._until_asked(self.state.after(move))
        if self.state.actions():
            return self.said_to(self.player)
        self.finish(self.returns()[player])
        return self.said_to(player)

    def move_in(self, text: str) -> str | None:
        """Return the legal move in the last line of a text, with or without brackets and in any case, or None."""
        said = next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")
        actions = self.state.actions()
        if said in actions:
            return said
        alike = {action for action in actions if _plain(action) == _plain(said)}
        return alike.pop() if len(alike) == 1 else None

    def _refuse_move(self, player: int) -> Observation:
        self.refuse()
        self.__errors = tuple(count + (p == player) for p, count in enumerate(self.__errors))
        if self.__errors[player] > self.__max_errors:
            self.forfeit(player)
            self.finish(self.returns()[player])
            return self.said_to(player)
        shown = ", ".join(self.state.actions()[:20])
        return (Message("user", f"That is no move you can make. Write one of these on the last line: {shown}"),)

    def _until_asked(self, state: GameState) -> GameState:
        """Return the position after the moves of built-in opponents: the agent is to move, or the game is over."""
        for _ in range(_MOST_OPPONENT_MOVES):
            actions: Any = state.actions()
            if not _are_all(actions, str):
                raise EnvError(
                    f"{self.env_id}: actions() of the position gave {str(actions)[:80]}, expected moves as texts, "
                    "such as ('1', '2')"
                )
            if not actions:
                return state
            if state.player not in range(len(self.players)):
                raise EnvError(
                    f"{self.env_id}: player {state.player} is to move, expected 0 to {len(self.players) - 1}: the game "
                    f"has {len(self.players)} players"
                )
            if not self.__opponent or state.player == self.__seat:
                return state
            state = state.after(self.__opponent(state, self.np_random))
        raise EnvError(
            f"{self.env_id}: the opponent has moved {_MOST_OPPONENT_MOVES:,} times in a row; after() has to pass the "
            "turn on or to end the game"
        )

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return the observation of the player to move, or, at the end, of all players."""
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
