"""The harness of mini-swe-agent, unmodified. Its commands run in the environment's tool ``bash``."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.with_driver import DriverOptions, play_driver, require_agent
from agentgym.errors import EnvError

_QUIET = {
    "MSWEA_SILENT_STARTUP": "1", "MSWEA_CONFIGURED": "1", "MSWEA_GLOBAL_CONFIG_DIR": "{folder}",
    "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}  # fmt: skip
"""Variables with which it reads no settings of the user, asks nothing of the network, and fails at the first error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniSweAgentOptions(DriverOptions):
    """Settings of the harness ``mini_swe_agent``."""

    kind: str = "mini_swe_agent"
    config: str = "mini_textbased"
    """Name of a configuration of mini-swe-agent, or a file with one: prompts and action format."""
    tool: str = "bash"
    """Tool of the environment that runs commands."""


def _require(options: MiniSweAgentOptions) -> None:
    require_agent(options.python, "minisweagent", "mini-swe-agent")


@harness("mini_swe_agent", options=MiniSweAgentOptions, require=_require)
async def mini_swe_agent(episode: AgentEpisode, options: MiniSweAgentOptions) -> None:
    """Run mini-swe-agent in a separate process until it submits or gives up.

    Raises:
        EnvError: the environment has no such tool, or the agent fails.
    """
    if options.tool not in [tool.name for tool in episode.tools]:
        known = ", ".join(tool.name for tool in episode.tools)
        raise EnvError(f"mini_swe_agent runs commands by the tool {options.tool!r}; the environment has {known}")
    settings = {
        "task": episode.instruction, "config": options.config, "step_limit": options.step_limit, "tool": options.tool,
        "tool_url": f"{episode.root_url}/tools/{options.tool}",
    }  # fmt: skip
    await play_driver("mini_swe_agent.py", options.python, episode, settings, _QUIET)
