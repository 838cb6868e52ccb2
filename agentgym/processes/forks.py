"""A process that has loaded a program, and forks one process for each job.

The program's Python runs this file by itself: ``python forks.py CONTROL_FD GUARD PROGRAM``. ``GUARD`` is the path of
:mod:`agentgym.processes.guard`. ``PROGRAM`` is the path of a file with functions for jobs, and with a function ``load``
if importing it does not load everything. Loading takes seconds, and a fork takes milliseconds.

Each message on the control socket is a job, with a socket attached. A job's socket first carries its process id and
its port, and at last its exit code. The job ends when its owner shuts the socket down, or is gone.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import random
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

_LARGEST_MESSAGE = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(control: socket.socket, guard: Any, program: Any) -> None:
    """Load the program, and fork for each job until the owner is gone."""
    if hasattr(program, "load"):
        program.load()
    gc.collect()
    gc.freeze()  # so that collection in the forks does not copy what they share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    while True:
        message, files, _, _ = socket.recv_fds(control, _LARGEST_MESSAGE, 1)
        if not files:
            return
        with socket.socket(fileno=files[0]) as owner:
            if os.fork() == 0:
                control.close()
                watch(owner, json.loads(message), guard, program)


def watch(owner: socket.socket, job: dict[str, Any], guard: Any, program: Any) -> None:
    """Run a job in a further process until it ends or its owner ends it, kill everything below, and exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    listening = socket.create_server(("127.0.0.1", 0), backlog=128) if job["listens"] else None
    watcher, port = os.getpid(), listening.getsockname()[1] if listening else 0
    try:  # before the job begins, which may kill this process at once
        owner.sendall(json.dumps({"pid": watcher, "port": port}).encode() + b"\n")
    except OSError:  # the owner is gone
        os._exit(0)
    child = os.fork()
    if child == 0:
        owner.close()
        run(getattr(program, job["function"]), job, listening, watcher)
    if listening:
        listening.close()
    try:
        select.select([owner.fileno(), os.pidfd_open(child)], [], [])
        pid, status = os.waitpid(child, os.WNOHANG)
        guard.kill_below()
        if pid:
            owner.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    except OSError:  # the owner is gone
        guard.kill_below()
    finally:
        os._exit(0)


def run(function: Callable[..., object], job: dict[str, Any], listening: socket.socket | None, watcher: int) -> None:
    """Do a job in its own folder, with variables of its own, and exit."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != watcher:  # it has ended before the call
            return
        os.chdir(job["folder"])
        os.environ.update(job["variables"])
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        random.seed()  # or all jobs would draw the same numbers
        function(*([listening] if listening else []), *job["arguments"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        print(end.code or "", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _load_file(name: str, path: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), _load_file("guard", sys.argv[2]), _load_file("program", sys.argv[3]))
