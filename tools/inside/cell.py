"""One cell of an interpreter session inside a sandbox.

No process outlives a call in a sandbox, so a file in the workspace stores the session: the source of definitions and
imports, and a pickle of all other values. The file is part of snapshots, a killed cell does not change it, and only the
sandbox reads it. Values that can be neither pickled nor defined again (an open file, a generator) are dropped, and the
output says so.
"""

from __future__ import annotations

import ast
import io
import linecache
import os
import pickle
import sys
import traceback
import types
from contextlib import suppress

MAX_BYTES = 8 << 20
_OWN = ("__name__", "__builtins__", "__doc__", "__loader__", "__spec__", "__package__", "__annotations__")
_SINGLE = (type(None), bool, int, float, str, bytes)


def run_cell(code: str, session: str) -> int:
    """Run a cell and return its exit code. Print the value of a last expression. Without a session, store nothing."""
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if name not in _OWN]:  # remove what this program itself defined there
        del main[name]
    linecache.cache["<cell>"] = (len(code), None, code.splitlines(True), "<cell>")
    definitions = _load(session, main) if session else {}
    try:
        tree = ast.parse(code, "<cell>")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        traceback.print_exception(type(error), error, None)
        return 1
    exit_code = _run(tree, main)
    sys.stdout.flush()
    if session:
        _note_definitions(tree, code, main, definitions)
        _save(session, main, definitions)
    return exit_code


def _run(tree: ast.Module, main: dict[str, object]) -> int:
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    try:
        exec(compile(tree, "<cell>", "exec"), main)
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


def _note_definitions(tree: ast.Module, code: str, main: dict[str, object], definitions: dict[str, str]) -> None:
    """Store in ``definitions`` the latest source that binds each name, if it can be run again."""
    for node in tree.body:
        for name, source in _bound_by(node, ast.get_source_segment(code, node) or ""):
            definitions.pop(name, None)  # move it to the end, since it may use later definitions
            if source:
                definitions[name] = source
    for name in [name for name in definitions if name.isidentifier()]:
        if not isinstance(main.get(name), (types.FunctionType, types.ModuleType, type)) and not _is_foreign(main, name):
            del definitions[name]


def _bound_by(node: ast.stmt, source: str) -> list[tuple[str, str]]:
    """Return the names that a statement binds, each with the source that binds it; empty if only the value can be
    stored.
    """
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        decorators = [f"@{ast.unparse(one)}" for one in node.decorator_list]
        return [(node.name, "\n".join([*decorators, source]))]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        return [(source if name == "*" else name, source) for name in names]
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        kept = source if isinstance(node.value, ast.Lambda) else ""
        return [(target.id, kept) for target in targets if isinstance(target, ast.Name)]
    return []


def _is_foreign(main: dict[str, object], name: str) -> bool:
    """Return True for a value from an import or a decorator, such as ``from math import pi``."""
    return name in main and not isinstance(main[name], (list, dict, set, bytearray))


def _load(session: str, main: dict[str, object]) -> dict[str, str]:
    if not os.path.exists(session):
        return {}
    definitions: dict[str, str] = {}
    silenced = sys.stdout, sys.stderr
    try:
        with open(session, "rb") as file:
            definitions, values = pickle.load(file)
        sys.stdout, sys.stderr = io.StringIO(), io.StringIO()
        waiting = _define(definitions, main)
        with suppress(Exception):
            main.update(pickle.loads(values))
        _define({name: definitions[name] for name in waiting}, main)
    except Exception as error:
        sys.stdout, sys.stderr = silenced
        print(f"[the variables of earlier calls are lost: {type(error).__name__}: {error}]", file=sys.stderr)
    finally:
        sys.stdout, sys.stderr = silenced
    return definitions


def _define(definitions: dict[str, str], main: dict[str, object]) -> list[str]:
    """Run definitions. Return those that failed, which may need values first."""
    failed = []
    for name, source in definitions.items():
        try:
            exec(compile(source, "<cell>", "exec"), main)
        except Exception:
            failed.append(name)
    return failed


def _save(session: str, main: dict[str, object], definitions: dict[str, str]) -> None:
    values: dict[str, object] = {}  # pickled together, so that shared objects stay shared
    lost: list[str] = []
    for name, value in main.items():
        if name in _OWN or name in definitions:
            continue
        if isinstance(value, types.ModuleType):
            definitions[name] = f"import {value.__name__} as {name}"
        elif isinstance(value, _SINGLE) or _can_be_pickled(value):
            values[name] = value
        elif not name.startswith("_"):
            lost.append(name)
    try:
        _write(session, (definitions, pickle.dumps(values)) if definitions or values else None)
    except Exception as error:
        print(f"[variables were not kept: {type(error).__name__}: {error}]", file=sys.stderr)
    if lost:
        print(f"[not kept for the next call: {', '.join(sorted(lost))}]", file=sys.stderr)


def _write(session: str, known: object) -> None:
    if known is None:
        if os.path.exists(session):
            os.remove(session)
        return
    data = pickle.dumps(known)
    if len(data) > MAX_BYTES:
        raise ValueError(f"{len(data)} bytes, at most {MAX_BYTES}")
    with open(session + ".new", "wb") as file:
        file.write(data)
    os.replace(session + ".new", session)


def _can_be_pickled(value: object) -> bool:
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return False
    return True
