"""Harnesses of Python frameworks' agents, unmodified. Their tools are the environment's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.with_driver import play_driver, require_agent
from agentgym.plugins import Options
from agentgym.settings import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAgentOptions(Options):
    """Settings of a framework's agent."""

    kind: str = ""
    python: str = ""
    """Python interpreter with the framework installed; empty for the one that runs agentgym."""
    step_limit: Count = 20
    """Most completions of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiAgentsOptions(ToolAgentOptions):
    """Settings of the harness ``openai_agents``."""

    kind: str = "openai_agents"
    api: Literal["responses", "chat_completions"] = "responses"
    """API that the SDK uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LangGraphOptions(ToolAgentOptions):
    """Settings of the harness ``langgraph``."""

    kind: str = "langgraph"


@dataclass(frozen=True, slots=True, kw_only=True)
class PydanticAiOptions(ToolAgentOptions):
    """Settings of the harness ``pydantic_ai``."""

    kind: str = "pydantic_ai"


def _require_openai_agents(options: OpenAiAgentsOptions) -> None:
    require_agent(options.python, "agents", "openai-agents")


def _require_langgraph(options: LangGraphOptions) -> None:
    require_agent(options.python, "langchain_openai", "langchain langchain-openai")


def _require_pydantic_ai(options: PydanticAiOptions) -> None:
    require_agent(options.python, "pydantic_ai", "pydantic-ai-slim[openai]")


@harness("openai_agents", options=OpenAiAgentsOptions, require=_require_openai_agents)
async def openai_agents(episode: AgentEpisode, options: OpenAiAgentsOptions) -> None:
    """Run an agent of the OpenAI Agents SDK in a separate process until it answers or gives up.

    Raises:
        EnvError: the agent fails.
    """
    await _play("openai_agents_sdk.py", episode, options, api=options.api)


@harness("langgraph", options=LangGraphOptions, require=_require_langgraph)
async def langgraph(episode: AgentEpisode, options: LangGraphOptions) -> None:
    """Run LangChain's agent on LangGraph in a separate process until it answers or gives up.

    Raises:
        EnvError: the agent fails.
    """
    await _play("langgraph_agent.py", episode, options)


@harness("pydantic_ai", options=PydanticAiOptions, require=_require_pydantic_ai)
async def pydantic_ai(episode: AgentEpisode, options: PydanticAiOptions) -> None:
    """Run an agent of pydantic-ai in a separate process until it answers or gives up.

    Raises:
        EnvError: the agent fails.
    """
    await _play("pydantic_ai_agent.py", episode, options)


async def _play(driver: str, episode: AgentEpisode, options: ToolAgentOptions, **more: Any) -> None:
    settings = {
        "task": episode.instruction,
        "step_limit": options.step_limit,
        "tools": [tool.as_function()["function"] for tool in episode.tools],
        "tools_url": f"{episode.root_url}/tools",
        **more,
    }
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
    await play_driver(driver, options.python, episode, settings, quiet)
