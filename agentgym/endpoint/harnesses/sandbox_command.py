"""The harness of command-line agents that run inside the environment's own sandbox, whose workspace is graded.

The sandbox has no network. The endpoint's Unix socket is mounted into it, and a port inside leads there. Of the
endpoint the agent can use its own session alone, and no tools of the environment.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from agentgym import errors
from agentgym.endpoint.drivers import in_sandbox
from agentgym.endpoint.harness import AgentEpisode, harness
from agentgym.endpoint.harnesses.command import endpoint_variables, fill
from agentgym.env.worker_thread import call_in_own_thread
from agentgym.errors import EnvError, EnvTimeoutError, SandboxSpentError, UsageError
from agentgym.plugins import Options
from agentgym.sandbox import ExecResult, HostsAgents, Limits, Mount, Sandbox
from agentgym.sandboxes.run_folder import shared_folder

PORT: Final = 21843
"""Where the endpoint is found inside; each sandbox has its own."""
_SOCKETS, _FOLDER = "/opt/agentgym-endpoint", "/opt/agent"
_DRIVER = Path(in_sandbox.__file__)
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
_KILLED = frozenset(code for number in _SIGNALS for code in (-number, 128 + number))
"""Exit codes of a program that was killed. Only what runs in the sandbox can have sent the signal."""
_SHOWN = 2000
"""Characters of a failed command's output in the error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommandOptions(Options):
    """Settings of the harness ``sandbox_command``."""

    kind: str = "sandbox_command"
    command: str = ""
    """Shell command, run in the workspace. ``{instruction}`` is replaced by the quoted task, ``{base_url}``,
    ``{api_key}`` and ``{model}`` by those of the endpoint, ``{folder}`` by where the sandbox sees ``folder``."""
    folder: str = ""
    """Folder of this machine that holds the agent, which the sandbox sees read-only; empty if its image has it."""
    wall_s: float = 600.0
    """Seconds after which the command is killed; what it has done by then is graded."""
    memory_mb: int = 1024
    """Memory of the sandbox while the agent works."""
    ok_codes: tuple[int, ...] = ()
    """Exit codes beside 0 that are no failure, such as that of a limit which the agent itself keeps."""

    def __post_init__(self) -> None:
        self.check(is_ok=self.wall_s > 0, message=f"wall_s must be above 0, got {self.wall_s}")
        self.limits()

    def limits(self) -> Limits:
        """Return the limits of a sandbox that an agent's program works in."""
        return Limits(
            wall_s=self.wall_s,
            cpu_s=max(1, round(self.wall_s)),
            memory_mb=self.memory_mb,
            num_pids=512,
            num_open_files=1024,
        )

    def mounts(self) -> tuple[Mount, ...]:
        """Return the folders of this machine that the sandbox sees.

        Raises:
            UsageError: there is no such folder, or agentgym itself is in it, whose generators know the answers.
        """
        sockets = Mount(host=str(shared_folder()), inside=_SOCKETS)
        if not self.folder:
            return (sockets,)
        folder = Path(self.folder).resolve()
        if not folder.is_dir():
            raise UsageError(f"harness.folder={self.folder}: there is no such folder")
        if Path(errors.__file__).resolve().is_relative_to(folder):
            raise UsageError(f"harness.folder={self.folder} holds agentgym, whose generators know the answers to tasks")
        return sockets, Mount(host=str(folder), inside=_FOLDER)


def prepare(env: Any, options: SandboxCommandOptions) -> None:
    """Give an environment sandboxes that the agent's program can run in.

    Raises:
        UsageError: it has no sandbox, no command is set, or the folder is wrong.
    """
    if not options.command.strip():
        raise UsageError("harness.command is empty: set harness.command='my-agent --task {instruction}'")
    if "{folder}" in options.command and not options.folder:
        raise UsageError("harness.command names {folder}: set harness.folder to the folder that holds the agent")
    if not isinstance(env, HostsAgents):
        raise UsageError(
            f"{env.env_id} has no sandbox for sandbox_command to run in; use one that has, such as agentgym/SWE-v0"
        )
    env.host_agent(options.mounts(), options.limits())


@harness("sandbox_command", options=SandboxCommandOptions, prepare=prepare)
async def sandbox_command(episode: AgentEpisode, options: SandboxCommandOptions) -> None:
    """Run a command in the environment's sandbox until it ends; the workspace is then graded.

    A limit or a signal that ends it is no failure, since the policy's own commands may be the cause.

    Raises:
        EnvError: the command ends by itself with another code than 0 and ``ok_codes``.
        EnvTimeoutError: its time was up, and most of it was spent on waiting for completions.
        SandboxDeadError: the sandbox died.
    """
    sandbox: Sandbox = episode.env.sandbox
    backend = sandbox.capabilities().backend
    root_url = episode.root_url
    if backend != "process":  # which has the network of this machine
        root_url = f"http://127.0.0.1:{PORT}{urlsplit(root_url).path}"
    values = {
        "instruction": episode.instruction, "base_url": f"{root_url}/v1", "api_key": episode.api_key,
        "model": episode.model, "folder": options.mounts()[-1].seen_in(backend),
    }  # fmt: skip
    argv = ["sh", "-c", fill(options.command, values)]
    if backend != "process":
        path = f"{_SOCKETS}/{Path(episode.socket_path).name}"
        argv = ["python3", "-c", _DRIVER.read_text(encoding="utf-8"), path, str(PORT), argv[2]]
    try:
        result = await _finished(sandbox, argv, endpoint_variables(episode, root_url), options.wall_s)
    except SandboxSpentError:
        return  # the environment goes on with the files from before
    _judge(result, episode, options)


async def _finished(sandbox: Sandbox, argv: list[str], variables: dict[str, str], wall_s: float) -> ExecResult:
    """Run a program in a sandbox; the sandbox is ended if nobody waits for it any more."""
    try:
        return await call_in_own_thread(partial(sandbox.exec, argv, env=variables, timeout_s=wall_s))
    except asyncio.CancelledError:
        await call_in_own_thread(sandbox.close)
        raise


def _judge(result: ExecResult, episode: AgentEpisode, options: SandboxCommandOptions) -> None:
    """Raise if what ended a command was not the policy's doing."""
    if result.limit == "wall" and episode.sampling_s > options.wall_s / 2:
        raise EnvTimeoutError(
            f"the agent's command took more than {options.wall_s:g} s and waited {episode.sampling_s:.0f} s for "
            "completions; set harness.wall_s higher"
        )
    if result.exit_code not in (0, *options.ok_codes, *_KILLED) and not result.limit:
        output = "\n".join(filter(None, (result.stdout.strip(), result.stderr.strip())))
        raise EnvError(f"the agent's command ended with code {result.exit_code}: {output[-_SHOWN:]}")
