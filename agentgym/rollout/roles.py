"""Roles: models that play sub-agents or players of an environment in the policy's place.

A role is named in the configuration of a run (``roles.NAME``) or of an evaluation. The policy plays all other parts.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from agentgym.env.env import Env
from agentgym.env.match_env import MatchEnv
from agentgym.env.sub_agents import AsksAgents
from agentgym.rollout.agent import MakeAgent

OPPONENT: Final = "opponent"
"""Part of the role that plays, in a game, all players but one, which the seed draws."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAgents:
    """The agents of one role.

    Example:
        >>> from agentgym.evals.policies import named_policy
        >>> RoleAgents(role="solver", make_agent=named_policy("oracle")).is_trained
        False
    """

    role: str
    """Name of the role."""
    make_agent: MakeAgent
    is_trained: bool = False
    """True if training reads its turns; its segments are then part of the episode as the policy's are."""
    loses_by_forfeit: bool = False
    """True if a player that forfeits has lost, as where policies are compared; by default its game is void."""


Cast = Mapping[str, RoleAgents]
"""The roles of an episode by the part that each plays: the name of a sub-agent or a player, or :data:`OPPONENT`."""
NO_ROLES: Final[Cast] = MappingProxyType({})


def part_name(name: str) -> str:
    """Return the part that a sub-agent's or player's name stands for, in which ``_`` replaces blanks."""
    return name.replace(" ", "_")


def parts_of(env: Env) -> tuple[str, ...]:
    """Return the parts of an environment that roles can play.

    Example:
        >>> from agentgym.registry import make
        >>> parts_of(make("agentgym/TicTacToe-v0", opponent="self"))
        ('player_1', 'player_2', 'opponent')
    """
    if isinstance(env, AsksAgents):
        return tuple(map(part_name, env.agents))
    if isinstance(env, MatchEnv) and env.num_players > 1:
        return (*map(part_name, env.players), OPPONENT)
    return ()


def of_policy(names: Collection[str], cast: Collection[str], draw: int) -> list[int]:
    """Return the numbers of the players that the policy plays.

    Args:
        names: names of all players.
        cast: the parts that roles play.
        draw: number that decides which seat the policy takes against an opponent.
    """
    free = [player for player, name in enumerate(names) if part_name(name) not in cast]
    return [free[draw % len(free)]] if OPPONENT in cast and free else free
