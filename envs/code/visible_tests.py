"""The tests that the agent may see, as a command for its own sandbox; what it shows is the same each time it is run."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

_PROGRAM: Final = """
import sys, traceback, unittest

class Result(unittest.TestResult):
    num_passed = num_shown = 0

    def addSuccess(self, test):
        self.num_passed += 1

    def note(self, test, error):
        self.num_shown += 1
        if self.num_shown > {most}:
            return
        frames = [f for f in traceback.extract_tb(error[2]) if "unittest" not in f.filename.split("/")]
        print("FAIL " + str(test).split(" ")[0])
        for frame in frames[-2:]:
            print("  %s, line %s: %s" % (frame.filename.split("/")[-1], frame.lineno, frame.line))
        print("  " + "".join(traceback.format_exception_only(*error[:2])).strip()[:{widest}])

    def addFailure(self, test, error):
        self.note(test, error)

    addError = addFailure

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note(subtest, error)

sys.dont_write_bytecode = True
sys.path.insert(0, "")
suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
num_tests = suite.countTestCases()
result = Result()
suite.run(result)
if result.num_shown > {most}:
    print("... and %d more" % (result.num_shown - {most}))
print("%d of %d tests pass" % (result.num_passed, num_tests))
sys.exit(result.num_passed != num_tests)
"""
_MOST_SHOWN = 5
_WIDEST = 400


def command_for(tests: Sequence[str]) -> str:
    """A shell line that runs test files, shows why the first ones fail, and ends with how many pass.

    Example:
        >>> command_for([])
        "echo 'There are no visible tests.'"
    """
    if not tests:
        return "echo 'There are no visible tests.'"
    names = [path.removesuffix(".py").replace("/", ".") for path in tests]
    program = _PROGRAM.replace("{most}", str(_MOST_SHOWN)).replace("{widest}", str(_WIDEST)).strip()
    return shlex.join(["python3", "-c", program, *names])
