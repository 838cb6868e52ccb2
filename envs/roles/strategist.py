"""``agentgym/Strategist-v0``: a strategist advises a player, who acts in another environment.

Source: "EPO: Explicit Policy Optimization for Strategic Reasoning in LLMs via Reinforcement Learning": a model trained
for strategy alone, whose advice any other model plays by. The paper's environments are dialogues; here the player acts
by tool calls in any environment that has tools.
"""

from __future__ import annotations

from collections.abc import Mapping

from agentgym.call_syntax import format_call
from agentgym.env.match_env import MatchEnv
from agentgym.env.sub_agents import AsksAgents
from agentgym.envs.roles.team import RoleEnv, TeamEnv
from agentgym.errors import UsageError
from agentgym.registry import make
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import Message, ToolCall


class StrategistEnv(TeamEnv):
    """Advise a player before each of its actions. The strategist sees what the player sees, and cannot act.

    The strategist has the reward of the wrapped environment. Give the player a frozen model with
    ``roles.player.policy``; without a role the policy plays both. The player's oracle takes the advice for an action.

    Args:
        env: the environment in which the player acts; it must have tools.
        env_kwargs: its arguments.
        memory: number of past actions, with what they led to, that the player reads again.
        max_turns: the player's actions in an episode; by default the environment's own limit.

    Raises:
        UsageError: the environment has no tools, several players, or sub-agents itself.

    Example:
        >>> env = StrategistEnv(env="agentgym/Household-v0", env_kwargs={"num_objects": 3})
        >>> observation, info = env.reset(seed=0)
        >>> while not env.episode.is_over:
        ...     observation, reward, terminated, truncated, info = env.step(env.oracle())
        >>> reward, info["success"]
        (1.0, True)
        >>> env.close()
    """

    agents = ("player",)

    def __init__(
        self,
        *,
        env: str = "agentgym/Household-v0",
        env_kwargs: Mapping[str, object] | None = None,
        memory: int = 4,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_number("memory", memory, Range(at_least=0))
        world = make(env, **dict(env_kwargs or {}))
        limit = max_turns or world.max_turns
        if not world.tools or limit is None or isinstance(world, AsksAgents | MatchEnv):
            raise UsageError(f"a strategist needs a world of one agent with tools and a limit of turns; {env} is none")
        super().__init__(world, max_turns=limit, render_mode=render_mode)
        self._num_recalled = memory

    # ------------------------------------------------------------------------------------------------- an episode

    @tool
    async def advise(self, strategy: str) -> str:
        """Tell the player how to go on; it acts once.

        Args:
            strategy: What the player should do next, and why.
        """
        recalled = self.memory[-self._num_recalled :] if self._num_recalled else ()
        order = "\n".join([self._question, *recalled, f"Advice: {strategy}", "Act once."])
        # a gold player does what it is told, so that only good advice succeeds
        player = RoleEnv(order, self._world.tools, lambda: self._world.parse_action(strategy))
        await self._delegate_to("player", player)
        said = await self._step(player.action, is_own=False)
        calls = [call for call in player.action.calls if isinstance(call, ToolCall)]
        acted = "; ".join(format_call(call, self._world.tools) for call in calls) or player.action.text
        told = f"> {acted}\n{said}"
        self.memory += (told,)
        return told

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def oracle(self) -> Message:
        gold = self._world.oracle()
        calls = [call for call in gold.calls if isinstance(call, ToolCall)]
        words = "; ".join(format_call(call, self._world.tools) for call in calls) or gold.text
        return self._call("advise", strategy=words)

    # ---------------------------------------------------------------------------------------------------- private

    def _briefing(self) -> str:
        return f"A player acts by your advice. It can: {', '.join(spec.name for spec in self._world.tools)}."
