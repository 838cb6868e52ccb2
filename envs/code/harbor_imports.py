"""Which files of a submission would be imported by the tests' own programs in place of what those mean.

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

from agentgym.envs.code.harbor import HarborTask
from agentgym.sandbox import Sandbox

UNASKED: Final = (
    *("conftest.py", "pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "*.pth", "__pycache__"),
    *("sitecustomize.py", "usercustomize.py", "pytest.py", "_pytest", "unittest", "unittest.py", "pluggy"),
)
"""Names, at any depth, of what Python, unittest or pytest load from a project without being told to."""

_ROOTS: Final = frozenset({"", "src", "lib"})
_NAMES_A_ROOT: Final = re.compile(r"PYTHONPATH|pythonpath|sys\.path|site\.addsitedir|\b(?:cd|pushd)\s")
_WORDS: Final = re.compile(r"[\w./-]+")
_OF_PROJECTS: Final = frozenset({"test", "tests", "docs", "examples"})
"""Names that libraries have, too, and that no test means the library's by."""
_LISTING: Final = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import json, pkgutil
names = set(sys.builtin_module_names) | set(getattr(sys, "stdlib_module_names", ()))
print(json.dumps(sorted(names | {module.name for module in pkgutil.iter_modules()})))
"""


def importable_in(sandbox: Sandbox) -> frozenset[str]:
    """Return the top-level modules that Python finds in a sandbox without the workspace: its library and packages."""
    said = sandbox.run_python(_LISTING)
    try:
        found = frozenset(json.loads(said.stdout))
    except ValueError:  # an image with a site that prints or fails; the standard library is known all the same
        found = frozenset()
    return (found | sys.stdlib_module_names) - _OF_PROJECTS


def shadow_rule(
    task: HarborTask, start: Iterable[str], left: Iterable[str], importable: frozenset[str]
) -> Callable[[tarfile.TarInfo], bool]:
    """Return a function that tells whether an entry of the submission is to be as it was at the start.

    That holds for :data:`UNASKED`, for links in place of folders that modules are imported from, and for modules that
    were not there at the start, would be imported in place of one of ``importable``, and are named in no test.

    Args:
        task: its tests and their settings say from which folders modules are imported.
        start: the paths of the workspace as it was given.
        left: the paths of the workspace as the agent left it.
        importable: modules that the tests mean when they import them.
    """
    tests = [data.decode(errors="replace") for data in task.tests.values()]
    settings = [*tests, *(data.decode(errors="replace") for data in task.files.values())]
    lines = [line for text in settings for line in text.splitlines() if _NAMES_A_ROOT.search(line)]
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
        if entry.issym() and str(PurePosixPath(entry.name)) in above_roots:
            return True
        return any(is_shadow("/".join(parts[:number]), part) for number, part in enumerate(parts))

    return is_as_at_the_start


def _inside(word: str, workdir: str) -> str:
    path = PurePosixPath(word)
    path = path.relative_to(workdir) if path.is_relative_to(workdir) else path
    return "" if str(path) == "." else str(path)
