"""One cell of an interpreter session inside a sandbox.

No process outlives a call in a sandbox, so a file in the workspace stores the session (:mod:`.session`): the source of
definitions and imports, pickles of all other values, and settings of the interpreter. The file is part of snapshots, a
killed cell does not change it, and only the sandbox reads it. What cannot be kept (an open file, a generator) is named
in the output.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import traceback
import types

from agentgym.tools.inside.changes import Changes, path_of, run_nodes
from agentgym.tools.inside.session import OWN, Settings, load, save, value_of

_SEEDING = {"seed", "setstate", "set_state"}
_COMPOUND = ("body", "orelse", "handlers", "finalbody", "cases")


def run_cell(code: str, session_file: str) -> int:
    """Run a cell and return its exit code. Print the value of a last expression. Without a session, store nothing."""
    path = os.path.abspath(session_file) if session_file else ""  # the cell may change the working directory
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if name not in OWN]:  # remove what this program itself defined there
        del main[name]
    linecache.cache["<cell>"] = (len(code), None, [f"{line}\n" for line in code.split("\n")], "<cell>")
    at_start = Settings.now()
    definitions, seeded, changed = load(path, main) if path else ({}, set[str](), set[str]())
    try:
        tree = ast.parse(code, "<cell>")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        traceback.print_exception(type(error), error, None)
        return 1
    changes = Changes(tree, main, definitions, os.path.dirname(path)) if path else None
    exit_code = _run(tree, main, changes)
    sys.stdout.flush()
    if changes is not None:
        _note_definitions(tree, code, main, definitions)
        kept, lost = changes.found(definitions)
        save(path, main, definitions, at_start, changed | kept, seeded | _seeded(tree, main), sorted(lost))
    return exit_code


def _run(tree: ast.Module, main: dict[str, object], changes: Changes | None) -> int:
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        for part in [compile(ast.Module(part, []), "<cell>", "exec") for part in _parts(tree.body)]:
            exec(part, main)
            if changes is not None:
                changes.look()
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), main)
            if value is not None:
                print(repr(value))
    except SystemExit as stop:
        if stop.code is not None and not isinstance(stop.code, int):
            print(stop.code, file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename != "<cell>":
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames)
        return 1
    finally:
        if last is not None:
            tree.body.append(last)
    return 0


def _parts(body: list[ast.stmt]) -> list[list[ast.stmt]]:
    """Split statements after each import, so that what it has imported is known before the next statement."""
    ends = [place + 1 for place, node in enumerate(body) if isinstance(node, (ast.Import, ast.ImportFrom))]
    return [body[start:end] for start, end in zip([0, *ends], [*ends, len(body)], strict=True)]


def _note_definitions(tree: ast.Module, code: str, main: dict[str, object], definitions: dict[str, str]) -> None:
    """Store in ``definitions`` the latest source that binds each name, if it can be run again."""
    for node in _statements(tree.body):
        for name, source in _bound_by(node, ast.get_source_segment(code, node) or "", main):
            definitions.pop(name, None)  # move it to the end, since it may use later definitions
            if source:
                definitions[name] = source
    for name in [name for name in definitions if name.isidentifier()]:
        if not isinstance(main.get(name), (types.FunctionType, types.ModuleType, type)) and not _is_foreign(main, name):
            del definitions[name]


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Return statements and those inside ``if``, ``try``, ``with``, loops and ``match``, in their order."""
    found = []
    for node in body:
        found.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            for field in _COMPOUND:
                for part in getattr(node, field, ()):
                    is_clause = isinstance(part, (ast.ExceptHandler, ast.match_case))
                    found += _statements(part.body if is_clause else [part])
    return found


def _bound_by(node: ast.stmt, source: str, main: dict[str, object]) -> list[tuple[str, str]]:
    """Return the names that a statement binds, each with the source that binds it; empty if only the value can be
    stored.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        if not _is_made_by(main.get(node.name), node):
            return []
        is_nested = node.col_offset > 0
        decorators = [] if is_nested else [f"@{ast.unparse(one)}" for one in node.decorator_list]
        return [(node.name, "\n".join([*decorators, ast.unparse(node) if is_nested else source]))]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        if node.col_offset > 0:  # another branch may have bound the name; the module or value is stored
            return [(name, "") for name in names if name in main]
        return [(source if name == "*" else name, source) for name in names if name == "*" or name in main]
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if node.col_offset > 0:  # what another branch has defined stays so
            names = [name for name in names if not isinstance(main.get(name), (types.FunctionType, type))]
        return [
            (name, source if isinstance(node.value, ast.Lambda) or _is_own_class(main, name) else "") for name in names
        ]
    return []


def _is_own_class(main: dict[str, object], name: str) -> bool:
    """Return True for a class that an assignment made, as in ``P = namedtuple("P", "x y")``."""
    value = main.get(name)
    return isinstance(value, type) and value.__module__ == "__main__" and value.__qualname__ == name


def _is_made_by(value: object, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return False if another statement of the cell made a function, such as the other branch of an ``if``."""
    code = getattr(value, "__code__", None)
    if not isinstance(code, types.CodeType) or code.co_filename != "<cell>" or code.co_name != node.name:
        return True
    return code.co_firstlineno == min([node.lineno, *(one.lineno for one in node.decorator_list)])


def _is_foreign(main: dict[str, object], name: str) -> bool:
    """Return True for a value from an import or a decorator, such as ``from math import pi``."""
    return name in main and not isinstance(main[name], (list, dict, set, bytearray))


def _seeded(tree: ast.Module, main: dict[str, object]) -> set[str]:
    """Return the modules whose global random numbers a cell has seeded, directly or by a function of the session."""
    found = set()
    for node in run_nodes(tree):
        called = value_of(path_of(node.func), main) if isinstance(node, ast.Call) else None
        names = {getattr(called, "__name__", "")}
        if isinstance(called, types.FunctionType):
            names |= set(called.__code__.co_names)
        for module in ("random", "numpy.random"):
            there = vars(sys.modules[module]) if module in sys.modules else {}
            if any(
                isinstance(called, types.FunctionType) or there.get(name) == called
                for name in names & _SEEDING & {*there}
            ):
                found.add(module)
    return found
