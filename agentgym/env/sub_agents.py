"""Environments whose tools ask sub-agents: the same policy at work on another environment, in a context of its own."""

from __future__ import annotations

from typing import ClassVar, Protocol

from agentgym.env.env import Env
from agentgym.errors import UsageError, require_known
from agentgym.types import Task


class Delegate(Protocol):
    """Plays an episode of a sub-agent; what a rollout hands to an environment that asks some."""

    async def __call__(self, agent: str, env: Env, task: Task) -> None: ...


class AsksAgents(Env):
    """Mixin of environments that ask sub-agents; their names are in ``agents``.

    A tool makes the sub-agent's environment, asks, and reads from it what came of the work. In a rollout the policy
    that plays this environment plays that one, too; where there is no policy (a person plays, ``agentgym check``), the
    sub-agent is the oracle of its environment.

    Example:
        >>> from agentgym.tool import tool
        >>> from agentgym.env.tool_env import ToolEnv
        >>> from agentgym.types import Message
        >>> class Adder(ToolEnv):
        ...     def start(self, task):
        ...         self.said = None
        ...         return f"What is {task.data['sum']}?"
        ...     @tool
        ...     def say(self, number: int) -> str:
        ...         '''Say the number.'''
        ...         self.said = number
        ...         self.finish(float(number == eval(self.task.data["sum"])))
        ...         return "So be it."
        ...     def oracle(self):
        ...         return self.parse_action(f"say: {eval(self.task.data['sum'])}")
        >>> class Planner(AsksAgents, ToolEnv):
        ...     agents = ("adder",)
        ...     def start(self, task):
        ...         return "How much is 2 + 3?"
        ...     @tool
        ...     async def ask_adder(self, sum: str) -> str:
        ...         '''Ask somebody who can add.'''
        ...         adder = Adder(max_turns=3)
        ...         await self.ask("adder", adder, Task(id=sum, split="train", seed=0, data={"sum": sum}))
        ...         return str(adder.said)
        >>> env = Planner()
        >>> observation, info = env.reset(seed=0)
        >>> env.step("ask_adder: 2 + 3")[0][0].text
        '5'
    """

    agents: ClassVar[tuple[str, ...]] = ()
    _delegate: Delegate | None = None

    def hand_delegate(self, delegate: Delegate | None) -> None:
        """Say who plays sub-agents from now on; None for the oracles of their environments."""
        self._delegate = delegate

    async def ask(self, agent: str, env: Env, task: Task) -> None:
        """Have a sub-agent play an episode of ``env``, which is closed then; what it noted can still be read.

        Raises:
            UnknownNameError: ``agents`` does not name it.
            UsageError: nobody plays it: it has no limit of turns, or asks sub-agents itself.
            InfrastructureError: its episode was lost, and so this one is.
        """
        require_known("sub-agent", agent, self.agents)
        if env.max_turns is None:
            raise UsageError(f"the sub-agent {agent} may take for ever: give its environment max_turns")
        if isinstance(env, AsksAgents):
            raise UsageError(f"the sub-agent {agent} would ask sub-agents of its own; there is one level of them")
        try:
            await (self._delegate or _play_oracle)(agent, env, task)
        finally:
            await env.aclose()


async def _play_oracle(agent: str, env: Env, task: Task) -> None:
    await env.areset(options={"task": task})
    is_over = False
    while not is_over:
        _, _, terminated, truncated, _ = await env.astep(env.oracle())
        is_over = terminated or truncated
