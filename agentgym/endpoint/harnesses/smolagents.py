"""The harness of smolagents' agents, unmodified. Their tools are the environment's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.with_driver import play_driver, require_agent
from agentgym.plugins import Options
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolagentsOptions(Options):
    """Settings of the harness ``smolagents``."""

    kind: str = "smolagents"
    python: str = ""
    """Python interpreter with ``smolagents[openai]`` installed; empty for the one that runs agentgym."""
    agent: Literal["tool_calling", "code"] = "tool_calling"
    """``ToolCallingAgent``, or ``CodeAgent``, which runs the policy's Python in smolagents' own interpreter on this
    machine."""
    step_limit: Count = 20
    """Most steps of an episode, after which smolagents requests a final answer."""


def _require(options: SmolagentsOptions) -> None:
    require_agent(options.python, "smolagents", "smolagents[openai]")


@harness("smolagents", options=SmolagentsOptions, require=_require)
async def smolagents(episode: AgentEpisode, options: SmolagentsOptions) -> None:
    """Run an agent of smolagents in a separate process until it answers or gives up.

    Raises:
        EnvError: the agent fails.
    """
    settings = {
        "task": episode.instruction, "agent": options.agent, "step_limit": options.step_limit,
        "tools": [tool.as_function()["function"] for tool in episode.tools],
        "tools_url": f"{episode.root_url}/tools",
    }  # fmt: skip
    await play_driver("smolagents_agent.py", options.python, episode, settings)
