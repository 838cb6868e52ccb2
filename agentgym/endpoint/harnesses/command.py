"""The harness of command-line agents, which runs a shell command on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.errors import EnvError
from agentgym.plugins import Options
from agentgym.settings import Positive

_SHOWN = 2000
"""Most characters of a failed command's output in the error message."""


EMPTY = "harness.command is empty: set harness.command='my-agent --task {instruction}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions(Options):
    """Settings of the harness ``command``."""

    kind: str = "command"
    command: str = ""
    """Shell command. ``{instruction}`` is replaced by the quoted task, ``{instruction_file}`` by the path of a file
    with the task, and ``{base_url}``, ``{api_key}`` and ``{model}`` by the endpoint's values."""
    cwd: str = ""
    """Working directory; empty for a new folder per episode."""
    timeout_s: Positive = 600.0
    """Seconds after which the command is killed; the episode then counts as failed."""

    def check_together(self) -> None:
        self.check(is_ok=bool(self.command.strip()), message=EMPTY)


def endpoint_variables(episode: AgentEpisode, root_url: str = "") -> dict[str, str]:
    """Return the environment variables through which clients of OpenAI and Anthropic find the endpoint.

    Args:
        root_url: URL of the endpoint for the agent, if it differs from that for this process.
    """
    root_url = root_url or episode.root_url
    return {
        "OPENAI_BASE_URL": f"{root_url}/v1",
        "OPENAI_API_BASE": f"{root_url}/v1",
        "OPENAI_API_KEY": episode.api_key,
        "OPENAI_MODEL": episode.model,
        "ANTHROPIC_BASE_URL": root_url,
        "ANTHROPIC_API_KEY": episode.api_key,
        "ANTHROPIC_MODEL": episode.model,
        "NO_PROXY": "*",
        "no_proxy": "*",
    }


@harness("command", options=CommandOptions)
async def command(episode: AgentEpisode, options: CommandOptions) -> None:
    """Run a command on this machine until it ends.

    Raises:
        EnvError: the command fails or takes too long.
    """
    with _folder(options.cwd) as folder, tempfile.TemporaryDirectory(prefix="agentgym-") as beside:
        task = Path(beside) / "instruction.txt"
        task.write_text(episode.instruction, encoding="utf-8")
        filled = fill(
            options.command,
            {
                "instruction": episode.instruction,
                "instruction_file": str(task),
                "base_url": episode.base_url,
                "api_key": episode.api_key,
                "model": episode.model,
            },
        )
        await run_command(filled, folder, endpoint_variables(episode), options.timeout_s)


def fill(template: str, values: Mapping[str, str]) -> str:
    """Return a shell command with each ``{name}`` replaced by the quoted value; other braces stay.

    Example:
        >>> fill("agent --task {instruction} '{x}'", {"instruction": "say hi"})
        "agent --task 'say hi' '{x}'"
        >>> fill("agent {instruction}", {"instruction": "say {model}", "model": "it's"})
        "agent 'say {model}'"
    """
    names = "|".join(map(re.escape, values))  # in one pass, so that placeholders in a task's text are not replaced
    return re.sub("{(" + names + ")}", lambda found: shlex.quote(values[found[1]]), template)


async def run_command(command: str, folder: str, variables: Mapping[str, str], timeout_s: float) -> str:
    """Run a shell command in its own process group and return its output.

    Raises:
        EnvError: the exit code is not 0, or the command takes longer than ``timeout_s``.
    """
    process = await asyncio.create_subprocess_shell(
        command,
        cwd=folder,
        env={**os.environ, **variables},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout_s):
            output, _ = await process.communicate()
    except TimeoutError:
        raise EnvError(f"the agent's command took longer than {timeout_s:g} s: {command[:200]}") from None
    finally:
        _kill(process)
    text = output.decode("utf-8", "replace")
    if process.returncode:
        raise EnvError(f"the agent's command ended with code {process.returncode}: {text[-_SHOWN:]}")
    return text


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a command and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _folder(cwd: str) -> AbstractContextManager[str]:
    return nullcontext(cwd) if cwd else tempfile.TemporaryDirectory(prefix="agentgym-agent-")
