"""The harness of command-line agents: a shell command on this machine."""

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

_SHOWN = 2000
"""Characters of a failed command's output in the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions(Options):
    """Settings of the harness ``command``."""

    kind: str = "command"
    command: str = ""
    """Shell command. ``{instruction}`` is replaced by the quoted task, ``{instruction_file}`` by a file that holds it,
    ``{base_url}``, ``{api_key}`` and ``{model}`` by those of the endpoint."""
    cwd: str = ""
    """Folder that it runs in; empty for a fresh one of the episode."""
    timeout_s: float = 600.0
    """Seconds after which the command is killed; the episode then counts as failed."""

    def __post_init__(self) -> None:
        self.check(is_ok=self.timeout_s > 0, message=f"timeout_s must be above 0, got {self.timeout_s}")


def endpoint_variables(episode: AgentEpisode, root_url: str = "") -> dict[str, str]:
    """Return the environment variables by which the clients of OpenAI and Anthropic find the endpoint.

    Args:
        root_url: where the agent finds the endpoint, if not where this process does.
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
        EnvError: no command is set, or it fails or takes too long.
    """
    if not options.command.strip():
        raise EnvError("harness.command is empty: set harness.command='my-agent --task {instruction}'")
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
    names = "|".join(map(re.escape, values))  # in one pass: what a task says is not filled in again
    return re.sub("{(" + names + ")}", lambda found: shlex.quote(values[found[1]]), template)


async def run_command(command: str, folder: str, variables: Mapping[str, str], timeout_s: float) -> str:
    """Run a shell command in a process group of its own and return its output.

    Raises:
        EnvError: it ends with another code than 0, or takes longer than ``timeout_s``.
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
    """Kill what is left of a command, its children included."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _folder(cwd: str) -> AbstractContextManager[str]:
    return nullcontext(cwd) if cwd else tempfile.TemporaryDirectory(prefix="agentgym-agent-")
