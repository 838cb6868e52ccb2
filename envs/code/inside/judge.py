"""The process that holds the tests: it never loads the work, and its standard output is the only way out for a verdict.

It makes itself closed to others of its user (neither traced nor its memory or descriptors opened), starts the process
that holds the work, and only then reads the tests from its standard input. They lie in no file. Each test's result is
one line of JSON on the real standard output, which the work's process never had.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.abc
import importlib.machinery
import json
import os
import random
import socket
import sys
import types
import unittest
from collections.abc import Sequence
from typing import Any

from agentgym.envs.code.inside.candidate import serve
from agentgym.envs.code.inside.proxies import Work, WorkFailed
from agentgym.envs.code.inside.wire import Line, WireError, encode

PR_SET_DUMPABLE = 4


def main() -> None:
    """Do what the JSON on standard input says: ``calls``, ``check`` or ``suite``."""
    out = os.fdopen(os.dup(1), "w")
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what tests print is nobody's verdict
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError("the judge cannot close itself to others")
    folder = os.getcwd()
    mine, its = socket.socketpair()
    if os.fork() == 0:
        mine.close()
        out.close()
        serve(its, folder)
    its.close()
    sys.path[:] = [path for path in sys.path if path not in ("", folder)]
    os.chdir("/")
    request = json.loads(sys.stdin.buffer.read())
    random.seed(0)  # tests that draw their cases draw the same ones for every submission
    work = Work(Line(mine))  # nothing of the work has been loaded yet

    def tell(**fields: Any) -> None:
        out.write(json.dumps(fields) + "\n")
        out.flush()

    {"calls": run_calls, "check": run_check, "suite": run_suite}[request["kind"]](work, request, tell)
    tell(done=True)


def run_calls(work: Work, request: dict[str, Any], tell: Any) -> None:
    """Call one function with each of ``calls``; the values go out to be compared elsewhere."""
    tell(begun=True)
    try:
        function = getattr(work.load(request["module"]), request["function"])
    except Exception as error:
        tell(collected=False, note=_words(error))
        return
    tell(collected=True, num_tests=len(request["calls"]))
    for number, args in enumerate(request["calls"]):
        try:
            tell(test=number, value=encode(function(*work.plain(args)), _unknown))
        except Exception as error:
            tell(test=number, error=_words(error))


def run_check(work: Work, request: dict[str, Any], tell: Any) -> None:
    """Run trusted code that defines ``check(candidate)``, with the work's function as the candidate."""
    names: dict[str, Any] = {"__name__": "check"}
    exec(compile(request["source"], "check", "exec"), names)
    tell(begun=True)
    try:
        function = getattr(work.load(request["module"]), request["function"])
    except Exception as error:
        tell(collected=False, note=_words(error))
        return
    tell(collected=True, num_tests=1)
    try:
        names["check"](function)
        tell(test=0, passed=True)
    except Exception as error:
        tell(test=0, passed=False, error=_words(error))


def run_suite(work: Work, request: dict[str, Any], tell: Any) -> None:
    """Run test modules of ``unittest`` classes and plain test functions; ``names`` are the modules of the work."""
    tests = {name: compile(source, name, "exec") for name, source in request["tests"].items()}
    sys.meta_path.insert(0, _Finder(work, request["names"], tests))
    tell(begun=True)
    suite = unittest.TestSuite()
    try:
        for name in tests:
            suite.addTests(_tests_of(importlib.import_module(name)))
    except BaseException as error:
        tell(collected=False, note=_words(error))
        return
    tell(collected=True, num_tests=suite.countTestCases())
    suite.run(_Result(tell))


def _tests_of(module: types.ModuleType) -> unittest.TestSuite:
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    for name, value in sorted(vars(module).items()):
        if name.startswith("test") and isinstance(value, types.FunctionType):
            suite.addTest(unittest.FunctionTestCase(value, description=name))
    return suite


class _Result(unittest.TestResult):
    """Tells of each test as it ends; a test that was skipped by its author does not count."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self._tell = tell
        self._number = -1

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._number += 1

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test=self._number, passed=True)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test=self._number, passed=False, error=_words(err[1]))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._tell(test=self._number, passed=False, error=_words(err[1]))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._tell(test=self._number, skipped=True)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test=self._number, passed=True)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test=self._number, passed=False, error="unexpected success")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the tests' modules in memory, and the work's in the other process."""

    def __init__(self, work: Work, names: Sequence[str], tests: dict[str, types.CodeType]) -> None:
        self._work, self._names, self._tests = work, frozenset(names), tests

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        packages = {test.rpartition(".")[0] for test in self._tests} - {""}
        if name in self._tests or name in packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in packages)
        if name.partition(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        if spec.name in self._tests or spec.name.partition(".")[0] not in self._names:
            return None
        return self._work.load(spec.name)

    def exec_module(self, module: Any) -> None:
        if isinstance(module, types.ModuleType) and module.__name__ in self._tests:
            exec(self._tests[module.__name__], module.__dict__)


def _unknown(value: object) -> dict[str, Any]:
    raise WireError(f"an object of the class {type(value).__name__} is not a plain value")


def _words(error: BaseException) -> str:
    """The kind of an error, and its words where they are the work's own."""
    name = type(error).__name__
    is_builtin = getattr(builtins, name, None) is type(error)
    if isinstance(error, AssertionError):
        return name  # its words hold what was expected
    return f"{name}: {str(error)[:200]}" if is_builtin or isinstance(error, (WorkFailed, WireError)) else name
