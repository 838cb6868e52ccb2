"""The harness of mini-swe-agent, unmodified. Its commands run in the environment's tool ``bash``."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.command import endpoint_variables, run_command
from agentgym.errors import EnvError
from agentgym.plugins import Options
from agentgym.settings import Count, Positive

_DRIVER = Path(__file__).resolve().parents[1] / "drivers" / "mini_swe_agent.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniSweAgentOptions(Options):
    """Settings of the harness ``mini_swe_agent``."""

    kind: str = "mini_swe_agent"
    python: str = ""
    """Python interpreter with ``mini-swe-agent`` installed; empty for the one that runs agentgym."""
    config: str = "mini_textbased"
    """Name of a configuration of mini-swe-agent, or a file with one: prompts and action format."""
    step_limit: Count = 20
    """Most completions of an episode."""
    tool: str = "bash"
    """Tool of the environment that runs commands."""
    timeout_s: Positive = 900.0
    """Seconds after which the agent is killed; the episode then counts as failed."""


@harness("mini_swe_agent", options=MiniSweAgentOptions)
async def mini_swe_agent(episode: AgentEpisode, options: MiniSweAgentOptions) -> None:
    """Run mini-swe-agent in a separate process until it submits or gives up.

    Raises:
        EnvError: the environment has no such tool, or the agent fails or takes too long.
    """
    if options.tool not in [tool.name for tool in episode.tools]:
        known = ", ".join(tool.name for tool in episode.tools)
        raise EnvError(f"mini_swe_agent runs commands by the tool {options.tool!r}; the environment has {known}")
    settings = {
        "task": episode.instruction, "config": options.config, "step_limit": options.step_limit, "tool": options.tool,
        "tool_url": f"{episode.root_url}/tools/{options.tool}", "base_url": episode.base_url,
        "api_key": episode.api_key, "model": episode.model,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="agentgym-mini-") as folder:
        path = Path(folder) / "settings.json"
        path.write_text(json.dumps(settings), encoding="utf-8")
        quiet = {"MSWEA_SILENT_STARTUP": "1", "MSWEA_GLOBAL_CONFIG_DIR": folder, "MSWEA_CONFIGURED": "1"}
        alone = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "PYTHONPATH": "", "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1"}
        command = shlex.join([options.python or sys.executable, str(_DRIVER), str(path)])
        await run_command(command, folder, {**endpoint_variables(episode), **quiet, **alone}, options.timeout_s)
