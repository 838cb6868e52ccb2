"""Teams over another environment: the main agent's tools ask sub-agents, whose actions the team plays in it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from agentgym.call_syntax import format_call, parse_calls
from agentgym.canonical import canonical, digest
from agentgym.env.env import Env, Snapshot
from agentgym.env.sub_agents import AsksAgents
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.since_reset import SinceReset
from agentgym.types import Message, Task, ToolCall, ToolSpec


class RoleEnv(Env):
    """Shows an order and stores the reply in ``action``.

    Args:
        order: text that the role reads.
        offered: the tools it may call.
        gold: returns the action of a gold policy.

    Example:
        >>> env = RoleEnv("Add 2 and 3.", [], lambda: Message("assistant", "5"))
        >>> observation, info = env.reset(seed=0)
        >>> env.step(env.oracle())[2], env.action.text
        (True, '5')
    """

    max_turns = 1

    def __init__(self, order: str, offered: Sequence[ToolSpec], gold: Callable[[], Message]) -> None:
        self._order, self._offered, self._gold = order, tuple(offered), gold
        self.action = Message("assistant", "")
        super().__init__()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tools that may be called."""
        return tuple(spec.name for spec in self._offered)

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        return self._offered

    def start(self, task: Task) -> str:
        return self._order

    def respond(self, action: Message) -> str:
        self.action = action
        self.finish()
        return "Done."

    def parse_action(self, text: str) -> Message:
        return Message("assistant", text, parse_calls(text, self.tools))

    def oracle(self) -> Message:
        return self._gold()


class TeamEnv(AsksAgents, ToolEnv):
    """The base of teams that solve the tasks of another environment.

    Args:
        world: the wrapped environment.
        max_turns: turns of the main agent.
    """

    _question = SinceReset[str]()
    """The first observation of the wrapped environment."""
    memory: tuple[Any, ...] = ()
    """What has been done in the current episode, in order."""

    def __init__(self, world: Env, *, max_turns: int, render_mode: str | None = None) -> None:
        self._world = world
        super().__init__(max_turns=max_turns, render_mode=render_mode)

    @abstractmethod
    def _briefing(self) -> str:
        """Return what the main agent reads first, after the wrapped environment's first observation."""

    def start(self, task: Task) -> str:
        return self._began(self._world.reset(options={"task": task})[0])

    async def astart(self, task: Task) -> str:
        return self._began((await self._world.areset(options={"task": task}))[0])

    def _began(self, observation: Sequence[Message]) -> str:
        self.memory = ()
        self._question = "\n".join(message.text for message in observation)
        return f"{self._question}\n{self._briefing()}"

    def state_key(self) -> str:
        """Return a digest of the wrapped environment's state and of the memory, which the agents see."""
        return canonical([self._world.state_key(), digest(list(self.memory))])

    def dump_state(self) -> tuple[Snapshot, str, tuple[Any, ...]]:
        return self._world.snapshot(), self._question, self.memory

    def load_state(self, state: tuple[Snapshot, str, tuple[Any, ...]]) -> None:
        snapshot, self._question, self.memory = state
        self._world.restore(snapshot)

    def _call(self, name: str, **arguments: object) -> Message:
        """Return a message that calls a tool of the main agent."""
        call = ToolCall(name, arguments, "0")
        return Message("assistant", format_call(call, self.tools), (call,))

    async def _delegate_to(self, agent: str, role: Env) -> None:
        await self.ask(agent, role, Task(id=f"{self.task.id}/{agent}", split=self.task.split, seed=self.task.seed))

    async def _step(self, action: Message, *, is_own: bool = True) -> str:
        """Play an action in the wrapped environment, and pass on its reward and its end.

        Args:
            is_own: if the action is invalid, so is the main agent's.
        """
        observation, _, terminated, truncated, info = await self._world.astep(action)
        for part in info["reward_parts"]:
            self.award(part.value, part.name, part.role)
        if is_own and not info["is_valid"]:
            self.refuse()
        if terminated:
            self.finish()
        elif truncated:
            self.truncate()
        return "\n".join(message.text for message in observation)

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the wrapped environment's tasks."""
        return self._world.tasks(split)

    def end_episode(self) -> None:
        self._world.end_episode()

    async def aend_episode(self) -> None:
        await self._world.aend_episode()

    def stop(self) -> None:
        self._world.close()
