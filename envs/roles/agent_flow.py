"""``agentgym/AgentFlow-v0``: a planner, an executor, a verifier and a generator solve another environment's tasks.

Source: "In-the-Flow Agentic System Optimization for Effective Planning and Tool Use" (AgentFlow), section 3.1: the
planner names a sub-goal and a tool, the executor calls the tool, the verifier decides whether the memory suffices, and
the generator answers from the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from agentgym.call_syntax import format_call
from agentgym.env.sub_agents import AsksAgents
from agentgym.env.tool_env import ToolEnv
from agentgym.envs.roles.team import RoleEnv, TeamEnv
from agentgym.errors import ToolError, UsageError
from agentgym.registry import make
from agentgym.tool import tool
from agentgym.types import Message, Task, ToolCall, ToolSpec


class VerifierEnv(ToolEnv):
    """Asks whether the known facts suffice; without a call of ``verdict`` they do not.

    Args:
        order: text that the verifier reads.
        gold: returns the verdict of a gold policy.

    Example:
        >>> env = VerifierEnv("2 + 3 is 5. Is this enough?", lambda: True)
        >>> observation, info = env.reset(seed=0)
        >>> env.step(env.oracle())[2], env.is_enough
        (True, True)
    """

    max_turns = 1

    def __init__(self, order: str, gold: Callable[[], bool]) -> None:
        self._order, self._gold = order, gold
        self.is_enough = False
        super().__init__()

    def start(self, task: Task) -> str:
        return self._order

    @tool
    def verdict(self, is_enough: bool) -> str:
        """Say whether what is known is enough to answer.

        Args:
            is_enough: True if it is, False if the work has to go on.
        """
        self.is_enough = is_enough
        self.finish()
        return "Done."

    def oracle(self) -> Message:
        call = ToolCall("verdict", {"is_enough": self._gold()}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))


_ANSWER_TOOLS = ("answer", "submit")


class Note(NamedTuple):
    """One entry of the memory: the sub-goal, the action and its result."""

    sub_goal: str
    command: str
    result: str


class AgentFlowEnv(TeamEnv):
    """The main agent plans; sub-agents of the same policy execute, verify and answer, each in a context of its own.

    Each turn of the planner is one sub-goal. All roles share the reward of the wrapped environment; train with
    ``credit.estimator=m_grpo``.

    Args:
        env: the wrapped environment; it must have tools.
        env_kwargs: its arguments.
        answer_tool: the tool that only the generator may call and that ends the episode; by default the wrapped
            environment's ``answer`` or ``submit``. If it has neither, the executor does everything and there is no
            generator.
        max_turns: number of sub-goals after which the generator must answer.

    Raises:
        UsageError: the wrapped environment has no tools, has sub-agents itself, or lacks the answer tool.

    Example:
        >>> env = AgentFlowEnv(env="agentgym/PythonMath-v0", env_kwargs={"sandbox": "process"})
        >>> observation, info = env.reset(seed=0)
        >>> env.step(env.oracle())[4]["success"]
        True
        >>> [note.result for note in env.memory]
        ['241095112']
        >>> env.close()
    """

    agents = ("executor", "verifier", "generator")

    def __init__(
        self,
        *,
        env: str = "agentgym/PythonMath-v0",
        env_kwargs: Mapping[str, object] | None = None,
        answer_tool: str | None = None,
        max_turns: int = 6,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(make(env, **dict(env_kwargs or {})), max_turns=max_turns, render_mode=render_mode)
        names = [spec.name for spec in self._world.tools]
        if not names or isinstance(self._world, AsksAgents):
            raise UsageError(f"AgentFlow needs a world with tools and without sub-agents; {env} is none")
        if answer_tool and answer_tool not in names:
            raise UsageError(f"{env} has no tool {answer_tool!r} to answer with; it has {', '.join(names)}")
        self._answer_tool = answer_tool or next((name for name in _ANSWER_TOOLS if name in names), "")

    # ------------------------------------------------------------------------------------------------- an episode

    @tool
    async def plan(self, sub_goal: str, tool: str) -> str:
        """Give the executor one thing to do with one of its tools.

        Args:
            sub_goal: What is to be found out or done next.
            tool: Name of the tool to do it with.
        """
        offered = [spec for spec in self._executor_tools if spec.name == tool]
        if not offered:
            known = ", ".join(spec.name for spec in self._executor_tools)
            raise ToolError(f"the executor has no tool {tool!r}; it has {known}", "unknown_tool")
        executor = RoleEnv(self._order_with(f"Do this by calling {tool}: {sub_goal}"), offered, self._world.oracle)
        await self._delegate_to("executor", executor)
        said = await self._act(executor)
        self.memory += (Note(sub_goal, _command(executor.action, offered), said),)
        if self.episode.is_over:
            return said
        is_last = self.turn == self.max_turns
        is_enough = is_last or await self._verified()
        if not is_enough:
            return f"{said}\nThe verifier says: go on."
        return f"{said}\n{await self._answered()}"

    @tool
    async def conclude(self) -> str:
        """Have the generator answer now, from what is known."""
        return await self._answered()

    async def _verified(self) -> bool:
        verifier = VerifierEnv(self._order_with("Is this enough to answer?"), lambda: self._is_solved)
        await self._delegate_to("verifier", verifier)
        return verifier.is_enough

    async def _answered(self) -> str:
        if not self._answer_tool:
            self.finish()  # the wrapped environment's present state is the result
            return "The work is done."
        offered = [spec for spec in self._world.tools if spec.name == self._answer_tool]
        generator = RoleEnv(self._order_with("Answer now."), offered, self._world.oracle)
        await self._delegate_to("generator", generator)
        said = await self._act(generator)
        if not self.episode.is_over:
            self.finish()
        return said

    async def _act(self, role: RoleEnv) -> str:
        """Play a sub-agent's action in the wrapped environment and pass on its reward."""
        calls = role.action.calls
        is_allowed = all(call.name in role.names for call in calls if isinstance(call, ToolCall))
        if not calls or not is_allowed:
            self.refuse()
            return f"Nothing was done: call {', '.join(role.names)}."
        return await self._step(role.action)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def oracle(self) -> Message:
        if self._is_solved:
            return self._call("conclude")
        wanted = _first_call(self._world.oracle())
        sub_goal = ", ".join(str(value) for value in wanted.arguments.values()) or wanted.name
        return self._call("plan", sub_goal=sub_goal, tool=wanted.name)

    # ---------------------------------------------------------------------------------------------------- private

    @property
    def _executor_tools(self) -> list[ToolSpec]:
        return [spec for spec in self._world.tools if spec.name != self._answer_tool]

    @property
    def _is_solved(self) -> bool:
        """Return True if a gold policy would answer now."""
        return bool(self._answer_tool) and _first_call(self._world.oracle()).name == self._answer_tool

    def _briefing(self) -> str:
        tools = "\n".join(f"{spec.name}: {spec.description.partition(chr(10))[0]}" for spec in self._executor_tools)
        return f"Your executor has these tools.\n{tools}"

    def _order_with(self, order: str) -> str:
        """Return a sub-agent's prompt: the question, the memory and its order."""
        known = "\n".join(f"{note.command}\n{note.result}" for note in self.memory) or "Nothing is known yet."
        return f"{self._question}\n{known}\n{order}"


def _first_call(action: Message) -> ToolCall:
    """Return the first call of a gold action."""
    call = action.calls[0]
    assert isinstance(call, ToolCall)
    return call


def _command(action: Message, tools: Sequence[ToolSpec]) -> str:
    return "; ".join(format_call(call, tools) for call in action.calls if isinstance(call, ToolCall)) or action.text
