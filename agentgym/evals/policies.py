"""Policies without a model, as actors for an evaluation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agentgym.env.env import Env
from agentgym.rollout.actor import Actor, MakeActor, ScriptedActor
from agentgym.types import Message, Observation

Choose = Callable[[Env, Observation, np.random.Generator], Message]
"""Chooses an action from the environment, what it said last, and a generator of its own."""


def scripted(choose: Choose) -> MakeActor:
    """Actors that act by a function; each episode's generator is seeded by the episode's seed.

    Example:
        >>> make_actor = scripted(lambda env, observation, rng: Message("assistant", "look"))
    """

    def make_actor(env: Env, seed: int) -> Actor:
        rng = np.random.default_rng(seed)
        return ScriptedActor(lambda observation: choose(env, observation, rng))

    return make_actor


def oracle(env: Env, seed: int) -> Actor:
    """An actor that plays the environment's gold policy.

    Its first decision raises :class:`~agentgym.errors.UsageError` if the environment has none.
    """
    return ScriptedActor(lambda observation: env.oracle())
