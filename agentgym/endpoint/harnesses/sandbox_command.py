"""The harness of command-line agents that run inside the environment's sandbox, whose workspace is then graded.

The sandbox has no network. The endpoint's Unix socket is mounted into it, and a port inside the sandbox forwards to the
socket. The agent can use only its own session of the endpoint, and none of the environment's tools.
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
from agentgym.endpoint.harnesses.command import check_completions, endpoint_variables, fill, wrong_command
from agentgym.env.worker_thread import call_in_own_thread
from agentgym.errors import EnvError, EnvTimeoutError, SandboxSpentError, UsageError
from agentgym.plugins import Options
from agentgym.sandbox import ExecResult, HostsAgents, Limits, Mount, Sandbox
from agentgym.sandboxes.run_folder import shared_folder
from agentgym.settings import Positive

PORT: Final = 21843
"""Port of the endpoint inside a sandbox. Each sandbox has its own network namespace."""
_SOCKETS, _FOLDER = "/opt/agentgym-endpoint", "/opt/agent"
_DRIVER = Path(in_sandbox.__file__)
_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
_KILLED = frozenset(code for number in _SIGNALS for code in (-number, 128 + number))
"""Exit codes of a killed program. Only code in the sandbox can have sent the signal."""
_SHOWN = 2000
"""Most characters of a failed command's output in the error message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxCommandOptions(Options):
    """Settings of the harness ``sandbox_command``."""

    kind: str = "sandbox_command"
    command: str = ""
    """Shell command, run in the workspace. ``{instruction}`` is replaced by the quoted task, ``{base_url}``,
    ``{api_key}`` and ``{model}`` by the endpoint's values, and ``{folder}`` by the path of ``folder`` inside the
    sandbox."""
    folder: str = ""
    """Folder of this machine with the agent, mounted read-only; empty if the sandbox's image contains the agent."""
    wall_s: Positive = 600.0
    """Seconds after which the command is killed; its work up to then is graded."""
    memory_mb: int = 1024
    """Memory of the sandbox while the agent runs, in MiB."""
    ok_codes: tuple[int, ...] = ()
    """Exit codes other than 0 that are not failures, such as the code for an agent's own limit."""

    def check_together(self) -> None:
        wrong = wrong_command(self.command, ("instruction", "base_url", "api_key", "model", "folder"))
        self.check(is_ok=not wrong, message=wrong)
        self.limits()

    def limits(self) -> Limits:
        """Return the limits of a sandbox in which an agent's program runs."""
        return Limits(
            wall_s=self.wall_s,
            cpu_s=max(1, round(self.wall_s)),
            memory_mb=self.memory_mb,
            num_pids=512,
            num_open_files=1024,
        )

    def mounts(self) -> tuple[Mount, ...]:
        """Return the folders of this machine that are mounted into the sandbox.

        Raises:
            UsageError: there is no such folder, or it contains agentgym, whose generators reveal the answers.
        """
        sockets = Mount(host=str(shared_folder()), inside=_SOCKETS)
        if not self.folder:
            return (sockets,)
        folder = Path(self.folder).resolve()
        if not folder.is_dir():
            raise UsageError(f"harness.folder={self.folder}: there is no such folder")
        if Path(errors.__file__).resolve().is_relative_to(folder):
            raise UsageError(
                f"harness.folder={self.folder} contains agentgym, whose generators reveal the answers to tasks; "
                "choose a folder with the agent only"
            )
        return sockets, Mount(host=str(folder), inside=_FOLDER)


def prepare(env: Any, options: SandboxCommandOptions) -> None:
    """Configure an environment's sandboxes so that the agent's program can run in them.

    Raises:
        UsageError: the environment has no sandbox, or the folder is wrong.
    """
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

    A limit or signal that ends the command is not a failure, since the policy's own commands may be the cause. Neither
    is an agent that ends with an error because the token limit cut the last completion.

    Raises:
        EnvError: the command ends by itself with a code that is neither 0 nor in ``ok_codes``, or without a completion.
        EnvTimeoutError: the command exceeded its time, most of which it spent waiting for completions.
        SandboxDeadError: the sandbox died.
    """
    sandbox: Sandbox = episode.env.sandbox
    backend = sandbox.capabilities().backend
    root_url = episode.root_url
    if backend != "process":  # the process sandbox has this machine's network
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
        return  # the environment continues with the files from before
    _judge(result, episode, options)


async def _finished(sandbox: Sandbox, argv: list[str], variables: dict[str, str], wall_s: float) -> ExecResult:
    """Run a program in a sandbox, and end the sandbox if the caller is cancelled."""
    try:
        return await call_in_own_thread(partial(sandbox.exec, argv, env=variables, timeout_s=wall_s))
    except asyncio.CancelledError:
        await call_in_own_thread(sandbox.close)
        raise


def _judge(result: ExecResult, episode: AgentEpisode, options: SandboxCommandOptions) -> None:
    """Raise an error if a command ended for a reason that the policy did not cause."""
    if result.limit == "wall" and episode.sampling_s > options.wall_s / 2:
        raise EnvTimeoutError(
            f"the agent's command took more than {options.wall_s:g} s and waited {episode.sampling_s:.0f} s for "
            "completions; set harness.wall_s higher"
        )
    output = "\n".join(filter(None, (result.stdout.strip(), result.stderr.strip())))
    is_policys = bool(result.limit) or episode.is_cut
    if result.exit_code not in (0, *options.ok_codes, *_KILLED) and not is_policys:
        raise EnvError(f"the agent's command ended with code {result.exit_code}: {output[-_SHOWN:]}")
    check_completions(episode, output)
