"""The process that holds the tests: it never loads the work, and its standard output is the only way out for a verdict.

It makes itself closed to others of its user (neither traced nor its memory or descriptors opened), starts the process
that holds the work, and only then reads the tests from its standard input. They lie in no file. Each test's result is
one line of JSON on the real standard output, which the work's process never had.
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
    """Do what the JSON on standard input says: ``calls``, ``check`` or ``suite``."""
    folder = os.getcwd()
    sys.path[:] = [path for path in sys.path if path not in ("", folder)]  # before anything else: work lies there
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what tests print is nobody's verdict
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("the judge cannot close itself to others")
    mine, its = socket.socketpair()
    if os.fork() == 0:
        mine.close()
        out.close()
        serve(its, folder)
    its.close()
    os.chdir("/")
    request = json.loads(sys.stdin.buffer.read())
    random.seed(0)  # tests that draw their cases draw the same ones for every submission
    work = Work(Line(mine))  # nothing of the work has been loaded yet

    def tell(**fields: object) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    if request["kind"] == "suite":  # its imports are half of the work of a small grading
        from agentgym.envs.code.inside.suite import run_suite as run
    else:
        run = {"calls": run_calls, "check": run_check}[request["kind"]]
    run(work, request, tell)
    tell(done=True)


def run_calls(work: Work, request: dict[str, Any], tell: Any) -> None:
    """Call one function with each of ``calls``; the values go out to be compared elsewhere."""
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
    """Run trusted code that defines ``check(candidate)``, with the work's function as the candidate."""
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
    """Return the function under test; from here on the work gives plain values alone."""
    function = getattr(work.load(request["module"]), request["function"])
    work.gives_plain_values = True
    return function


def _unknown(value: object) -> dict[str, object]:
    raise WireError(f"an object of the class {type(value).__name__} is not a plain value")
