"""The first process inside a sandbox. It runs one job after the other for the host and leaves no process running.

If possible it is process 1, and root with few capabilities. It changes to the agent's user for each job, so that jobs
can neither signal nor trace it. The host communicates with it over standard input and output:

    host:    uint32 length, JSON request (``payload``: number of bytes of the job's standard input that follow), payload
    worker:  one byte kind, uint32 length, bytes; kinds are R (JSON reply, ends the job), O (stdout), E (stderr)

When its standard input ends, the host is gone, and the worker kills all processes and exits.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import struct
import sys
import time
from contextlib import suppress
from typing import Any

from agentgym.sandboxes.inside.files import CHUNK
from agentgym.sandboxes.inside.spare import Spare, write_all
from agentgym.sandboxes.inside.traces import clear_shared_objects, clear_traces, lines_of

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 36, 38
SWEEP_PATIENCE_S = 5.0
OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
libc = ctypes.CDLL(None, use_errno=True)
Settings = dict[str, Any]
"""Settings from :mod:`agentgym.sandboxes.launch`: sweep, workspace, writable, users, env, rlimits."""


class HostGone(Exception):
    """The connection to the host has ended."""


class Host:
    """The connection to the host."""

    def __init__(self) -> None:
        self.read_fd, self.write_fd = os.dup(0), os.dup(1)  # programs must not inherit these descriptors
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.close(null)
        self._unsent = bytearray()

    def request(self) -> bytes:
        """Read the next request, which is JSON. Raises HostGone at the end of input."""
        (length,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(length)

    def some(self, count: int) -> bytes:
        """Read at most ``count`` bytes. Raises HostGone at the end of input."""
        data = os.read(self.read_fd, min(count, CHUNK))
        if not data:
            raise HostGone
        return data

    def send(self, kind: bytes, data: bytes) -> None:
        """Send a frame, at the latest with the reply."""
        self._unsent += struct.pack(">cI", kind, len(data)) + data
        if len(self._unsent) > CHUNK:
            self._flush()

    def reply(self, **fields: object) -> None:
        """Send the JSON reply that ends a job."""
        self.send(b"R", json.dumps(fields).encode())
        self._flush()

    def _flush(self) -> None:
        data, self._unsent = self._unsent, bytearray()
        write_all(self.write_fd, data)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            data += self.some(count - len(data))
        return data


class Job:
    """A request that runs in a separate process, the spare one."""

    def __init__(self, settings: Settings, host: Host, wake_fd: int, spare: Spare, request: dict[str, Any]) -> None:
        self.settings, self.host, self.wake_fd = settings, host, wake_fd
        self.spare, self.request = spare, request
        self.pid, self.stdin, self.has_stdin = spare.pid, spare.stdin, True
        self.outputs = {spare.stdout: b"O", spare.stderr: b"E"}
        self.report_fd = spare.report
        self.remaining: int = request["payload"]  # bytes of its standard input that the host has not sent yet
        self.pending = b""  # bytes received from the host that the process has not read yet
        self.num_kept = {b"O": 0, b"E": 0}
        self.is_cut = {b"O": False, b"E": False}
        self.exit: tuple[int, float] | None = None  # wait status, seconds of CPU time

    def run(self, line: bytes) -> None:
        """Start the job, forward its input and output until it ends, and send the reply.

        Args:
            line: the request as it arrived.
        """
        num_oom_kills, start = oom_kills(), time.monotonic()
        self.spare.start(line)
        is_over = self._watch(start + self.request["timeout_s"])
        is_clean = sweep(self.settings, self._ended)
        clear_shared_objects(self.settings)
        if is_clean:
            self._drain()
        while self.remaining:
            self._take()
        status, cpu_s = self.exit or (signal.SIGKILL, 0.0)
        exit_code = -(status & 127) if status & 127 else status >> 8
        limit = "wall" if is_over else "memory" if oom_kills() > num_oom_kills else ""
        self.host.reply(
            exit_code=exit_code,
            limit=limit or ("cpu" if exit_code == -signal.SIGXCPU else ""),
            stdout_cut=self.is_cut[b"O"],
            stderr_cut=self.is_cut[b"E"],
            wall_s=time.monotonic() - start,
            cpu_s=cpu_s,
            refused=json.loads(self._report() or b"null"),
            clean=is_clean,
        )

    def _watch(self, deadline: float) -> bool:
        """Forward input and output until the process ends or its time is up. Return True if its time was up."""
        while self.exit is None:
            if self.has_stdin and not self.pending and not self.remaining:
                self._close_stdin()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return True
            poll = select.poll()
            poll.register(self.wake_fd, select.POLLIN)
            poll.register(self.host.read_fd, select.POLLIN if self._wants_input() else 0)
            for fd in self.outputs:
                poll.register(fd, select.POLLIN)
            if self.has_stdin:
                poll.register(self.stdin, select.POLLOUT if self.pending else 0)
            self._handle(dict(poll.poll(max(1, int(left_s * 1000)))))
        return False

    def _wants_input(self) -> bool:
        return self.remaining > 0 and len(self.pending) < CHUNK

    def _handle(self, ready: dict[int, int]) -> None:
        for fd in [fd for fd in ready if fd in self.outputs]:
            self._forward(fd)
        if self.host.read_fd in ready:
            if self._wants_input():
                self._take()
            elif ready[self.host.read_fd] & (select.POLLHUP | select.POLLERR):
                raise HostGone
        if self.has_stdin and self.stdin in ready:
            self._feed()
        if self.wake_fd in ready:
            os.read(self.wake_fd, CHUNK)
            with suppress(ChildProcessError):
                while reaped(self._ended):
                    pass

    def _ended(self, pid: int, status: int, cpu_s: float) -> None:
        if pid == self.pid:
            self.exit = status, cpu_s

    def _take(self) -> None:
        data = self.host.some(self.remaining)
        self.remaining -= len(data)
        if self.has_stdin:
            self.pending += data

    def _feed(self) -> None:
        try:
            self.pending = self.pending[os.write(self.stdin, self.pending) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # the process has closed its input, so the rest is dropped
            self._close_stdin()

    def _close_stdin(self) -> None:
        self.pending, self.has_stdin = b"", False
        os.close(self.stdin)

    def _forward(self, fd: int) -> bool:
        """Forward one read of output. Return False if there is nothing more to read at the moment."""
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            os.close(fd)
            del self.outputs[fd]
            return False
        kind = self.outputs[fd]
        keep = data[: self.request["output_bytes"] - self.num_kept[kind]]
        self.is_cut[kind] = self.is_cut[kind] or len(keep) < len(data)
        self.num_kept[kind] += len(keep)
        if keep:
            self.host.send(kind, keep)
        return True

    def _drain(self) -> None:
        """Forward the remaining output after the end of all processes."""
        for fd in list(self.outputs):
            while self._forward(fd):
                pass
            if fd in self.outputs:
                os.close(fd)
        if self.has_stdin:
            self._close_stdin()

    def _report(self) -> bytes:
        """Return what the process reported, which fits into the pipe and is read after the process has ended."""
        report = b""
        with suppress(BlockingIOError):
            report = os.read(self.report_fd, CHUNK)
        os.close(self.report_fd)
        return report


def main() -> None:
    """Answer the host's requests until it is gone."""
    settings: Settings = json.loads(sys.argv[1])
    if settings["sweep"] == "namespace" and os.getpid() != 1:  # its sweep would kill all processes of its user
        sys.exit("the worker is not process 1 of a process namespace of its own")
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(name, signal.SIG_IGN)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans of jobs become children of this process
    # so that a job of the same user can neither trace this process nor read its memory
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _inherit_no_capability()
    sys.path[:] = trusted_path(sys.path, settings["writable"])
    os.umask(0o022)
    os.environ.clear()
    os.environ.update(settings["env"])
    host = Host()
    agent = settings["users"]["agent"]
    if agent is not None and os.stat(settings["workspace"]).st_uid != agent[0]:
        os.chown(settings["workspace"], *agent)
    wake_fd, notify_fd = os.pipe()
    os.set_blocking(notify_fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notify_fd, warn_on_full_buffer=False)
    clear_traces(settings)  # an earlier sandbox may have had the same users
    gc.freeze()
    spare = Spare(settings)
    host.reply(ready=True, python=sys.version.split()[0])
    try:
        while True:
            spare = _serve(settings, host, wake_fd, spare)
    except (HostGone, BrokenPipeError):
        pass
    finally:
        spare.discard()
        if sweep(settings):
            clear_traces(settings)


