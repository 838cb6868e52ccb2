"""Episodes that an agent's driver plays, each in a fork of a process that has loaded the agent's package.

Loading takes seconds of processor time (4 for mini-swe-agent), which each episode would pay again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.command import endpoint_variables
from agentgym.errors import EnvError, UsageError
from agentgym.plugins import Options
from agentgym.processes.loaded import Loaded
from agentgym.processes.watched import end_of_log
from agentgym.settings import Count
from agentgym.types import ToolSpec

_QUIET = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false"}
"""Variables with which agents send no traces."""
_DRIVERS = Path(__file__).resolve().parents[1] / "drivers"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverOptions(Options):
    """Settings of an agent that a driver plays."""

    kind: str = ""
    python: str = ""
    """Python interpreter with the agent's package; empty for the one that runs agentgym."""
    step_limit: Count = 20
    """Most completions of an episode."""


def driver_harness(
    options: type[DriverOptions],
    title: str,
    driver: str,
    module: str,
    package: str,
    described: Callable[[ToolSpec], Mapping[str, object]] = lambda tool: tool.as_function()["function"],
) -> None:
    """Register the harness of a framework's agent, whose tools are the environment's.

    Args:
        options: its settings; the default ``kind`` is its name. The driver reads them besides the task and the tools.
        title: the agent for the docs.
        driver: its file.
        module: what the package is imported as.
        package: what it is installed as.
        described: a tool as the driver reads it; by default as OpenAI describes functions.
    """

    def require(options: DriverOptions) -> None:
        require_agent(options.python, module, package)

    async def run(episode: AgentEpisode, options: DriverOptions) -> None:
        settings = {
            "task": episode.instruction,
            "tools": [described(tool) for tool in episode.tools],
            "tools_url": f"{episode.root_url}/tools",
            **{one.name: getattr(options, one.name) for one in fields(options)},
        }
        await play_driver(driver, options.python, episode, settings, _QUIET)

    run.__doc__ = f"Run {title} in a separate process until it answers or gives up; EnvError if it fails."
    name = next(one.default for one in fields(options) if one.name == "kind")
    harness(str(name), options=options, require=require)(run)


def require_agent(python: str, module: str, package: str) -> None:
    """Raise an error if an interpreter does not have an agent's package.

    Args:
        python: as in :func:`play_driver`.
        module: what the package is imported as.
        package: what it is installed as.

    Raises:
        UsageError: there is no such interpreter, or it does not have the package.
    """
    program = shutil.which(python or sys.executable)
    if program is None:
        raise UsageError(f"harness.python={python!r} is no program; name a Python that has {package}")
    code = f"import importlib.util; raise SystemExit(importlib.util.find_spec({module!r}) is None)"
    done = subprocess.run([program, "-c", code], env=_at_load({}, ""), capture_output=True, check=False)
    if done.returncode:
        raise UsageError(
            f"{program} does not have {package}: {program} -m pip install '{package}', or set harness.python to a "
            "Python that has it"
        )


async def play_driver(
    driver: str,
    python: str,
    episode: AgentEpisode,
    settings: Mapping[str, object],
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run a driver to the end of an episode.

    Args:
        driver: its file, whose function ``play`` takes the path of the settings.
        python: the interpreter that has the agent; empty for this one.
        settings: what the driver reads, besides the endpoint's ``base_url``, ``api_key`` and ``model``.
        variables: environment variables that the agent's package reads as it is loaded. ``{folder}`` is replaced.

    Raises:
        EnvError: the agent does not start or fails.
    """
    program = shutil.which(python or sys.executable)
    if program is None:
        raise EnvError(f"harness.python={python!r} is no program; name a Python that has the agent")
    # never left, so that the next episode finds it
    loaded = Loaded.shared(program, _DRIVERS / driver, lambda folder: _at_load(variables or {}, str(folder)))
    endpoint = {"base_url": episode.base_url, "api_key": episode.api_key, "model": episode.model}
    with tempfile.TemporaryDirectory(prefix="agentgym-agent-") as name:
        folder = Path(name)
        path = folder / "settings.json"
        path.write_text(json.dumps({**settings, **endpoint}), encoding="utf-8")
        job = loaded.start("play", folder, endpoint_variables(episode), [str(path)])
        try:
            code = await job.ended()
        finally:
            job.end()
        if code:
            raise EnvError(f"the agent ended with code {code}: {end_of_log(folder)}")
        if code is None and job.pid is None:
            why = loaded.said().rpartition("\n")[2]
            raise EnvError(f"the agent cannot be loaded: {why}; install it for {program}, or set harness.python")
        if code is None:
            raise EnvError(f"the agent was killed: {end_of_log(folder)}")


def _at_load(variables: Mapping[str, str], folder: str) -> dict[str, str]:
    """Return the variables of the process that loads an agent. No proxy stands between agents and the endpoint."""
    filled = {name: value.replace("{folder}", folder) for name, value in variables.items()}
    return {**os.environ, "PYTHONPATH": "", "NO_PROXY": "*", "no_proxy": "*", **filled}
