"""Casts of games for tests."""

from __future__ import annotations

from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.roles import OPPONENT, Cast, RoleAgents


def against(make_agent: MakeAgent | None) -> Cast:
    """Return the cast of a game against one opponent; without agents the policy plays all players."""
    return {} if make_agent is None else {OPPONENT: RoleAgents(role=OPPONENT, make_agent=make_agent)}
