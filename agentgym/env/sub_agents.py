"""Environments whose tools call sub-agents: the same policy acts in another environment with its own context."""

from __future__ import annotations

from typing import ClassVar, Protocol

from agentgym.env.actions import gold_action
from agentgym.env.env import Env
from agentgym.errors import UsageError, require_known
from agentgym.types import Task


class Delegate(Protocol):
    """A function that runs a sub-agent's episode. A rollout passes it to an environment with sub-agents."""

    async def __call__(self, agent: str, env: Env, task: Task) -> None: ...


class AsksAgents(Env):
    """Mixin for environments that call sub-agents, whose names are in ``agents``.

    A tool makes the sub-agent's environment, calls :meth:`ask`, and reads the result from that environment. In a
    rollout, the policy that acts in this environment also acts in the sub-agent's. Without a policy (``agentgym play``
    and ``agentgym check``), the sub-agent is the oracle of its environment.

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
        """Set the function that runs sub-agents' episodes; None for the oracles of their environments."""
        self._delegate = delegate

    async def ask(self, agent: str, env: Env, task: Task) -> None:
        """Let a sub-agent run an episode of ``env`` and close ``env``. Its attributes can still be read.

        Raises:
            UnknownNameError: ``agents`` does not name it.
            UsageError: ``env`` has no turn limit, or calls sub-agents itself.
            InfrastructureError: the sub-agent's episode failed, so this one fails, too.
        """
        require_known("sub-agent", agent, self.agents)
        if env.max_turns is None:
            raise UsageError(f"the sub-agent {agent} has no turn limit: give its environment max_turns")
        if isinstance(env, AsksAgents):
            raise UsageError(f"the sub-agent {agent} calls sub-agents itself; only one level is supported")
        try:
            await (self._delegate or _play_oracle)(agent, env, task)
        finally:
            await env.aclose()


async def _play_oracle(agent: str, env: Env, task: Task) -> None:
    await env.areset(options={"task": task})
    is_over = False
    while not is_over:
        _, _, terminated, truncated, _ = await env.astep(gold_action(env))
        is_over = terminated or truncated
