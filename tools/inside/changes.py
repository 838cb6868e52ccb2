"""Attributes of imported modules and objects that a cell changes, found by its source and by a comparison.

The source shows attributes such as ``mpmath.mp.dps`` that statements set, also in functions of the session. Modules are
compared before and after the cell, for ``setattr`` and for functions of modules in the workspace. Modules of libraries
change variables of their own, too; these count only if the session's source names them, or sets names that it computes.
"""

from __future__ import annotations

import ast
import os
import sys
import types
from contextlib import suppress
from typing import Any

from agentgym.tools.inside.session import value_of

_SETTERS = {"setattr", "delattr", "vars", "__dict__", "__setattr__", "__delattr__"}
_ABSENT = object()


class Changes:
    """Modules and attributes before a cell, to be compared after it."""

    def __init__(self, tree: ast.Module, main: dict[str, object], definitions: dict[str, str], folder: str) -> None:
        self._tree, self._main, self._folder = tree, main, folder
        nodes = [node for part in [tree, *_functions(definitions)] for node in ast.walk(part)]
        self._whole, self._items = _stored(nodes)
        self._before: dict[str, object] = {}
        self._named = {node.attr for node in nodes if isinstance(node, ast.Attribute) and _is_stored(node)}
        self._named |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        words = {getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes}
        self._is_dynamic = not words.isdisjoint(_SETTERS)
        self._modules: dict[str, dict[str, object]] = {}
        self.look()

    def look(self) -> None:
        """Note the content of modules that have been imported since the last look."""
        for path in self._whole | self._items:
            if self._before.get(path) is None:
                self._before[path] = _copied(value_of(path, self._main))
        known = {id(sys.modules.get(name)) for name in self._modules}
        for name, module in list(sys.modules.items()):
            if isinstance(module, types.ModuleType) and name != "__main__" and id(module) not in known:
                known.add(id(module))
                is_own = self._is_own(module)
                self._modules[name] = {key: _copied(one) if is_own else one for key, one in vars(module).items()}

    def found(self, definitions: dict[str, str]) -> tuple[set[str], set[str]]:
        """Return paths whose values the session should keep, such as ``mpmath.mp.dps``, and those it cannot keep."""
        top, top_items = _stored(run_nodes(self._tree))
        kept, lost = set[str](), set[str]()
        for path in self._whole | self._items:
            now = value_of(path, self._main)
            is_imported = definitions.get(path.partition(".")[0], "").startswith(("import ", "from "))
            if not is_imported or now is None or now is os.environ:
                continue
            if path in top | top_items or _differs(self._before[path], now):
                (lost if path in self._items else kept).add(path)
        for module, name, is_own in self._changed_names():
            path = _path_to(module, self._main)
            is_kept = path and name in vars(sys.modules[module]) and not (is_own and name not in self._named)
            (kept if is_kept else lost).add(f"{path or module}.{name}")
        return kept - lost, lost

    def _changed_names(self) -> list[tuple[str, str, bool]]:
        found = []
        for module, before in self._modules.items():
            now = vars(sys.modules[module]) if module in sys.modules else before
            is_own = self._is_own(sys.modules.get(module))
            for name in [name for name in {**before, **now} if before.get(name, _ABSENT) is not now.get(name, _ABSENT)]:
                is_meant = name in self._named or is_own or (self._is_dynamic and not name.startswith("_"))
                value = now.get(name, _ABSENT)
                is_data = not name.startswith("__") and not isinstance(value, types.ModuleType)
                if is_meant and is_data and _differs(before.get(name, _ABSENT), value):
                    found.append((module, name, is_own))
        return found

    def _is_own(self, module: types.ModuleType | None) -> bool:
        file = getattr(module, "__file__", None)
        return isinstance(file, str) and os.path.abspath(file).startswith(self._folder + os.sep)


def path_of(node: ast.AST) -> str:
    """Return ``a.b.c`` for a name or a chain of attributes, else an empty text."""
    if isinstance(node, ast.Name):
        return node.id
    before = path_of(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


def run_nodes(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes of a cell but for the bodies of functions, which run when they are called."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [*tree.body]
    while waiting:
        node = waiting.pop()
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += ast.iter_child_nodes(node)
    return found


def _functions(definitions: dict[str, str]) -> list[ast.AST]:
    found: list[ast.AST] = []
    for source in definitions.values():
        if not source.startswith(("import ", "from ")):
            with suppress(SyntaxError):  # part of an indented statement
                found.append(ast.parse(source))
    return found


def _stored(nodes: list[ast.AST]) -> tuple[set[str], set[str]]:
    """Return the paths that are set, also by ``setattr`` with a constant, and those of which an item is set."""
    whole, items = set[str](), set[str]()
    for node in nodes:
        if isinstance(node, ast.Subscript) and _is_stored(node):
            items.add(path_of(node.value))
        elif isinstance(node, ast.Attribute) and _is_stored(node):
            whole.add(path_of(node))
        elif isinstance(node, ast.Call) and path_of(node.func) == "setattr" and len(node.args) > 1:
            owner, name = path_of(node.args[0]), node.args[1]
            if owner and isinstance(name, ast.Constant) and isinstance(name.value, str):
                whole.add(f"{owner}.{name.value}")
    return whole - {""}, items - whole - {""}


def _is_stored(node: ast.Attribute | ast.Subscript) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _path_to(module: str, main: dict[str, object]) -> str:
    """Return how the session reaches a module, such as ``np.random``; empty if it has no name for it."""
    found = sys.modules.get(module)
    names = [name for name, one in list(sys.modules.items()) if one is found]  # os.path is posixpath, too
    modules = [(alias, value) for alias, value in main.items() if isinstance(value, types.ModuleType)]
    for alias, value in modules:
        for name in names:
            path = alias + name[len(value.__name__) :]
            if f"{name}.".startswith(f"{value.__name__}.") and value_of(path, main) is found:
                return path
    return ""


def _copied(value: Any) -> Any:
    for kind in (dict, list, set):
        if isinstance(value, kind):
            return kind(value)
    return value


def _differs(before: Any, now: Any) -> bool:
    try:
        return before is not now and (before is _ABSENT or now is _ABSENT or bool(_copied(now) != before))
    except Exception:  # values such as arrays cannot be compared so
        return True
