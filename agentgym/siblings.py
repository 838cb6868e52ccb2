"""Modules and data beside a user's file: found by its imports, imported without bytecode, and copied with it."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final, NoReturn

from agentgym.errors import UsageError

_MOST_BYTES: Final = 16 * 1024 * 1024
_LONGEST_NAME: Final = 200


class SourceAlone(SourceFileLoader):
    """Loader of a file without bytecode, which is stale after two changes in a second and fills users' folders."""

    def path_stats(self, path: object) -> NoReturn:
        """Raise OSError, by which Python neither reads nor writes bytecode."""
        raise OSError(f"{path}: no bytecode")


class _Finder(MetaPathFinder):
    """Finds modules in the folders of users' files, after all others: ``import helper`` beside ``world.py``."""

    def __init__(self) -> None:
        self.folders: list[Path] = []
        self._roots: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, _ = fullname.partition(".")
        if path is not None:  # in a package: of users' packages alone, which would get bytecode otherwise
            return _spec_in(Path(path[0]), fullname) if root in self._roots else None
        if not self.folders or PathFinder.find_spec(fullname) is not None:
            return None
        found = next((spec for folder in self.folders if (spec := _spec_in(folder, fullname))), None)
        if found is not None:
            self._roots.add(root)
        return found


_finder = _Finder()


def let_import_siblings(path: Path) -> None:
    """Let a user's file import the modules beside it.

    Raises:
        UsageError: a module of that name in another folder was imported before, which the file would get instead.
    """
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    folder = path.parent
    for name, _ in _imported(path):
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded and any(Path(loaded).resolve().is_relative_to(other) for other in _finder.folders if other != folder):
            raise UsageError(f"{path.name} imports {name!r}, and {loaded} has that name already: rename one of the two")
    if folder not in _finder.folders:
        _finder.folders.append(folder)


def files_beside(path: Path) -> dict[str, Path]:
    """Return the modules that a file imports from its folder, and data there that they name, by relative path.

    Modules are followed into the modules that they import. Data are files of at most 16 MiB whose names are texts of a
    module that uses ``__file__``.
    """
    folder, found, left = path.parent, dict[str, Path](), [path]
    while left:
        source = left.pop()
        named = [file for _, file in _imported(source, folder)] + _data(source)
        for file in named:
            name = file.relative_to(folder).as_posix()
            if file != path and name not in found:
                found[name] = file
                left += [file] if file.suffix == ".py" else []
    return dict(sorted(found.items()))


def _spec_in(folder: Path, fullname: str) -> ModuleSpec | None:
    name = fullname.rpartition(".")[2]
    for file, is_package in ((folder / name / "__init__.py", True), (folder / f"{name}.py", False)):
        if file.is_file():
            return importlib.util.spec_from_file_location(
                fullname,
                file,
                loader=SourceAlone(fullname, str(file)),
                submodule_search_locations=[str(file.parent)] if is_package else None,
            )
    return None


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):  # running it tells
        return ast.Module([], [])


def _imported(path: Path, beside: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Yield the modules of a folder that a file imports, each with a file; of a package all its modules."""
    folder = beside or path.parent
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        else:
            continue
        for name in names:
            root = name.partition(".")[0]
            if root in sys.stdlib_module_names:
                continue
            if (folder / root / "__init__.py").is_file():
                yield from ((root, file) for file in sorted((folder / root).rglob("*.py")))
            elif (folder / f"{root}.py").is_file():
                yield root, folder / f"{root}.py"


def _data(path: Path) -> list[Path]:
    """Return the files in a module's folder that its texts name."""
    nodes = list(ast.walk(_tree(path)))
    if not any(isinstance(node, ast.Name) and node.id == "__file__" for node in nodes):
        return []
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    folder = path.parent
    names = [text for text in sorted(texts) if 0 < len(text) < _LONGEST_NAME and text.isprintable()]
    files = [folder / name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute()]
    return [file for file in files if file.is_file() and file.stat().st_size <= _MOST_BYTES]
