"""What ``agentgym new`` writes: a file of an environment and its test, or a package that can be installed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Final

NUMBERS: Final = {
    "train": [17, 4, 29, 11, 22, 8, 31, 14, 1, 26, 19, 6, 24, 12, 3, 28, 9, 20, 15, 30],
    "valid": [5, 23, 10, 27, 18],
    "test": [13, 2, 25, 7, 21, 16],
}
"""The package's tasks by split; no number is in two."""

_TOOL = Template('''
    @tool
    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: a whole number from 1 to $highest.
        """
        if number == self.secret:
            self.finish(1.0)
            return "Correct."
        if number < self.secret:
            self.low = max(self.low, number + 1)
            return "Higher."
        self.high = min(self.high, number - 1)
        return "Lower."

    def state_key(self) -> str:
        return f"{self.secret} in {self.low}..{self.high}"  # what is true now: no history, no counters

    def oracle(self) -> Message:
        return self.parse_action(f"guess: {(self.low + self.high) // 2}")
''')

_FILE = Template('''"""$id: say here what an agent has to do."""

from agentgym import Message, Task, ToolEnv, register, tool


class $class_name(ToolEnv):
    """Find a hidden number by asking."""

    def start(self, task: Task) -> str:
        self.secret = int(self.np_random.integers(1, 11))  # np_random is the only source of randomness
        self.low, self.high = 1, 10
        return "I think of a number between 1 and 10. Find it."
$tool

register("$id", $class_name, max_turns=5)
''')

_FILE_TEST = Template('''"""Is $id sound?"""

from pathlib import Path

from agentgym.check import check_env


def test_$module_name() -> None:
    report = check_env(str(Path(__file__).with_name("$module_name.py")))
    assert report.passed, str(report)
''')

_ENV = Template('''"""$id: say here what an agent has to do."""

import json
from importlib.resources import files

from agentgym import AgentGymError, Message, Task, ToolEnv, tool

NUMBERS = json.loads((files("$module_name") / "tasks.json").read_text(encoding="utf-8"))


class $class_name(ToolEnv):
    """Find a hidden number by asking."""

    def tasks(self, split: str) -> list[Task]:
        if split not in NUMBERS:
            raise AgentGymError(f"no split {split!r}; there are {', '.join(NUMBERS)}")
        return [
            Task(id=f"{split}-{place}", split=split, seed=place, data={"number": number})
            for place, number in enumerate(NUMBERS[split])
        ]

    def start(self, task: Task) -> str:
        self.secret = task.data["number"]  # random things are drawn from self.np_random alone
        self.low, self.high = 1, 31
        return "I think of a number between 1 and 31. Find it."
$tool''')

_INIT = Template('''"""Registers $id."""

from agentgym import register

register("$id", "$module_name.env:$class_name", summary="find a hidden number by asking", max_turns=5)
''')

_PACKAGE_TEST = Template('''"""Is $id sound?"""

from agentgym.check import check_env


def test_$module_name() -> None:
    report = check_env("$id")
    assert report.passed, str(report)
''')

_PYPROJECT = Template("""[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "$folder"
version = "0.1.0"
description = "$id, an environment for agentgym"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["agentgym"]

[project.entry-points."agentgym.envs"]
$module_name = "$module_name"

[tool.setuptools]
packages = ["$module_name"]

[tool.setuptools.package-data]
$module_name = ["tasks.json"]
""")

_README = Template("""# $folder

`$id`, an environment for agentgym: find a hidden number by asking.

```bash
pip install -e .
agentgym list                                  # $id is among the environments
agentgym play $id
agentgym check $id
agentgym eval $id --policy oracle
agentgym train tiny env.id=$id
agentgym serve $id --port 8765
```

`$module_name/env.py` is the environment. `$module_name/tasks.json` has its tasks.
`tests` runs `agentgym check`.
""")


def single_file(folder: Path, names: Mapping[str, str]) -> dict[Path, str]:
    """Return the texts of an environment in one file, and its test, by path."""
    values = {**names, "tool": _TOOL.substitute(highest=10)}
    return {
        folder / f"{names['module_name']}.py": _FILE.substitute(values),
        folder / f"test_{names['module_name']}.py": _FILE_TEST.substitute(values),
    }


def package(folder: Path, names: Mapping[str, str]) -> dict[Path, str]:
    """Return the texts of a package with an environment, by path."""
    values = {**names, "tool": _TOOL.substitute(highest=31)}
    module = folder / names["module_name"]
    return {
        folder / "pyproject.toml": _PYPROJECT.substitute(values),
        folder / "README.md": _README.substitute(values),
        module / "__init__.py": _INIT.substitute(values),
        module / "env.py": _ENV.substitute(values),
        module / "tasks.json": json.dumps(NUMBERS) + "\n",
        folder / "tests" / f"test_{names['module_name']}.py": _PACKAGE_TEST.substitute(values),
    }
