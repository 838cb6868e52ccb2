"""A process that has loaded AppWorld, and forks one process for each server and each run of a task's tests.

AppWorld's Python runs this file by itself: ``python forks.py CONTROL_FD GUARD``. ``GUARD`` is the path of
:mod:`agentgym.envs.gui.guard`. Loading AppWorld takes seconds, and a fork takes milliseconds.

Each message on the control socket is a job, with a socket attached. A job's socket first carries its process id and
its port, and at last its exit code. The job ends when its owner shuts the socket down, or is gone.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_LARGEST_MESSAGE = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(control: socket.socket, guard: Any) -> None:
    """Load AppWorld, and fork for each job until the owner is gone."""
    load()
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
                watch(owner, json.loads(message), guard)


def load() -> None:
    """Import what the server and the tests import, the apps included, which they would import later."""
    for name in ("uvicorn", "appworld.serve.environment", "appworld.evaluator"):
        importlib.import_module(name)
    utils: Any = importlib.import_module("appworld.common.utils")
    for name in importlib.import_module("appworld.apps").get_all_apps():
        utils.import_apis_module(name)
        utils.import_models_module(name)


def watch(owner: socket.socket, job: dict[str, Any], guard: Any) -> None:
    """Run a job in a further process until it ends or its owner ends it, kill everything below, and exit."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    listening = socket.create_server(("127.0.0.1", 0), backlog=128) if job["name"] == "serve" else None
    watcher = os.getpid()
    child = os.fork()
    if child == 0:
        owner.close()
        run(job, listening, watcher)
    port = listening.getsockname()[1] if listening else 0
    if listening:
        listening.close()
    try:
        owner.sendall(json.dumps({"pid": watcher, "port": port}).encode() + b"\n")
        select.select([owner.fileno(), os.pidfd_open(child)], [], [])
        pid, status = os.waitpid(child, os.WNOHANG)
        guard.kill_below()
        if pid:
            owner.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
    except OSError:  # the owner is gone
        guard.kill_below()
    finally:
        os._exit(0)


def run(job: dict[str, Any], listening: socket.socket | None, watcher: int) -> None:
    """Do a job in its own folder, with its own variables, and exit."""
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != watcher:  # it has ended before the call
            return
        os.chdir(job["folder"])
        os.environ.clear()
        os.environ.update(job["variables"])
        log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        serve(listening) if listening else judge(*job["words"])
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


def serve(listening: socket.socket) -> None:
    """Run AppWorld's server; `appworld serve environment` listens on all addresses of the machine."""
    uvicorn: Any = importlib.import_module("uvicorn")
    app = importlib.import_module("appworld.serve.environment").app
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


def judge(name: str, experiment: str, path: str) -> None:
    """Run the tests of one task, as `appworld evaluate` does, and write the result."""
    found = importlib.import_module("appworld.evaluator").evaluate_task(name, experiment_name=experiment)
    Path(path).write_text(json.dumps(found.to_dict()), encoding="utf-8")


def _start(arguments: Sequence[str]) -> None:
    spec = importlib.util.spec_from_file_location("guard", arguments[1])
    assert spec is not None and spec.loader is not None
    guard = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(guard)
    main(socket.socket(fileno=int(arguments[0])), guard)


if __name__ == "__main__":
    _start(sys.argv[1:])
