"""Modules that lie beside a user's file, and the files that it imports from there.

A file that is named by its path, as in ``guess.py:Guess-v0``, may import modules and packages of its own folder, as a
script may. They are found after all installed ones, and read without bytecode.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import FileFinder, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

from agentgym.errors import UsageError

_MOST_BYTES: Final = 16 << 20
_LONGEST_NAME: Final = 200


class SourceAlone(SourceFileLoader):
    """Loader of a file without bytecode, which is stale after two changes in a second and fills users' folders."""

    def path_stats(self, path: object) -> NoReturn:
        """Raise OSError, by which Python neither reads nor writes bytecode."""
        raise OSError(f"{path}: no bytecode")


class _OwnModuleFinder(MetaPathFinder):
    """A finder of the modules in the folders of users' files."""

    def __init__(self) -> None:
        self.folders: list[Path] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module of that name in the first of the folders that has it, or of a package in one of them."""
        within = [Path(entry) for entry in path or ()]
        places = [one for one in within if any(one.is_relative_to(folder) for folder in self.folders)]
        for place in self.folders if path is None else places:
            finder = FileFinder(str(place), (SourceAlone, [".py"]))
            if (spec := finder.find_spec(fullname)) is not None and spec.loader is not None:
                other = PathFinder.find_spec(fullname, path)  # finds it, too, where the folder is the working directory
                return spec if other is None or other.origin == spec.origin else None
        return None


_finder = _OwnModuleFinder()


def open_folder(folder: Path) -> None:
    """Let files in a folder import the modules beside them.

    Raises:
        UsageError: one of these modules has the name of a module that another user's file has imported.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _finder)
    if folder in _finder.folders:
        return
    for name, other in _taken(folder):
        raise UsageError(
            f"{folder / name}.py cannot be imported beside {other}, which has the same module name; rename one of them"
        )
    _finder.folders.append(folder)


def _taken(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the modules of a folder whose names are those of modules from another user's folder, with their files."""
    for path in sorted(folder.glob("*.py")):
        loaded = sys.modules.get(path.stem)
        file = getattr(loaded, "__file__", None)
        if file and Path(file).parent in _finder.folders and Path(file).parent != folder:
            yield path.stem, file


def files_beside(path: Path) -> list[Path]:
    """Return the files in a file's folder that it uses, and those that these use, in order of name.

    These are the modules and packages that it imports, and data of at most 16 MiB whose names are texts of a module
    that uses ``__file__``. Both are read from the source; nothing runs.
    """
    folder, found, waiting = path.parent, set[Path](), [path]
    while waiting:
        source = waiting.pop()
        modules = [file for name in _imported(source) for file in _files_of(folder, name)]
        for file in (*modules, *_data_of(source)):
            if file != path and file not in found:
                found.add(file)
                waiting += [file] if file.suffix == ".py" else []
    return sorted(found)


def _imported(path: Path) -> Iterator[str]:
    """Yield the dotted names that a file imports."""
    for node in _nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _data_of(path: Path) -> list[Path]:
    """Return the files in a module's folder that its texts name, if it uses ``__file__``."""
    nodes = _nodes_of(path)
    if not any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes):
        return []
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = [text for text in sorted(texts) if 0 < len(text) < _LONGEST_NAME and text.isprintable()]
    files = [path.parent / name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute()]
    return [file for file in files if file.is_file() and file.stat().st_size <= _MOST_BYTES]


def _nodes_of(path: Path) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(path.read_bytes())))
    except (OSError, SyntaxError, ValueError):  # reported where the file is run
        return []


def _files_of(folder: Path, name: str) -> list[Path]:
    """Return the files of a module in a folder; of a package all of them."""
    top = folder / name.partition(".")[0]
    if (top / "__init__.py").is_file():
        return [path for path in sorted(top.rglob("*.py")) if path.is_file()]
    return [top.with_suffix(".py")] if top.with_suffix(".py").is_file() else []
