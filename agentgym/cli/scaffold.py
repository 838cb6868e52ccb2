"""What ``agentgym new`` writes: a file of an environment and its test, or a package that can be installed."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Final

NUMBERS: Final = {
    "train": [17, 4, 29, 11, 22, 8, 31, 14, 1, 26, 19, 6, 24, 12, 3, 28, 9, 20, 15, 30],
    "valid": [5, 23, 10, 27, 18],
    "test": [13, 2, 25, 7, 21, 16],
}
"""The package's tasks by split; no number is in two."""


def _template(name: str) -> Template:
    file = resources.files("agentgym.cli").joinpath("scaffold.toml")
    return Template(tomllib.loads(file.read_text(encoding="utf-8"))[name])


def single_file(folder: Path, names: Mapping[str, str]) -> dict[Path, str]:
    """Return the texts of an environment in one file, and its test, by path."""
    values = {**names, "tool": _template("tool").substitute(highest=10)}
    return {
        folder / f"{names['module_name']}.py": _template("file").substitute(values),
        folder / f"test_{names['module_name']}.py": _template("file_test").substitute(values),
    }


def package(folder: Path, names: Mapping[str, str]) -> dict[Path, str]:
    """Return the texts of a package with an environment, by path."""
    values = {**names, "tool": _template("tool").substitute(highest=31)}
    module = folder / names["module_name"]
    return {
        folder / "pyproject.toml": _template("pyproject").substitute(values),
        folder / "README.md": _template("readme").substitute(values),
        module / "__init__.py": _template("init").substitute(values),
        module / "env.py": _template("env").substitute(values),
        module / "tasks.json": json.dumps(NUMBERS) + "\n",
        folder / "tests" / f"test_{names['module_name']}.py": _template("package_test").substitute(values),
    }
