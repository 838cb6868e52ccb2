"""``agentgym/ManagedTeam-v0``: a manager orders workers, who act in another environment and report.

Source: "Multi-Agent Deep Research: Training Multi-Agent Systems with M-GRPO": a main agent calls sub-agents of several
turns, and both are trained. The paper's world is the web; here the workers act in any environment with tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from agentgym.call_syntax import format_call
from agentgym.env.match_env import MatchEnv
from agentgym.env.sub_agents import AsksAgents
from agentgym.envs.roles.team import RoleEnv, TeamEnv
from agentgym.errors import UsageError
from agentgym.registry import make
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import Message, Observation, ToolCall, ToolSpec

_REPORT = ToolSpec(
    "report",
    "Tell the manager what came of the order; the work ends.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "What was done, and what was seen."}},
        "required": ["text"],
        "additionalProperties": False,
    },
)


class WorkerEnv(RoleEnv):
    """Shows a worker its order, and plays its actions in the team's world until it reports.

    Args:
        order: text that the worker reads.
        offered: the tools of the world.
        gold: returns the next action of a gold policy; None for a report at once.
        act: plays an action in the world; returns what it led to, and True if the world's episode is over.
        max_turns: number of actions, the report among them.
    """

    def __init__(
        self,
        order: str,
        offered: Sequence[ToolSpec],
        gold: Callable[[], Message] | None,
        act: Callable[[Message], Awaitable[tuple[str, bool]]],
        max_turns: int,
    ) -> None:
        self._act = act
        self.seen = self.reported = ""
        super().__init__(order, [*offered, _REPORT], gold or self.report)
        self.max_turns = max_turns

    async def arespond(self, action: Message) -> str | Observation:
        reports = [call for call in action.calls if isinstance(call, ToolCall) and call.name == _REPORT.name]
        if reports:
            self.reported = str(reports[0].arguments.get("text", ""))
            self.finish()
            return "Reported."
        said, is_over = await self._act(action)
        self.seen = said
        if is_over:
            self.finish()
        return said

    def oracle(self) -> Message:
        """Act as a gold policy does, and report in the last turn."""
        return super().oracle() if self.turn < self.max_turns - 1 else self.report()

    def report(self) -> Message:
        """Return a report of what the last action led to."""
        call = ToolCall(_REPORT.name, {"text": self.seen}, "0")
        return Message("assistant", format_call(call, self.tools), (call,))


class ManagedTeamEnv(TeamEnv):
    """Order workers who act for you. The manager sees the task and the reports, and cannot act.

    A worker reads its order, and what the last action of the one before led to, but not the task. All have the reward
    of the wrapped environment; train them with ``credit.estimator=m_grpo``, and with weights of their own by
    ``roles.worker``.

    Args:
        env: the environment in which the workers act; it must have tools.
        env_kwargs: its arguments.
        worker_turns: turns of a worker for one order, its report among them.
        max_turns: number of orders in an episode.

    Raises:
        UsageError: the environment has no tools, several players, sub-agents itself, or a tool ``report``.

    Example:
        >>> env = ManagedTeamEnv(env="agentgym/Household-v0", env_kwargs={"num_objects": 3}, worker_turns=4)
        >>> observation, info = env.reset(seed=0)
        >>> while not env.episode.is_over:
        ...     observation, reward, terminated, truncated, info = env.step(env.oracle())
        >>> reward, info["success"]
        (1.0, True)
        >>> env.close()
    """

    agents = ("worker",)

    def __init__(
        self,
        *,
        env: str = "agentgym/Household-v0",
        env_kwargs: Mapping[str, object] | None = None,
        worker_turns: int = 6,
        max_turns: int = 8,
        render_mode: str | None = None,
    ) -> None:
        check_number("worker_turns", worker_turns, Range(at_least=2))
        world = make(env, **dict(env_kwargs or {}))
        names = [spec.name for spec in world.tools]
        if not names or _REPORT.name in names or isinstance(world, AsksAgents | MatchEnv):
            raise UsageError(f"a manager needs a world of one agent with tools, none of them report; {env} is none")
        super().__init__(world, max_turns=max_turns, render_mode=render_mode)
        self._worker_turns = worker_turns

    # ------------------------------------------------------------------------------------------------- an episode

    @tool
    async def delegate(self, order: str) -> str:
        """Give a worker an order; it acts several times and reports.

        Args:
            order: What the worker should do. It does not know the task.
        """
        seen = next((seen for _, seen in reversed(self.memory) if seen), "")
        text = "\n".join(part for part in (seen, f"Order: {order}", "Do it, then report.") if part)
        # a gold worker does the task that it is given, so that only a manager who says it succeeds
        gold = self._world.oracle if self._question in order else None
        worker = WorkerEnv(text, self._world.tools, gold, self._act, self._worker_turns)
        await self._delegate_to("worker", worker)
        told = f"The worker reports: {worker.reported}" if worker.reported else "The worker gave no report."
        self.memory += ((told, worker.seen),)
        return worker.seen if self.episode.is_over else told

    async def _act(self, action: Message) -> tuple[str, bool]:
        return await self._step(action, is_own=False), self.episode.is_over

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def oracle(self) -> Message:
        return self._call("delegate", order=self._question)

    # ---------------------------------------------------------------------------------------------------- private

    def _briefing(self) -> str:
        named = ", ".join(spec.name for spec in self._world.tools)
        return f"Workers act by your orders, {self._worker_turns - 1} times each. They can: {named}."
