"""Policies without a model, as agents for an evaluation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agentgym.env.env import Env
from agentgym.rollout.agent import Agent, MakeAgent, ScriptedAgent
from agentgym.types import Message, Observation

Choose = Callable[[Env, Observation, np.random.Generator], Message]
"""Chooses an action from the environment, what it said last, and a generator of its own."""


def scripted(choose: Choose) -> MakeAgent:
    """Agents that act by a function; each episode's generator is seeded by the episode's seed.

    Example:
        >>> make_agent = scripted(lambda env, observation, rng: Message("assistant", "look"))
    """

    def make_agent(env: Env, seed: int) -> Agent:
        rng = np.random.default_rng(seed)
        return ScriptedAgent(lambda observation: choose(env, observation, rng))

    return make_agent


def oracle(env: Env, seed: int) -> Agent:
    """An agent that plays the environment's gold policy.

    Its first decision raises :class:`~agentgym.errors.UsageError` if the environment has none.
    """
    return ScriptedAgent(lambda observation: env.oracle())
