"""An invented repository as a row of SWE-bench."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

_CONVERT = """def fahrenheit(celsius):
    return celsius * 9 / 5


def kelvin(celsius):
    return celsius + 273
"""
_TEST = """from scales.convert import fahrenheit, kelvin


def test_kelvin():
    assert kelvin(0) == 273
"""
FILES = {
    "src/scales/__init__.py": '"""Temperatures."""\n',
    "src/scales/convert.py": _CONVERT,
    "tests/test_convert.py": _TEST,
    "setup.cfg": "[tool:pytest]\ntestpaths = tests\n",
}
FIXED = FILES["src/scales/convert.py"].replace("celsius * 9 / 5", "celsius * 9 / 5 + 32")
TESTED = (
    "import pytest\n\n"
    + FILES["tests/test_convert.py"]
    + "\n\n@pytest.mark.parametrize('at', ['0', '100 C'])\ndef test_fahrenheit(at):\n"
    + "    assert fahrenheit(int(at.split()[0])) == {'0': 32, '100 C': 212}[at]\n"
)


def write_repository(folder: Path) -> Path:
    """Write the repository with one commit."""
    for path, text in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    _git(folder, "init", "-q")
    _git(folder, "add", "-A")
    _git(folder, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "-qm", "Begin")
    return folder


def row(folder: Path, **changed: Any) -> dict[str, Any]:
    """Return the row of a repository that :func:`write_repository` wrote, in the published columns."""
    made = {
        "repo": "example/scales",
        "instance_id": "example__scales-7",
        "base_commit": _git(folder, "rev-parse", "HEAD").strip(),
        "patch": _diff(folder, "src/scales/convert.py", FIXED),
        "test_patch": _diff(folder, "tests/test_convert.py", TESTED),
        "problem_statement": "fahrenheit(0) is 0, but water freezes at 32 degrees.",
        "hints_text": "",
        "created_at": "2026-11-25T00:00:00Z",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(
            # the second is cut off within its parameters, as some published names are
            ["tests/test_convert.py::test_fahrenheit[0]", "tests/test_convert.py::test_fahrenheit[100"]
        ),
        "PASS_TO_PASS": json.dumps(["tests/test_convert.py::test_kelvin"]),
        "environment_setup_commit": "",
    }
    return {**made, **changed}


def _diff(folder: Path, path: str, text: str) -> str:
    before = (folder / path).read_text()
    (folder / path).write_text(text)
    diff = _git(folder, "diff", "--", path)
    (folder / path).write_text(before)
    return diff


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout
