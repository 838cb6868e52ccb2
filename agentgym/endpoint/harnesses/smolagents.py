"""The harness of smolagents' agents, unmodified. Their tools are the environment's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.with_driver import play_driver, require_agent
from agentgym.json_schema.reading import described, properties, required, resolved, types_of
from agentgym.plugins import Options
from agentgym.settings import Count
from agentgym.types import ToolSpec


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


@harness("smolagents", options=SmolagentsOptions, require=_require)
async def smolagents(episode: AgentEpisode, options: SmolagentsOptions) -> None:
    """Run an agent of smolagents in a separate process until it answers or gives up.

    Raises:
        EnvError: the agent fails.
    """
    settings = {
        "task": episode.instruction, "agent": options.agent, "step_limit": options.step_limit,
        "tools": [
            {"name": tool.name, "description": tool.description, "inputs": inputs_of(tool)} for tool in episode.tools
        ],
        "tools_url": f"{episode.root_url}/tools",
    }  # fmt: skip
    await play_driver("smolagents_agent.py", options.python, episode, settings)