def _serve(settings: Settings, host: Host, wake_fd: int, spare: Spare) -> Spare:
    """Answer one request. Return the process for the next job."""
    line = host.request()
    request = json.loads(line)
    if spare.has_ended():
        spare = Spare(settings)
    if request["op"] == "ping":  # the answer says that a process for the next job is there
        host.reply(ok=True)
        return spare
    if request["op"] == "reset":
        spare.discard()
        problem = reset(settings)
        host.reply(problem=problem)
        # start a new interpreter, so that no data of earlier jobs stay in memory; it reports ready again
        if not problem:
            os.dup2(host.read_fd, 0)
            os.dup2(host.write_fd, 1)
            signal.set_wakeup_fd(-1)
            os.execv(sys.executable, [sys.executable, *sys.argv[3:], *sys.argv[1:]])
        return Spare(settings)
    Job(settings, host, wake_fd, spare, request).run(line)
    return Spare(settings)


def trusted_path(path: list[str], writable: list[str]) -> list[str]:
    """Return the import path without folders that jobs can write to.

    ``python -I`` is no alternative: it would also ignore PYTHONHASHSEED, so that the order of sets would differ between
    calls. The sandbox sets all variables, but an image's PYTHONPATH may still name the workspace.
    """
    places = [os.path.realpath(place) for place in writable]
    return [
        folder
        for folder in path
        if os.path.isabs(folder)
        and not any((os.path.realpath(folder) + os.sep).startswith(place + os.sep) for place in places)
    ]


