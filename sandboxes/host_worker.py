"""Base class of the sandboxes without a container engine, whose worker is a child process."""

from __future__ import annotations

import os
import signal
import subprocess
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import suppress

from agentgym.errors import SandboxUnavailableError
from agentgym.sandbox import Limits
from agentgym.sandboxes import cgroups
from agentgym.sandboxes.launch import Inside
from agentgym.sandboxes.owner import descendants, next_sandbox_id, process_state, start_ticks
from agentgym.sandboxes.reaper import reap_host_once
from agentgym.sandboxes.run_folder import SandboxRecord, UserNumbers, forget, make_sandbox_folder, note
from agentgym.sandboxes.stream import Stream
from agentgym.sandboxes.worker_sandbox import WorkerSandbox

_END_S = 6.0  # seconds that the worker waits for killed processes, plus a margin


class HostSandbox(WorkerSandbox):
    """A sandbox whose worker is a child process. As root, each sandbox has two users of its own."""

    def __init__(self, limits: Limits, folders: Mapping[str, int]) -> None:
        self._is_root = os.getuid() == 0
        super().__init__(next_sandbox_id(), limits, ("agent", "grader") if self._is_root else ("agent",))
        reap_host_once()
        self._folder = make_sandbox_folder(self.id, folders)
        self._numbers = UserNumbers() if self._is_root else None
        self._cgroup: cgroups.Cgroup | None = None
        self._num_oom_kills = 0
        """Number of processes killed because of memory up to the worker's last answer."""
        self._worker: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self, inside: Inside) -> list[str]:
        """Return the command that starts the worker."""

    @property
    def _user_numbers(self) -> dict[str, tuple[int, int] | None]:
        if self._numbers is None:
            return {"agent": None}
        agent, grader = self._numbers.agent, self._numbers.grader
        return {"agent": (agent, agent), "grader": (grader, agent)}

    def _launch(self, inside: Inside, *, in_cgroup: bool = False, is_limited: bool = True) -> None:
        """Start the worker, record it for the reaper, and wait until it is ready.

        Args:
            inside: settings of the worker.
            in_cgroup: put the worker into a control group, whose processes are killed together at the end.
            is_limited: apply the sandbox's limits to the group.
        """
        try:
            if in_cgroup:
                self._cgroup = cgroups.Cgroup(self.id, self.limits if is_limited else None)
            worker = self._worker = _started(self._command(inside), inside)
            uids = (self._numbers.agent, self._numbers.grader) if self._numbers and inside.sweep == "user" else ()
            groups = self._cgroup.paths if self._cgroup else ()
            note(
                self.id,
                SandboxRecord(pid=worker.pid, start_ticks=start_ticks(worker.pid), uids=uids, cgroups=groups),
            )
            self._start(_stream_of(worker))
        except BaseException:
            self._end_once()
            raise

    def _end(self) -> None:
        """End the worker. It exits by itself when its connection closes, after killing all jobs; otherwise it is
        killed.
        """
        if self._worker is not None:
            try:
                self._worker.wait(_END_S)
            except subprocess.TimeoutExpired:
                for pid in (*descendants(self._worker.pid), self._worker.pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self._worker.wait()
            if self._worker.stderr is not None:
                self._worker.stderr.close()
        if self._cgroup is not None:
            cgroups.remove(self._cgroup.paths)
        forget(self.id)
        if self._numbers is not None:
            self._numbers.give_back()

    def _note_answer(self) -> None:
        super()._note_answer()
        if self._cgroup is not None:
            self._num_oom_kills = self._cgroup.num_oom_kills()

    def _blame(self) -> str:
        worker = self._worker
        if worker is None:
            return ""
        if self._cgroup is not None and self._cgroup.num_oom_kills() > self._num_oom_kills:
            return "it ran out of memory"
        if process_state(worker.pid) in ("T", "t"):
            return "it stopped what watches over it"
        with suppress(subprocess.TimeoutExpired):
            # code and worker are the same user, so its signals reach the worker
            if not self._is_root and worker.wait(2.0) < 0:
                return f"it sent signal {-worker.returncode} to what watches over it"
        return ""

    def _post_mortem(self) -> str:
        assert self._worker is not None  # the worker was connected
        try:
            code = self._worker.wait(2.0)
        except subprocess.TimeoutExpired:
            return "its line to the host broke"
        words = ""
        if self._worker.stderr is not None and not self._worker.stderr.closed:
            os.set_blocking(self._worker.stderr.fileno(), False)
            words = (self._worker.stderr.read() or b"").decode(errors="replace").strip()
        return f"the worker ended with {code}{': ' + words[-500:] if words else ''}"


def _started(command: list[str], inside: Inside) -> subprocess.Popen[bytes]:
    """Start a worker without any environment variables of the host."""
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=inside.environment(),
            cwd="/",
            start_new_session=True,  # Ctrl-C must reach only the host process
        )
    except OSError as error:
        raise SandboxUnavailableError(f"{command[0]} does not start: {error.strerror}") from error


def _stream_of(worker: subprocess.Popen[bytes]) -> Stream:
    assert worker.stdin is not None and worker.stdout is not None  # both pipes were requested
    stdin, stdout = worker.stdin, worker.stdout

    def close() -> None:
        for pipe in (stdin, stdout):
            with suppress(OSError):
                pipe.close()

    return Stream(stdout.fileno(), stdin.fileno(), close)
