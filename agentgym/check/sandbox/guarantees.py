"""Checks of a sandbox: the guarantees that it claims, its start and its end."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from agentgym.check.report import CheckFailed
from agentgym.check.sandbox.subject import NOT_CLAIMED, PROGRAMS, SandboxSubject, demand, done, expect
from agentgym.errors import AgentGymError, ClosedError, SandboxRefusedError
from agentgym.sandbox import GUARANTEES

_PLACES = ("/", "/etc", "/usr", "/usr/bin", "/root", "/home", "/var", "/var/tmp", "/run", "/opt", "/dev", "/proc/sys")


def filesystem(subject: SandboxSubject) -> str:
    """Check that code cannot read the host's private files, and can write only to workspace and temporary folders."""
    if not subject.claims("filesystem"):
        return NOT_CLAIMED.format("filesystem")
    sandbox = subject.sandbox
    for folder in (None, str(Path.cwd())):
        try:
            with tempfile.NamedTemporaryFile("w", dir=folder, prefix="agentgym-check-") as file:
                file.write("of the host")
                file.flush()
                Path(file.name).chmod(0o644)
                demand(not sandbox.exec(["cat", file.name]).ok, f"{file.name} of the host can be read")
        except PermissionError:  # no file can be created there
            continue
    for name in ("/etc/shadow", "/var/run/docker.sock", "/run/docker.sock", "/root/.ssh", "/dev/sda", "/dev/mem"):
        found = sandbox.exec(["head", "-c", "1", name])
        demand(not found.ok, f"{name} can be read")
    name = f"agentgym-check-{uuid.uuid4().hex}"
    for place in _PLACES:
        try:
            demand(not sandbox.exec(["touch", f"{place}/{name}"]).ok, f"{place} can be written")
        finally:
            with suppress(OSError):  # the path does not exist, or this user may not list it
                Path(place, name).unlink()
    demand(not sandbox.exec("echo 1 > /proc/sys/kernel/printk").ok, "settings of the kernel can be written")
    return "no file of the host can be read; nothing else can be written"


def network(subject: SandboxSubject) -> str:
    """Check that host, name servers and other addresses cannot be reached, and that loopback works inside."""
    if not subject.claims("network"):
        return NOT_CLAIMED.format("network")
    with socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        said = done(subject.sandbox.run_python(PROGRAMS["network"].format(port=port))).stdout
        expect("from inside", said, "[]\nown loop-back works\n")
    return "neither host nor names nor addresses are reached; its own loop-back is"


def memory(subject: SandboxSubject) -> str:
    """Check that all processes together cannot exceed the memory limit, and that the sandbox survives the attempt."""
    grab = "x = bytearray({} << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('got it')"
    with subject.other(memory_mb=320, workspace_mb=32, tmp_mb=16) as sandbox:
        result = sandbox.run_python(grab.format(1000))
        demand("got it" not in result.stdout, "one process had 1000 MiB of 320")
        expect("the next call", done(sandbox.run_python(grab.format(50))).stdout, "got it\n")
        if not subject.claims("memory"):
            return "one process cannot; " + NOT_CLAIMED.format("memory of all together")
        expect("limit", result.limit, "memory")
        several = f"import os, time\nfor _ in range(4):\n  if not os.fork(): break\n{grab.format(150)}\ntime.sleep(20)"
        result = sandbox.run_python(several, timeout_s=10)
        demand(
            result.limit == "memory" or result.stdout.count("got it") < 4, "5 x 150 MiB were had with a limit of 320"
        )
        sandbox.exec("head -c 100000000 /dev/zero > /tmp/a; head -c 100000000 /dev/zero > b")
        expect("after filling what lies in memory", done(sandbox.exec(["echo", "fine"])).stdout, "fine\n")
    return "neither one process nor several get over the limit"


def num_processes(subject: SandboxSubject) -> str:
    """Check that there are never more processes than the limit."""
    if not subject.claims("pids"):
        return NOT_CLAIMED.format("pids")
    with subject.other(num_pids=32) as sandbox:
        result = sandbox.run_python(PROGRAMS["num_processes"], timeout_s=20)
        demand(result.stdout.strip().isdigit(), f"500 processes with a limit of 32: {result}")
        demand(int(result.stdout) <= 32, f"{result.stdout.strip()} processes with a limit of 32")
        expect("the next call", done(sandbox.exec(["echo", "fine"])).stdout, "fine\n")
    return f"stopped at {result.stdout.strip()} of 32"


def open_files(subject: SandboxSubject) -> str:
    """Check that a process cannot open more files than the limit."""
    number = done(subject.sandbox.run_python(PROGRAMS["open_files"])).stdout.strip()
    demand(number.isdigit() and int(number) <= subject.sandbox.limits.num_open_files, f"{number or 5000} files opened")
    return f"stopped at {number}"


def processor_share(subject: SandboxSubject) -> str:
    """Check that many busy processes together get no more than the sandbox's share of the CPUs."""
    if not subject.claims("cpu"):
        return NOT_CLAIMED.format("cpu")
    with subject.other(num_cpus=0.5) as sandbox:
        result = done(sandbox.run_python(PROGRAMS["processor_share"]))
    share = result.cpu_s / result.wall_s
    demand(share < 0.75, f"{share:.2f} processors with a limit of 0.5")
    return f"{share:.2f} processors with a limit of 0.5"


