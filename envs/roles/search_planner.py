"""``agentgym/SearchPlanner-v0``: a planner searches, and a solver answers from what the planner has found.

Source: "AI-SearchPlanner: Modular Agentic Search via Pareto-Optimal Multi-Objective Reinforcement Learning": a small
trained planner in front of a frozen solver, with a reward for the answer and a cost of planning. The paper's weights
are not public; here each lookup costs ``cost``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgym.call_syntax import format_call
from agentgym.envs.roles.team import RoleEnv, TeamEnv
from agentgym.errors import UsageError
from agentgym.registry import make
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import Message, RewardRole, ToolCall, ToolSpec

_LOOKUPS, _ANSWER = ("search", "open"), "answer"
UNKNOWN = "unknown"
"""Answer of the solver's oracle where the planner has not found what a gold policy needs."""


class SearchPlannerEnv(TeamEnv):
    """Search and read for a solver, which sees the question and what was found, and answers it.

    The planner has the reward of the solver's answer, minus ``cost`` for each lookup. Give the solver a model of its
    own with ``roles.solver.policy``; without a role the policy plays both.

    Args:
        env: a search environment, with the tools ``search``, ``open`` and ``answer``.
        env_kwargs: its arguments.
        cost: reward taken off for each search and each opened page.
        max_turns: turns after which the solver answers in any case.

    Raises:
        UsageError: the environment lacks one of these tools, or the cost is negative.

    Example:
        >>> env = SearchPlannerEnv(env="agentgym/WikiWorld-v0", env_kwargs={"num_pages": 16, "hops": [1, 1]}, cost=0.1)
        >>> observation, info = env.reset(seed=0)
        >>> rewards = []
        >>> while not env.episode.is_over:
        ...     rewards.append(env.step(env.oracle())[1])
        >>> rewards
        [-0.1, -0.1, 1.0]
        >>> env.close()
    """

    agents = ("solver",)

    def __init__(
        self,
        *,
        env: str = "agentgym/WikiWorld-v0",
        env_kwargs: Mapping[str, object] | None = None,
        cost: float = 0.0,
        max_turns: int = 8,
        render_mode: str | None = None,
    ) -> None:
        check_number("cost", cost, Range(at_least=0))
        super().__init__(make(env, **dict(env_kwargs or {})), max_turns=max_turns, render_mode=render_mode)
        self._cost = cost
        names = {spec.name for spec in self._world.tools}
        if missing := [name for name in (*_LOOKUPS, _ANSWER) if name not in names]:
            raise UsageError(
                f"SearchPlanner needs a world with the tools search, open and answer; {env} lacks {missing[0]}"
            )

    # ------------------------------------------------------------------------------------------------- an episode

    @tool
    async def search(self, query: str) -> str:
        """Search for pages by names and other words.

        Args:
            query: What to look for.
        """
        return await self._look(ToolCall("search", {"query": query}, "0"))

    @tool
    async def open(self, doc_id: str, page: int = 1) -> str:
        """Open a document that a search has shown, one page of it at a time.

        Args:
            doc_id: Its id, as search shows it.
            page: Which page, from 1.
        """
        return await self._look(ToolCall("open", {"doc_id": doc_id, "page": page}, "0"))

    @tool
    async def conclude(self) -> str:
        """Have the solver answer now, from what was found."""
        return await self._solved()

    async def _look(self, call: ToolCall) -> str:
        said = await self._step(Message("assistant", "", (call,)))
        if self._cost:
            self.award(-self._cost, "lookup", RewardRole.COST)
        if self.episode.is_over:
            return said
        self.memory += (f"{format_call(call, self._world.tools)}\n{said}",)
        return f"{said}\n{await self._solved()}" if self.turn == self.max_turns else said

    async def _solved(self) -> str:
        found = "\n".join(self.memory) or "Nothing was found."
        offered = [spec for spec in self._world.tools if spec.name == _ANSWER]
        solver = RoleEnv(f"{self._question}\n{found}\nAnswer now.", offered, lambda: self._gold_answer(offered))
        await self._delegate_to("solver", solver)
        calls = solver.action.calls
        if len(calls) != 1 or not isinstance(calls[0], ToolCall) or calls[0].name != _ANSWER:
            self.finish()
            return "The solver gave no answer."
        said = await self._step(solver.action)
        if not self.episode.is_over:
            self.finish()
        return said

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def oracle(self) -> Message:
        wanted = self._wanted()
        shown = {name: value for name, value in wanted.arguments.items() if name != "k"}
        return self._call("conclude") if wanted.name == _ANSWER else self._call(wanted.name, **shown)

    # ---------------------------------------------------------------------------------------------------- private

    def _briefing(self) -> str:
        return "A solver answers from what you find: search, open, then conclude."

    def _wanted(self) -> ToolCall:
        """Return the next call of the wrapped environment's gold policy."""
        call = self._world.oracle().calls[0]
        assert isinstance(call, ToolCall)
        return call

    def _gold_answer(self, offered: Sequence[ToolSpec]) -> Message:
        wanted = self._wanted()
        call = wanted if wanted.name == _ANSWER else ToolCall(_ANSWER, {"text": UNKNOWN}, "0")
        return Message("assistant", format_call(call, offered), (call,))
