"""Test modules, which the judge runs from memory. They import proxies of the work."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
import unittest
from collections.abc import Sequence
from typing import Any

from agentgym.envs.code.inside.proxies import Work, words_of


def run_suite(work: Work, request: dict[str, Any], tell: Any) -> None:
    """Run test modules with ``unittest`` classes and plain test functions; ``names`` are the modules of the work."""
    tests = {name: compile(source, name, "exec") for name, source in request["tests"].items()}
    sys.meta_path.insert(0, _TestFinder(tests))
    # last, so that a file math.py of the work does not replace the tests' math
    sys.meta_path.append(_WorkFinder(work, request["names"]))
    tell(begun=True)
    suite = unittest.TestSuite()
    try:
        for name in tests:
            suite.addTests(_tests_of(importlib.import_module(name)))
    except BaseException as error:
        if _is_of_tests(error, request):
            tell(broken=str(error))
        tell(collected=False, note=words_of(error))
        return
    tell(collected=True, num_tests=suite.countTestCases())
    suite.run(_Result(tell, request))


def _is_of_tests(error: BaseException, request: dict[str, Any]) -> bool:
    """Return True if tests import a module that is not there and that the work never had."""
    if "own" not in request or not isinstance(error, ImportError) or error.name is None:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    is_of_work = trace is None or trace.tb_frame.f_code.co_filename.endswith("proxies")
    return not is_of_work and error.name.partition(".")[0] not in request["own"]


def _tests_of(module: types.ModuleType) -> unittest.TestSuite:
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    for name, value in sorted(vars(module).items()):
        if name.startswith("test") and isinstance(value, types.FunctionType):
            suite.addTest(unittest.FunctionTestCase(value, description=name))
    return suite


class _Result(unittest.TestResult):
    """A test result that reports each test when it ends. Skipped tests do not count."""

    def __init__(self, tell: Any, request: dict[str, Any]) -> None:
        super().__init__()
        self._tell, self._request = tell, request
        self._number = -1

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._number += 1

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test=self._number, passed=True)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        if _is_of_tests(err[1], self._request):
            self._tell(broken=str(err[1]))
        self._tell(test=self._number, passed=False, error=words_of(err[1]))

    addError = addFailure

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._tell(test=self._number, passed=False, error=words_of(err[1]))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._tell(test=self._number, skipped=True)

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._tell(test=self._number, passed=True)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        self._tell(test=self._number, passed=False, error="unexpected success")


class _TestFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import finder of the tests' modules in memory."""

    def __init__(self, tests: dict[str, types.CodeType]) -> None:
        self._tests = tests
        self._packages = {name.rpartition(".")[0] for name in tests} - {""}

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name in self._tests or name in self._packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=name in self._packages)
        return None

    def create_module(self, spec: Any) -> Any:
        return None

    def exec_module(self, module: Any) -> None:
        if module.__name__ in self._tests:
            exec(self._tests[module.__name__], module.__dict__)


class _WorkFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import finder of the work's modules in the other process."""

    def __init__(self, work: Work, names: Sequence[str]) -> None:
        self._work, self._names = work, frozenset(names)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name.partition(".")[0] in self._names:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return self._work.load(spec.name)

    def exec_module(self, module: Any) -> None:
        pass
