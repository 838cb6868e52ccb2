"""The harness of smolagents' agents, unmodified. Their tools are the environment's."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.command import endpoint_variables, run_command
from agentgym.plugins import Options
from agentgym.settings import Count, Positive

_DRIVER = Path(__file__).resolve().parents[1] / "drivers" / "smolagents_agent.py"


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
    timeout_s: Positive = 900.0
    """Seconds after which the agent is killed; the episode then counts as failed."""


@harness("smolagents", options=SmolagentsOptions)
async def smolagents(episode: AgentEpisode, options: SmolagentsOptions) -> None:
    """Run an agent of smolagents in a separate process until it answers or gives up.

    Raises:
        EnvError: the agent fails or takes too long.
    """
    settings = {
        "task": episode.instruction, "agent": options.agent, "step_limit": options.step_limit,
        "tools": [tool.as_function()["function"] for tool in episode.tools],
        "tools_url": f"{episode.root_url}/tools", "base_url": episode.base_url, "api_key": episode.api_key,
        "model": episode.model,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="agentgym-smolagents-") as folder:
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        command = shlex.join([options.python or sys.executable, str(_DRIVER), str(path)])
        await run_command(command, folder, {**endpoint_variables(episode), "PYTHONPATH": ""}, options.timeout_s)
