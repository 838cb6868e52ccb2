"""Results of Python's own unittest on a set of files, an independent check of generated tests."""

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

RUN = """
import json, sys, unittest

class Result(unittest.TestResult):
    passed = []
    def addSuccess(self, test):
        self.passed.append(test.id())

result = Result()
suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
num_tests = suite.countTestCases()
suite.run(result)
print(json.dumps([num_tests, result.passed]))
"""


def passed_tests(files: Mapping[str, str], modules: Iterable[str], folder: Path) -> tuple[int, frozenset[str]]:
    """Return the number of tests in test files, and the names of those that pass."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    names = [module.removesuffix(".py").replace("/", ".") for module in modules]
    command = [sys.executable, "-B", "-c", RUN, *names]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    num_tests, passed = json.loads(done.stdout)
    return num_tests, frozenset(passed)
