"""Harnesses of Python frameworks' agents, unmodified. Their tools are the environment's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.endpoint.harnesses.with_driver import DriverOptions, driver_harness


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiAgentsOptions(DriverOptions):
    """Settings of the harness ``openai_agents``."""

    kind: str = "openai_agents"
    api: Literal["responses", "chat_completions"] = "responses"
    """API that the SDK uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LangGraphOptions(DriverOptions):
    """Settings of the harness ``langgraph``."""

    kind: str = "langgraph"


@dataclass(frozen=True, slots=True, kw_only=True)
class PydanticAiOptions(DriverOptions):
    """Settings of the harness ``pydantic_ai``."""

    kind: str = "pydantic_ai"


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolagentsOptions(DriverOptions):
    """Settings of the harness ``smolagents``, which requests a final answer after the last step."""

    kind: str = "smolagents"
    agent: Literal["tool_calling", "code"] = "tool_calling"
    """``ToolCallingAgent``, or ``CodeAgent``, which runs the policy's Python in smolagents' own interpreter on this
    machine."""


driver_harness(
    OpenAiAgentsOptions, "an agent of the OpenAI Agents SDK", "openai_agents_sdk.py", "agents", "openai-agents"
)
driver_harness(
    LangGraphOptions, "LangChain's agent", "langgraph_agent.py", "langchain_openai", "langchain langchain-openai"
)
driver_harness(
    PydanticAiOptions, "an agent of pydantic-ai", "pydantic_ai_agent.py", "pydantic_ai", "pydantic-ai-slim[openai]"
)
driver_harness(SmolagentsOptions, "an agent of smolagents", "smolagents_agent.py", "smolagents", "smolagents[openai]")
