"""``agentgym new``: write a first environment and its test."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from agentgym.canonical import packaged
from agentgym.cli.output import JsonFlag, output
from agentgym.error_places import is_of_a_library, is_ours
from agentgym.errors import UsageError
from agentgym.installation import DISTRIBUTION


def new(
    name: Annotated[str, typer.Argument(help="The environment's name, as in MyWorld or my_world.")],
    folder: Annotated[Path, typer.Option("--dir", help="The folder to write into.")] = Path("."),
    is_file: Annotated[bool, typer.Option("--file", help="Write one file and its test instead of a package.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write a package with a small environment, its tasks and its test, to install and change."""
    with output(as_json) as out:
        names = _names(name)
        root = folder if is_file else folder / names["folder"]
        texts = single_file(root, names) if is_file else package(root, names)
        _write(texts, root, is_file)
        commands = _next(root, names, is_file)
        out.result({"id": names["id"], "files": [str(path) for path in texts], "next": commands})
        wrote = " and ".join(map(str, texts)) if is_file else f"the package {root}"
        steps = "\n".join(f"  {command}" for command in commands)
        out.console.print(f"wrote {wrote}\n\nnext:\n{steps}", soft_wrap=True, markup=False)


def _write(texts: dict[Path, str], root: Path, is_file: bool) -> None:
    """Write all files, or none if one of them exists.

    Raises:
        UsageError: a file or the package's folder exists.
    """
    for path in texts if is_file else (root,):
        if path.exists():
            raise UsageError(f"{path} already exists; choose another name, or another folder with --dir")
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _next(root: Path, names: dict[str, str], is_file: bool) -> list[str]:
    env = str(root / f"{names['module_name']}.py") if is_file else names["id"]
    test = str(root / f"test_{names['module_name']}.py") if is_file else str(root)
    return [
        *([] if is_file else [f"pip install -e {root}"]),
        f"agentgym play {env}",
        f"agentgym check {env}",
        f"pytest {test}",
        f"agentgym eval {env} --policy oracle",
        f"agentgym train tiny env.id={env}",
    ]


def _is_installed(module_name: str) -> bool:
    """Return True for a module of agentgym or of an installed package, but not of the working directory."""
    spec = importlib.util.find_spec(module_name)
    return spec is not None and spec.origin is not None and (is_ours(spec.origin) or is_of_a_library(spec.origin))


def _names(name: str) -> dict[str, str]:
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|\d+", name)
    module_name = "_".join(words).lower()
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name) is not None
    if not is_plain or not words or keyword.iskeyword(module_name):
        raise UsageError(f"{name!r} cannot name an environment; use letters, digits and _, as in MyWorld or my_world")
    if module_name in sys.stdlib_module_names or _is_installed(module_name):
        raise UsageError(
            f"{name!r} cannot name an environment; there is a module {module_name} already, which its file would hide"
        )
    class_name = "".join(word[0].upper() + word[1:] for word in words)
    folder = module_name.replace("_", "-")
    return {"module_name": module_name, "class_name": class_name, "id": f"{class_name}-v0", "folder": folder}


# -------------- files that ``agentgym new`` writes: an environment and its test, or a package that can be installed

NUMBERS: Final = {
    "train": [17, 4, 29, 11, 22, 8, 31, 14, 1, 26, 19, 6, 24, 12, 3, 28, 9, 20, 15, 30],
    "valid": [5, 23, 10, 27, 18],
    "test": [13, 2, 25, 7, 21, 16],
}
"""The package's tasks by split; no number is in two splits."""


def _template(name: str) -> Template:
    return Template(packaged("agentgym.cli", "scaffold.toml")[name])


def single_file(folder: Path, names: Mapping[str, str]) -> dict[Path, str]:
    """Return the text of an environment file and of its test, by path."""
    values = {**names, "tool": _template("tool").substitute(highest=10)}
    return {
        folder / f"{names['module_name']}.py": _template("file").substitute(values),
        folder / f"test_{names['module_name']}.py": _template("file_test").substitute(values),
    }


def package(folder: Path, names: Mapping[str, str]) -> dict[Path, str]:
    """Return the texts of all files of a package with an environment, by path."""
    values = {**names, "tool": _template("tool").substitute(highest=31), "distribution": DISTRIBUTION}
    module = folder / names["module_name"]
    return {
        folder / "pyproject.toml": _template("pyproject").substitute(values),
        folder / "README.md": _template("readme").substitute(values),
        module / "__init__.py": _template("init").substitute(values),
        module / "env.py": _template("env").substitute(values),
        module / "tasks.json": json.dumps(NUMBERS) + "\n",
        folder / "tests" / f"test_{names['module_name']}.py": _template("package_test").substitute(values),
    }
