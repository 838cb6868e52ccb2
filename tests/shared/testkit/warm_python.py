"""A Python process that has imported the trainer and forks for every command.

A command then does not pay for the import of torch and transformers, which takes seconds. The forked process has the
command's arguments, folder, environment and files, and ends with its exit code. It shares nothing with other commands.

As a program: ``warm_python.py serve SOCKET`` serves, ``warm_python.py run SOCKET ARGUMENT...`` runs what
``python ARGUMENT...`` would. With options of Python other than ``-c``, ``-m`` and ``-u``, that is Python itself. With
``WARM_PYTHON`` in its environment, which names a program that does the same, a command starts its children by that
program too: it is the command's ``sys.executable``.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import NoReturn

LONGEST_REQUEST = 1 << 20


class Command:
    """A command that runs in a forked process.

    Args:
        address: the socket of the server.
        arguments: the arguments of ``python``.
        files: standard input, output and error.
        environment: added to that of this process.
    """

    def __init__(
        self,
        address: str,
        arguments: list[str],
        files: tuple[int, int, int] = (0, 1, 2),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.connect(address)
        told = {"arguments": arguments, "cwd": os.getcwd(), "environment": {**os.environ, **(environment or {})}}
        socket.send_fds(self._line, [json.dumps(told).encode()], list(files))
        self.pid = int(self._line.recv(64))

    def wait(self) -> int:
        """Return the exit code, as a shell would: 128 and the signal for a process that was killed."""
        with self._line:
            answer = self._line.recv(64)
        return int(answer) if answer else 1

    def is_running(self) -> bool:
        """Return True while the command is running."""
        return not select.select([self._line], [], [], 0)[0]

    def kill(self) -> None:
        """Kill the process as ``kill -9`` does, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()


def serve(address: str) -> None:
    """Import what commands need, then fork one process per request until the process ends."""
    import torch.utils.tensorboard  # noqa: F401
    import transformers.models.qwen3.modeling_qwen3  # noqa: F401
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    import agentgym.cli.eval
    import agentgym.cli.main
    import agentgym.cli.train
    import agentgym.report
    import agentgym.trainers.train  # noqa: F401
    from agentgym.rollout import journal

    # what each of them would look up once
    get_checkpoint_conversion_mapping("qwen3")  # type: ignore[no-untyped-call]
    journal.made_with()
    gc.collect()
    gc.freeze()  # so that collection in the forks does not copy what they share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the processes that wait for commands are not waited for
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(address)
        door.listen(64)
        print("ready", flush=True)
        while True:
            line, _ = door.accept()
            with line:
                if os.fork() == 0:
                    door.close()
                    _answer(line)


def _answer(line: socket.socket) -> NoReturn:
    """Run one command in a separate process, and send its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, files, _, _ = socket.recv_fds(line, LONGEST_REQUEST, 3)
    worker = os.fork()
    if worker == 0:
        line.close()
        _work(json.loads(data), files)
    line.send(str(worker).encode())
    for file in files:
        os.close(file)
    _wait(worker, line)
    _, status = os.waitpid(worker, 0)
    code = os.waitstatus_to_exitcode(status)
    line.send(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def _wait(worker: int, line: socket.socket) -> None:
    """Wait until the command has ended; it is terminated when the process that asked for it has gone."""
    ended, events = os.pidfd_open(worker), select.poll()
    events.register(ended, select.POLLIN)
    events.register(line, select.POLLHUP)
    while all(file != ended for file, _ in events.poll()):
        events.unregister(line)
        os.kill(worker, signal.SIGTERM)


def _work(request: dict[str, object], files: list[int]) -> NoReturn:
    import atexit
    import threading
    import traceback

    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # as the interpreter opens them: a stream that is replaced does not close its descriptor
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode, closefd=False) for number, mode in enumerate("rww"))  # noqa: SIM115
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    sys.executable = os.environ.get("WARM_PYTHON", sys.executable)
    sys.path += [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path not in sys.path]
    try:
        _execute(list(request["arguments"]))  # type: ignore[call-overload]
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    # what the interpreter does at its end
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _execute(arguments: list[str]) -> None:
    first, *rest = arguments[1:] if arguments[0] == "-u" else arguments
    sys.modules["__main__"] = main = ModuleType("__main__")
    if first == "-c":
        sys.argv, sys.path[:1] = ["-c", *rest[1:]], [""]
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    elif first == "-m":
        sys.argv, sys.path[:1] = rest, [os.getcwd()]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[:1] = [first, *rest], [str(Path(first).resolve().parent)]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    elif sys.argv[3].startswith("-") and sys.argv[3] not in ("-c", "-m", "-u"):
        os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
    else:
        sys.exit(Command(sys.argv[2], sys.argv[3:]).wait())