def own_user(subject: SandboxSubject) -> str:
    """Check that code does not run as root, cannot gain privileges, and cannot signal the worker."""
    if not subject.claims("user"):
        return NOT_CLAIMED.format("user")
    sandbox = subject.sandbox
    demand(done(sandbox.exec(["id", "-u"])).stdout.strip() != "0", "it is root")
    status = dict(line.split(":\t", 1) for line in sandbox.exec("cat /proc/self/status").stdout.splitlines())
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
        expect(name, int(status[name], 16), 0)
    expect("NoNewPrivs", status["NoNewPrivs"].strip(), "1")
    sandbox.exec("for p in /proc/[0-9]*; do kill -9 ${p#/proc/}; done; kill -9 1; kill -INT 1; kill -STOP 1")
    sandbox.run_python("import os, signal\nos.kill(-1, signal.SIGKILL)")
    expect("after killing all it may", done(sandbox.exec(["echo", "fine"])).stdout, "fine\n")
    return "no root, no capabilities, no new ones; cannot end what watches over it"


def two_users(subject: SandboxSubject) -> str:
    """Check that the agent can neither read the grader's files nor signal its processes."""
    sandbox = subject.sandbox
    try:
        result = sandbox.exec("umask 077; echo secret > $TMPDIR/graded; id -u", user="grader")
    except SandboxRefusedError:
        demand(not subject.claims("user") or "grader" not in str(sandbox.capabilities()), "claimed, but refused")
        return "not applicable: there is no user 'grader' here, which is said"
    demand(done(result).stdout != sandbox.exec("id -u").stdout, "grader and agent are the same user")
    demand(not sandbox.exec("cat $TMPDIR/graded").ok, "the agent reads the grader's file")
    expect("the grader itself", sandbox.exec("cat $TMPDIR/graded", user="grader").stdout, "secret\n")
    sandbox.write("answer", "42")
    expect("the agent's file", sandbox.exec("cat answer", user="grader").stdout, "42")
    sandbox.reset()
    expect("after a reset", done(sandbox.exec("ls -A $TMPDIR")).stdout, "")
    return "its files are closed to the agent, the agent's are open to it"


def apart(subject: SandboxSubject) -> str:
    """Check that two sandboxes cannot see each other's files or processes."""
    first = subject.sandbox
    first.write("mine", "1")
    with subject.other() as second:
        demand(first.id != second.id, "two sandboxes have one id")
        expect("files of the second", second.list(), ())
        if subject.claims("filesystem"):
            expect("sees", second.exec("cat /tmp/* /dev/shm/* 2>/dev/null").stdout, "")
        second.write("mine", "2")
        expect("file of the first", first.read("mine"), b"1")
        busy = threading.Thread(target=lambda: second.exec("exec sleep 3.21987"))
        busy.start()
        time.sleep(0.3)
        expect("a call in the first", done(first.exec(["echo", "fine"])).stdout, "fine\n")
        if subject.claims("filesystem"):
            demand("3.21987" not in first.exec("cat /proc/[0-9]*/cmdline").stdout, "sees the other's processes")
        busy.join()
    expect("after the other's end", first.read("mine"), b"1")
    return "neither files nor processes"


def capability_report(subject: SandboxSubject) -> str:
    """Check that all guarantees are reported, and that requiring one that is not in force raises an error."""
    here = subject.sandbox.capabilities()
    expect("names", sorted(guarantee.name for guarantee in here.guarantees), sorted(GUARANTEES))
    demand(all(guarantee.how for guarantee in here.guarantees), "one is given without saying how or why not")
    here.require(here.in_force)
    for name in set(GUARANTEES) - here.in_force:
        try:
            here.require({name})
        except SandboxRefusedError:
            continue
        raise CheckFailed(f"{name} is not in force and yet not refused")
    return f"in force: {', '.join(sorted(here.in_force)) or 'none'}"


def life_and_end(subject: SandboxSubject) -> str:
    """Check that the sandbox is alive until closed, that later calls raise ``ClosedError``, and that closing twice is
    harmless.
    """
    with subject.other() as sandbox:
        demand(sandbox.alive(), "not alive when opened")
        sandbox.close()
        sandbox.close()
        demand(not sandbox.alive(), "alive after close()")
        for name, call in (("exec", lambda: sandbox.exec("true")), ("read", lambda: sandbox.read("x")), ("reset", sandbox.reset)):  # fmt: skip # noqa: E501
            try:
                call()
            except ClosedError:
                continue
            raise CheckFailed(f"{name} after close() did not raise ClosedError")
    return "alive, closed, and closed for good"


def closed_in_a_call(subject: SandboxSubject) -> str:
    """Check that closing ends a running call at once with an error."""
    with subject.other() as sandbox:
        ended: list[str] = []

        def run() -> None:
            try:
                sandbox.exec("sleep 20")
                ended.append("a result")
            except AgentGymError as error:
                ended.append(type(error).__name__)

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.3)
        demand(sandbox.alive(), "not alive during a call")
        start = time.monotonic()
        sandbox.close()
        thread.join(15)
        demand(not thread.is_alive() and time.monotonic() - start < 15, "the call went on")
    expect("the call ended with", ended, ["ClosedError"])
    return "ends with ClosedError"