def _inherit_no_capability() -> None:
    """Clear inheritable capabilities. The process's other capabilities are dropped with the change of user."""
    head = ctypes.create_string_buffer(struct.pack("Ii", 0x20080522, 0), 8)  # capability version 3, this process
    words = (ctypes.c_uint32 * 6)()  # two words each of effective, permitted, inheritable
    libc.capget(head, words)
    words[2] = words[5] = 0
    libc.capset(head, words)


def oom_kills() -> int:
    """Return the number of this sandbox's processes that the kernel killed because of memory, if it is visible."""
    for path in OOM_COUNTERS:
        with suppress(OSError):
            return next((int(line.split()[1]) for line in lines_of(path) if line.startswith("oom_kill ")), 0)
    return 0


def reaped(ended: Any) -> bool:
    """Reap one finished child. Return False if there is none; raise ChildProcessError if there are no children."""
    pid, status, usage = os.wait4(-1, os.WNOHANG)
    if pid and ended is not None:
        ended(pid, status, usage.ru_utime + usage.ru_stime)
    return pid != 0


def sweep(settings: Settings, ended: Any = None) -> bool:
    """Kill all processes that jobs left and wait for them. Return True if none is left."""
    deadline = time.monotonic() + SWEEP_PATIENCE_S
    while time.monotonic() < deadline:
        if settings["sweep"] == "namespace":  # as process 1, this kills all others of the namespace at once
            with suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        elif settings["sweep"] == "user":
            kill_all_of(settings["users"])
        else:
            _kill_descendants()
        try:
            while reaped(ended):
                pass
        except ChildProcessError:
            return True
        time.sleep(0.0005)
    return False


def kill_all_of(users: dict[str, list[int]]) -> None:
    """Kill all processes of this sandbox's own users at once."""
    pid = os.fork()
    if pid == 0:
        try:
            become_sweeper(users)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def become_sweeper(users: dict[str, list[int]]) -> None:
    """Change the user ids so that this process may signal both users and the agent may not signal it.

    With the agent's real user id, the agent could stop it, and the worker would wait for ever.
    """
    (agent, _), (grader, group) = users["agent"], users["grader"]
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(grader, agent, grader)


def _kill_descendants() -> None:
    """Kill the descendants of this process. A process that forks faster than /proc is read can escape.

    All are stopped first, parents before children, since a shell whose program is killed would run its next line.
    """
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                parents[int(entry)] = int(file.read().rpartition(b")")[2].split()[1])
    below, new = list[int](), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - set(below)
        below += new
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in below:
            with suppress(OSError):
                os.kill(pid, number)


def reset(settings: Settings) -> str:
    """Remove everything that jobs left. Return a text about problems, or an empty text."""
    if not sweep(settings):
        return "there are processes that do not end"
    return clear_traces(settings)
