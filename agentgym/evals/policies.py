"""Policies without a model for evaluations: ``oracle``, ``random``, ``idle``, and users' own.

A user's policy is a function with the decorator :func:`policy`. ``--policy`` takes ``file.py:name`` or ``module:name``,
or the name alone if an installed package has the entry point ``agentgym.components``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from agentgym.env.actions import as_message
from agentgym.env.env import Env
from agentgym.errors import ConfigError, UsageError
from agentgym.evals.attempts import inner_policy
from agentgym.plugins import Component, F, Registry
from agentgym.rollout.agent import Agent, MakeAgent, ScriptedAgent
from agentgym.types import Message, Observation

Choose = Callable[[Env, Observation, np.random.Generator], Message]
"""A function that chooses an action from the environment, the last observation and a random generator."""


def scripted(choose: Choose) -> MakeAgent:
    """Return a maker of agents that act by a function. The episode's seed seeds the function's generator.

    Example:
        >>> make_agent = scripted(lambda env, observation, rng: Message("assistant", "look"))
    """

    def make_agent(env: Env, seed: int) -> Agent:
        rng = np.random.default_rng(seed)
        return ScriptedAgent(lambda observation: choose(env, observation, rng))

    return make_agent


POLICIES = Registry[Component]("policy", "agentgym.evals.policies", ("env", "observation", "rng"))


def is_scripted(policy: str) -> bool:
    """Return True for a policy without a model: a registered name, ``file.py:name`` or ``module:name``."""
    policy = inner_policy(policy)

    source, colon, name = policy.rpartition(":")
    is_dotted = all(part.isidentifier() for part in source.split("."))
    is_own = bool(colon) and name.isidentifier() and (source.endswith(".py") or is_dotted)
    return (is_own and source not in ("openai", "pypi", "vllm")) or (not colon and policy in POLICIES)


def policy(name: str) -> Callable[[F], F]:
    """Register a function that chooses the next action, as :data:`Choose` does. It may take fewer parameters.

    Example:
        >>> @policy("waiting")
        ... def waiting(env: Env) -> Message:
        ...     return env.parse_action("wait")
        >>> POLICIES["waiting"].name
        'waiting'
    """

    def register(function: F) -> F:
        POLICIES.add(Component(name=name, family="policy", function=function))
        return function

    return register


def named_policy(name: str) -> MakeAgent:
    """Return a maker of agents of a registered policy. It is picklable, also if the policy is in a user's file.

    Raises:
        UnknownNameError: there is no policy with that name.
        UsageError: there is no such module or file.
    """
    choose_by(name)  # an unknown name is told here
    return partial(_named_agent, name)


def _named_agent(name: str, env: Env, seed: int) -> Agent:
    return scripted(choose_by(name))(env, seed)


def choose_by(name: str) -> Choose:
    """Return the function by which a registered policy chooses an action.

    Raises:
        UnknownNameError: there is no policy with that name.
        UsageError: there is no such module or file.
    """
    chosen = POLICIES[name]
    return lambda env, observation, rng: _act(chosen, env, observation, rng)


def policy_of(name: str, function: Callable[..., object]) -> MakeAgent:
    """Return a maker of agents of a function that is not registered.

    Raises:
        ConfigError: it takes a parameter other than ``env``, ``observation`` and ``rng``.
    """
    component = Component(name=name, family="policy", function=function)
    if unfilled := POLICIES.unfilled(component):
        raise ConfigError(
            f"policy {name!r} takes {', '.join(unfilled)}, which nothing fills; it may take env, observation, rng"
        )
    return _agents(component)


def _agents(chosen: Component) -> MakeAgent:
    return scripted(lambda env, observation, rng: _act(chosen, env, observation, rng))


def _act(chosen: Component, env: Env, observation: Observation, rng: np.random.Generator) -> Message:
    action = chosen.call(**chosen.arguments({"env": env, "observation": observation, "rng": rng}, None))
    try:
        return as_message(action, env.parse_action)
    except UsageError as error:
        raise UsageError(f"policy {chosen.name!r} returned what is no action: {error}") from error


for _name in ("idle", "oracle", "random"):  # imported when the policy first acts
    POLICIES.add(Component(name=_name, family="policy", function=f"agentgym.check.policies:{_name}_action"))
