"""The process of one job, which waits for a request, drops all privileges, and executes it. :func:`run_job` does not
return.
"""

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
    RLIM_INFINITY,
    RLIMIT_AS,
    RLIMIT_CORE,
    RLIMIT_CPU,
    RLIMIT_FSIZE,
    RLIMIT_MEMLOCK,
    RLIMIT_NOFILE,
    RLIMIT_NPROC,
    getrlimit,
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
_KEYCTL_GET_KEYRING_ID, _KEYCTL_JOIN_SESSION_KEYRING = 0, 1
REPORT_FD, ORDER_FD = 3, 4
_WORDS = 160  # characters, of up to twelve bytes in JSON
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


def run_job(settings: dict[str, Any], streams: Sequence[int], report_fd: int, order_fd: int) -> None:
    """Read a request from ``order_fd`` and execute it; without one, exit.

    Errors before the agent's code starts are written to ``report_fd``.
    """
    code, path = 126, None
    try:
        _detach((*streams, report_fd, order_fd))
        with suppress(OSError):
            _write("/proc/self/oom_score_adj", b"1000")  # if memory runs out, jobs are killed before the worker
        _limit(settings["rlimits"])
        _warm_up()
        request = _order()
        path = request.get("path")
        become(settings["users"][request["user"]])
        # otherwise the job would share the session keyring of the process that started the worker
        keyctl(_KEYCTL_JOIN_SESSION_KEYRING, 0)
        libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # otherwise the job could not open its own /proc/self/fd
        os.environ.update(request.get("env", {}))
        _enter(settings["workspace"], request.get("cwd", "."))
        code = _work(settings, request)
    except Refused as refusal:
        _report(*refusal.args)
    except OSError as error:
        _report(_KINDS.get(error.errno or 0, "failed"), f"{path or error.filename}: {error.strerror}")
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
        os._exit(code)


def _limit(rlimits: dict[str, int]) -> None:
    """Set the limits of the job, or those of this process where they are lower: only root may raise them."""
    for name, value in rlimits.items():
        limits = [value, value + 1 if name == "cpu" else value]  # first SIGXCPU, which identifies it, then SIGKILL
        most = getrlimit(RESOURCES[name])[1]
        if most != RLIM_INFINITY:
            limits = [min(limit, most) for limit in limits]
        setrlimit(RESOURCES[name], (limits[0], limits[1]))


def _write(path: str, data: bytes) -> None:
    """Write to a file of the kernel, without the buffers of ``open``."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


def _warm_up() -> None:
    """Run what every job runs, so that memory shared with the worker is copied before a request arrives."""
    json.loads(json.dumps({"code": "print(1)"}))
    exec(compile("[str(number) for number in range(9)]", "<string>", "exec"), types.ModuleType("warm").__dict__)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    keyctl(_KEYCTL_GET_KEYRING_ID, 0)


def _order() -> dict[str, Any]:
    """Wait for the request. Without one, the worker is gone or does not need this process."""
    data = bytearray()
    while part := os.read(ORDER_FD, 1 << 16):
        data += part
    os.close(ORDER_FD)
    if not data:
        os._exit(0)
    request: dict[str, Any] = json.loads(data)
    return request


def _enter(workspace: str, cwd: str) -> None:
    """Change to the workspace or a folder in it. Restore access to folders that the agent owns and has closed to
    itself.
    """
    try:
        os.chdir(workspace)
    except PermissionError:
        os.chmod(workspace, 0o700)
        os.chdir(workspace)
    if cwd != ".":
        os.chdir(folder_in(workspace, cwd))


def keyctl(operation: int, *arguments: int) -> int:
    """Call keyctl. Return -1 if it is not allowed or not supported on this machine."""
    number = _KEYCTL_NUMBERS.get(os.uname().machine)
    if number is None:
        return -1
    return int(libc.syscall(number, operation, *map(ctypes.c_long, arguments)))


def become(user: Sequence[int] | None) -> None:
    """Change to another user permanently. None means that there is no other user."""
    if user is not None:
        uid, gid = user
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def _detach(fds: Sequence[int]) -> None:
    """Leave the worker's session, and keep ``fds`` alone, numbered from 0."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    # two rounds, since a number that is needed may belong to another of them
    high = [os.dup2(fd, max(fds) + 1 + at, inheritable=False) for at, fd in enumerate(fds)]
    for target, fd in enumerate(high):
        os.dup2(fd, target, inheritable=target < REPORT_FD)
    os.closerange(ORDER_FD + 1, 1024)


def _work(settings: dict[str, Any], request: dict[str, Any]) -> int:
    if request["op"] in OPERATIONS:
        OPERATIONS[request["op"]](settings["workspace"], request)
        return 0
    if request["op"] == "python":
        os.close(REPORT_FD)
        return _run_code(request["code"])
    return _run_program(request["argv"])


def _report(kind: str, words: str) -> None:
    """Report an error, shortened so that it fits into the smallest pipe, one page: the worker reads it afterwards."""
    if len(words) > 2 * _WORDS:
        words = f"{words[:_WORDS]} ... {words[-_WORDS:]}"
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
    """Run code in this process as ``python3 -c`` would."""
    sys.argv = ["-c"]
    sys.path.insert(0, "")  # the worker itself never imports from folders that jobs can write to
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # unbuffered, so that output before a time-out is not lost
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
    """Finish like an interpreter: wait for threads, run exit handlers, and flush."""
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
