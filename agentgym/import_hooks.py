"""Calls that wait until somebody imports a module, for modules that take long to import and are often not needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_waiting: dict[str, list[Callable[[], object]]] = {}


def when_imported(name: str, call: Callable[[], object]) -> None:
    """Call a function as soon as a module has been imported, whoever imports it; at once if it is imported already.

    Example:
        >>> when_imported("sys", lambda: print("here"))
        here
    """
    if name in sys.modules:
        call()
        return
    if not any(isinstance(finder, _WaitingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _WaitingFinder())
    _waiting.setdefault(name, []).append(call)


class _WaitingFinder(MetaPathFinder):
    """Finds what Python's other finders find, and lets the waiting calls follow the import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _waiting:
            return None
        found = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((one for one in found if one is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """A module's own loader, which the waiting calls follow."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._own  # it also reads sources and data files
        self._own.exec_module(module)
        for call in _waiting.pop(module.__name__, ()):
            call()
