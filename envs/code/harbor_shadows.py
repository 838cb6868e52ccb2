"""Files of a submission that the tests' programs would import instead of the intended modules.

``python -m pytest`` and the like look for modules in the folder they start in before the standard library. A file
``argparse.py`` there, with ``os._exit(0)`` in it, ends the tests before they begin.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Final

from agentgym.canonical import packaged
from agentgym.envs.code.harbor import HarborTask
from agentgym.sandbox import Sandbox

UNASKED: Final = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "*.pth", "__pycache__"),
    *("sitecustomize.py", "usercustomize.py", "unittest", "unittest.py"),
)
"""Names, at any depth, that Python, unittest or pytest load from a project automatically."""
_RUNNERS: Final = ("pytest.py", "_pytest", "pluggy")
"""Further such names, which a project has at the start only if it is the runner itself."""

_ROOTS: Final = frozenset({"", "src", "lib"})
NAMES_A_ROOT: Final = re.compile(r"PYTHONPATH|pythonpath|sys\.path|site\.addsitedir|\b(?:cd|pushd)\s")
_WORDS: Final = re.compile(r"[\w./-]+")
_OF_PROJECTS: Final = frozenset({"test", "tests", "docs", "examples"})
"""Names that libraries also use, but that tests never import from a library."""
_LISTING: Final[str] = packaged(__package__, "harbor.toml")["listing"]


def importable_in(sandbox: Sandbox) -> frozenset[str]:
    """Return the top-level modules that Python finds outside a sandbox's workspace: standard library and packages."""
    said = sandbox.run_python(_LISTING)
    try:
        found = frozenset(json.loads(said.stdout))
    except ValueError:  # the image's site module prints or fails; the standard library is known anyway
        found = frozenset()
    return (found | sys.stdlib_module_names) - _OF_PROJECTS


def shadow_rule(
    task: HarborTask, start: Iterable[str], left: Iterable[str], importable: frozenset[str]
) -> Callable[[tarfile.TarInfo], bool]:
    """Return a function that is True for entries of the submission that must be restored from the start.

    These are :data:`UNASKED`, links in place of folders that modules are imported from, and new modules that would be
    imported instead of one of ``importable`` and that no test names.

    Args:
        task: the task, whose tests and settings decide from which folders modules are imported.
        start: paths of the initial workspace.
        left: paths of the workspace as the agent left it.
        importable: modules outside the workspace that tests may intend to import.
    """
    tests = [entry.data.decode(errors="replace") for entry in task.tests.values()]
    settings = [*tests, *(entry.data.decode(errors="replace") for entry in task.files.values())]
    lines = [line for text in settings for line in text.split("\n") if NAMES_A_ROOT.search(line)]
    roots = _ROOTS | {_inside(word, task.workdir) for line in lines for word in _WORDS.findall(line)}
    above_roots = {str(above) for root in roots for above in (PurePosixPath(root), *PurePosixPath(root).parents)}
    words = [word for text in tests for word in _WORDS.findall(text)]
    said = {part for word in words if "/" in word or word.endswith(".py") for part in PurePosixPath(word).parts}
    given = {str(above) for path in start for above in (PurePosixPath(path), *PurePosixPath(path).parents)}
    packages = {str(PurePosixPath(path).parent) for path in left if PurePosixPath(path).name.startswith("__init__.")}

    def is_shadow(folder: str, part: str) -> bool:
        path = f"{folder}/{part}" if folder else part
        if folder not in roots or part.partition(".")[0] not in importable or part in said or path in given:
            return False
        return part.endswith((".py", ".pyc", ".so")) or path in packages

    def is_as_at_the_start(entry: tarfile.TarInfo) -> bool:
        parts = PurePosixPath(entry.name).parts
        if any(fnmatchcase(part, pattern) for part in parts for pattern in UNASKED):
            return True
        if any(part in _RUNNERS and "/".join(parts[: place + 1]) not in given for place, part in enumerate(parts)):
            return True
        if entry.issym() and str(PurePosixPath(entry.name)) in above_roots:
            return True
        return any(is_shadow("/".join(parts[:number]), part) for number, part in enumerate(parts))

    return is_as_at_the_start


def _inside(word: str, workdir: str) -> str:
    path = PurePosixPath(word)
    path = path.relative_to(workdir) if path.is_relative_to(workdir) else path
    return "" if str(path) == "." else str(path)
