"""Harnesses of Python frameworks' agents, unmodified. Their tools are the environment's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.endpoint.harnesses.with_driver import DriverOptions, driver_harness
from agentgym.json_schema.reading import described, properties, required, resolved, types_of
from agentgym.types import ToolSpec


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


def inputs_of(tool: ToolSpec) -> dict[str, dict[str, object]]:
    """Return a tool's parameters as smolagents describes them: one type each, or ``any``.

    Example:
        >>> inputs_of(ToolSpec("go", "", {"properties": {"to": {"type": ["string", "null"]}}}))
        {'to': {'type': 'string', 'description': 'to', 'nullable': True}}
    """
    root = tool.parameters
    needed = required(root, root)
    inputs: dict[str, dict[str, object]] = {}
    for name, part in properties(root, root).items():
        kinds = types_of(part, root)
        kind = described(part, root, joint=" ").replace("null", "").split()
        inputs[name] = {
            "type": kind[0] if len(kind) == 1 else "null" if kinds == {"null"} else "any",
            "description": resolved(part, root).get("description", name),
            **({"nullable": True} if name not in needed or "null" in kinds else {}),
        }
    return inputs


driver_harness(
    OpenAiAgentsOptions, "an agent of the OpenAI Agents SDK", "openai_agents_sdk.py", "agents", "openai-agents"
)
driver_harness(
    LangGraphOptions, "LangChain's agent", "langgraph_agent.py", "langchain_openai", "langchain langchain-openai"
)
driver_harness(
    PydanticAiOptions, "an agent of pydantic-ai", "pydantic_ai_agent.py", "pydantic_ai", "pydantic-ai-slim[openai]"
)
driver_harness(
    SmolagentsOptions, "an agent of smolagents", "smolagents_agent.py", "smolagents", "smolagents[openai]",
    described=lambda tool: {"name": tool.name, "description": tool.description, "inputs": inputs_of(tool)},
)  # fmt: skip
