"""The process with the tests. It never loads the work, and only its standard output carries the verdict.

It protects itself against other processes of its user, which can then neither trace it nor open its memory or
descriptors. It starts the process with the work and only then reads the tests from its standard input; no file contains
them. Each test's result is one line of JSON on the real standard output, which the work's process never has.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import socket
import sys
from typing import Any

from agentgym.envs.code.inside.candidate import serve
from agentgym.envs.code.inside.proxies import Work, words_of
from agentgym.envs.code.inside.wire import Line, WireError, encode

PR_SET_DUMPABLE = 4


def main() -> None:
    """Execute the request on standard input: ``calls``, ``check`` or ``suite``."""
    folder = os.getcwd()
    # first of all, since this folder contains the work
    sys.path[:] = [path for path in sys.path if path not in ("", folder)]
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # output that tests print must not be taken for a verdict
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("the judge cannot protect itself from other processes")
    mine, its = socket.socketpair()
    if os.fork() == 0:
        mine.close()
        out.close()
        serve(its, folder)
    its.close()
    os.chdir("/")
    request = json.loads(sys.stdin.buffer.read())
    random.seed(0)  # so that tests with random cases draw the same ones for every submission
    work = Work(Line(mine))  # no code of the work has been loaded yet

    def tell(**fields: object) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    if request["kind"] == "suite":  # imported late, since its imports take half of the time of a small grading
        from agentgym.envs.code.inside.suite import run_suite as run
    else:
        run = {"calls": run_calls, "check": run_check}[request["kind"]]
    run(work, request, tell)
    tell(done=True)


def run_calls(work: Work, request: dict[str, Any], tell: Any) -> None:
    """Call a function with each of ``calls`` and return the values, which are compared outside."""
    tell(begun=True)
    try:
        function = _function(work, request)
    except Exception as error:
        tell(collected=False, note=words_of(error))
        return
    tell(collected=True, num_tests=len(request["calls"]))
    for number, args in enumerate(request["calls"]):
        try:
            tell(test=number, value=encode(function(*work.plain(args)), _unknown))
        except Exception as error:
            tell(test=number, error=words_of(error))


def run_check(work: Work, request: dict[str, Any], tell: Any) -> None:
    """Run trusted code that defines ``check(candidate)`` with the work's function as the candidate."""
    names: dict[str, Any] = {"__name__": "check"}
    exec(compile(request["source"], "check", "exec"), names)
    tell(begun=True)
    try:
        function = _function(work, request)
    except Exception as error:
        tell(collected=False, note=words_of(error))
        return
    tell(collected=True, num_tests=1)
    try:
        names["check"](function)
        tell(test=0, passed=True)
    except Exception as error:
        tell(test=0, passed=False, error=words_of(error))


def _function(work: Work, request: dict[str, Any]) -> Any:
    """Return the function under test. From here on, only plain values are accepted from the work."""
    function = getattr(work.load(request["module"]), request["function"])
    work.gives_plain_values = True
    return function


def _unknown(value: object) -> dict[str, object]:
    raise WireError(f"an object of the class {type(value).__name__} is not a plain value")
