"""The harness of command-line agents, which runs a shell command on this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Final

from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.errors import EnvError
from agentgym.plugins import Options

_SHOWN = 2000
"""Most characters of a failed command's output in the error message."""
_PLACEHOLDERS: Final = ("instruction", "instruction_file", "base_url", "api_key", "model", "folder")
"""Placeholders of all harnesses that run a command."""
_LIKENESS = 0.75
"""Likeness to a placeholder from which other words in braces count as a misspelling; shell commands have such words."""

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

    def check_together(self) -> None:
        wrong = wrong_command(self.command, _PLACEHOLDERS[:-1])
        self.check(is_ok=not wrong, message=wrong)


def wrong_command(template: str, names: Sequence[str]) -> str:
    """Return an error message for an empty command or a placeholder that is not filled in; empty if there is none.

    Args:
        names: placeholders that are filled in.

    Example:
        >>> wrong_command("agent {instructions} '{x}'", ("instruction", "model"))
        'harness.command names {instructions}, which is not filled in; placeholders are {instruction}, {model}'
    """
    if not template.strip():
        return EMPTY
    for word in re.findall(r"(?<!\$){(\w+)}", template):
        if word not in names and get_close_matches(word, _PLACEHOLDERS, n=1, cutoff=_LIKENESS):
            known = ", ".join(f"{{{name}}}" for name in names)
            return f"harness.command names {{{word}}}, which is not filled in; placeholders are {known}"
    return ""


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
        EnvError: the command fails, or ends without a completion.
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
        output = await run_command(filled, folder, endpoint_variables(episode))
        check_completions(episode, output)


def check_completions(episode: AgentEpisode, output: str) -> None:
    """Raise an error with a command's output if the command has ended without a completion.

    Raises:
        EnvError: it has had none.
    """
    if not episode.sampling_s:
        told = output.strip()[-_SHOWN:] or "nothing"
        raise EnvError(f"the agent's command ended before it had a completion; it printed: {told}")


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


async def run_command(command: str, folder: str, variables: Mapping[str, str]) -> str:
    """Run a shell command in its own process group and return the end of its output.

    The command ends with its shell. Processes that it left running, such as a server in the background, are killed.

    Raises:
        EnvError: the exit code is not 0.
    """
    with tempfile.TemporaryFile() as log:  # a pipe stays open as long as a process in the background
        process = await asyncio.create_subprocess_shell(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            await process.wait()
        finally:
            _kill(process)
        text = _end_of(log)
    if process.returncode:
        raise EnvError(f"the agent's command ended with code {process.returncode}: {text}")
    return text


def _end_of(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - 4 * _SHOWN))  # a character has at most 4 bytes
    return log.read().decode("utf-8", "replace")[-_SHOWN:]


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill a command and its children."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _folder(cwd: str) -> AbstractContextManager[str]:
    return nullcontext(cwd) if cwd else tempfile.TemporaryDirectory(prefix="agentgym-agent-")
