"""The process that one job runs in: gives up every right, then does what was asked. Nothing here returns."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import signal
import sys
import traceback
import types
from collections.abc import Sequence
from contextlib import suppress
from resource import (
    RLIMIT_AS,
    RLIMIT_CORE,
    RLIMIT_CPU,
    RLIMIT_FSIZE,
    RLIMIT_MEMLOCK,
    RLIMIT_NOFILE,
    RLIMIT_NPROC,
    setrlimit,
)
from typing import Any

from agentgym.sandboxes.inside.files import OPERATIONS, Refused, folder_in

RESOURCES = {
    "cpu": RLIMIT_CPU,
    "fsize": RLIMIT_FSIZE,
    "nofile": RLIMIT_NOFILE,
    "nproc": RLIMIT_NPROC,
    "as": RLIMIT_AS,
    "core": RLIMIT_CORE,
    "memlock": RLIMIT_MEMLOCK,
    "msgqueue": 12,
}
PR_SET_DUMPABLE = 4
_KEYCTL_NUMBERS = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
_KEYCTL_JOIN_SESSION_KEYRING = 1
REPORT_FD = 3
_KINDS = {
    errno.ENOENT: "not_found",
    errno.EISDIR: "is_a_folder",
    errno.ENOTDIR: "is_a_file",
    errno.EACCES: "not_permitted",
    errno.EPERM: "not_permitted",
    errno.ENOSPC: "no_space",
    errno.EFBIG: "too_large",
}
libc = ctypes.CDLL(None, use_errno=True)


def run_job(settings: dict[str, Any], request: dict[str, Any], streams: Sequence[int], report_fd: int) -> None:
    """Everything after the fork. ``report_fd`` takes what goes wrong before the agent's code has its way."""
    code = 126
    try:
        _detach(streams, report_fd)
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # should memory run out, the kernel ends jobs and not the worker
        for name, value in settings["rlimits"].items():
            hard = value + 1 if name == "cpu" else value  # first SIGXCPU, which says why; then SIGKILL
            setrlimit(RESOURCES[name], (value, hard))
        become(settings["users"][request["user"]])
        keyctl(_KEYCTL_JOIN_SESSION_KEYRING, 0)  # or it would share that of whoever started the worker
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # or it could not open its own /proc/self/fd
        os.environ.update(request.get("env", {}))
        _enter(settings["workspace"], request.get("cwd", "."))
        code = _work(settings, request)
    except Refused as refusal:
        _report(*refusal.args)
    except OSError as error:
        _report(_KINDS.get(error.errno or 0, "failed"), f"{request.get('path', error.filename)}: {error.strerror}")
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _enter(workspace: str, cwd: str) -> None:
    """Change to the workspace or a folder in it. What the agent closed to itself, which it owns, is opened again."""
    try:
        os.chdir(workspace)
    except PermissionError:
        os.chmod(workspace, 0o700)
        os.chdir(workspace)
    if cwd != ".":
        os.chdir(folder_in(workspace, cwd))


def keyctl(operation: int, *arguments: int) -> int:
    """Do something with the kernel's keys; -1 if that is not allowed, or not known on this kind of machine."""
    number = _KEYCTL_NUMBERS.get(os.uname().machine)
    if number is None:
        return -1
    return int(libc.syscall(number, operation, *map(ctypes.c_long, arguments)))


def become(user: Sequence[int] | None) -> None:
    """Change to another user for good; None means that there is none to change to."""
    if user is not None:
        uid, gid = user
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _detach(streams: Sequence[int], report_fd: int) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    report_fd = os.dup2(report_fd, max(report_fd, *streams) + 1, inheritable=False)
    for target, fd in enumerate(streams):
        os.dup2(fd, target)
    os.dup2(report_fd, REPORT_FD, inheritable=False)
    os.closerange(REPORT_FD + 1, 1024)


def _work(settings: dict[str, Any], request: dict[str, Any]) -> int:
    if request["op"] in OPERATIONS:
        OPERATIONS[request["op"]](settings["workspace"], request)
        return 0
    if request["op"] == "python":
        os.close(REPORT_FD)
        return _run_code(request["code"])
    return _run_program(request["argv"])


def _report(kind: str, words: str) -> None:
    with suppress(OSError):
        os.write(REPORT_FD, json.dumps([kind, words]).encode())


def _run_program(argv: Sequence[str]) -> int:
    try:
        os.execvpe(argv[0], list(argv), os.environ)
    except FileNotFoundError:
        os.write(2, f"{argv[0]}: not found\n".encode())
        return 127
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        return 126


def _run_code(code: str) -> int:
    """As ``python3 -c`` would, in this very process."""
    sys.argv = ["-c"]
    sys.path.insert(0, "")  # the worker itself never imports from where jobs can write
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # what was printed before a time-out is not lost
    exit_code = 0
    try:
        exec(compile(code, "<string>", "exec"), module.__dict__)
    except SystemExit as stop:
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
        exit_code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        exit_code = 1
    return _finish(exit_code) & 255


def _finish(exit_code: int) -> int:
    """Do what an interpreter does at its end: wait for threads, call what was registered for the exit, flush."""
    try:
        if threading := sys.modules.get("threading"):
            threading._shutdown()
        __import__("atexit")._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        return exit_code or 120
    return exit_code
