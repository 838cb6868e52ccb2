"""Environments that several players share, each with its own conversation.

:mod:`agentgym.rollout.match` gives every player an episode of its own. :class:`~agentgym.env.game_env.GameEnv` is the
base of games whose moves are text. An environment whose players call tools, such as a proposer and a solver, implements
:class:`MatchEnv` itself.
"""

from __future__ import annotations

from typing import ClassVar

from agentgym.env.env import Env
from agentgym.types import Observation, RewardPart, ToolSpec


class MatchEnv(Env):
    """An environment in which several players act in turn; ``step`` takes the actions of all of them."""

    players: ClassVar[tuple[str, ...]] = ("player 1", "player 2")
    """Names of the players, in the order of their numbers."""

    @property
    def num_players(self) -> int:
        """Number of players who act through ``step``; one if the environment acts for all others."""
        return len(self.players)

    @property
    def player(self) -> int:
        """Number of the player to act, from 0."""
        raise NotImplementedError(f"{type(self).__name__} must implement player")

    def said_to(self, player: int) -> Observation:
        """Return the newest messages to a player: its first observation, or the answer to its last action."""
        raise NotImplementedError(f"{type(self).__name__} must implement said_to(player)")

    def parts_of(self, player: int) -> tuple[RewardPart, ...]:
        """Return a player's reward parts for the finished episode, which belong to the player's last turn."""
        raise NotImplementedError(f"{type(self).__name__} must implement parts_of(player)")

    def success_of(self, player: int) -> bool:
        """Return True if the finished episode is a success of a player."""
        raise NotImplementedError(f"{type(self).__name__} must implement success_of(player)")

    def forfeit(self, player: int) -> None:
        """End the episode because a player cannot continue, for example because its context is full."""
        raise NotImplementedError(f"{type(self).__name__} must implement forfeit(player)")

    @property
    def loser(self) -> int | None:
        """Player that forfeited the episode; None if nobody did, or if the environment goes on without players.

        An episode that an opponent of the policy forfeits is void.
        """
        return None

    async def aforfeit(self, player: int) -> None:
        """Go on without a player that cannot continue. By default that ends the episode, by :meth:`forfeit`."""
        self.forfeit(player)

    def tools_for(self, player: int) -> tuple[ToolSpec, ...]:
        """Return the tools that a player may call; by default all."""
        return self.tools
