"""Constructs of test modules that ``grade_suite`` cannot run, since the work is in another process than the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from typing import Final

from agentgym.errors import UsageError

_CONTROLLED: Final = frozenset({"builtins", "datetime", "os", "random", "sys", "time"})
"""Modules that tests patch to control what the work reads. Others may serve the tests alone: ``io.StringIO``, say."""


def require_runnable(tests: Mapping[str, str], modules: Set[str]) -> None:
    """Raise an error for tests that would fail, or pass, whatever the work does.

    Args:
        tests: source by module name. Source that is not Python is left to the judge.
        modules: names of the work's modules.

    Raises:
        UsageError: a test module has such a construct; the error names the line.
    """
    for name, source in tests.items():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        for node, what in _found(tree, modules):
            raise UsageError(
                f"{name}, line {getattr(node, 'lineno', 1)}: grade_suite cannot run tests that {what}, since the work "
                "runs in another process; write them as a Harbor task for SWE-v0"
            )


def _found(tree: ast.Module, modules: Set[str]) -> Iterator[tuple[ast.AST, str]]:
    nodes = list(ast.walk(tree))
    reads_text = any(isinstance(node, ast.Attribute) and node.attr == "getvalue" for node in nodes)
    for node in nodes:
        if isinstance(node, (ast.AsyncFunctionDef, ast.Await)):
            yield node, "await coroutines"
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if reads_text and any(ast.unparse(target) in ("sys.stdout", "sys.stderr") for target in targets):
            yield node, "capture what the work prints"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("asyncio.run", "asyncio.get_event_loop"):
            yield node, "await coroutines"
        if reads_text and called.rpartition(".")[2] in ("redirect_stdout", "redirect_stderr"):
            yield node, "capture what the work prints"
        patched = _patched(called, node.args[0]) if node.args else ""
        module, _, rest = patched.partition(".")
        if module in modules and "." in rest:
            yield node, f"patch a module inside of the work ({patched})"
        elif module in _CONTROLLED - modules:
            yield node, f"patch a module that the work has in its own process ({patched})"


def _patched(called: str, first: ast.expr) -> str:
    """Return the dotted name that ``unittest.mock`` or a fixture of pytest replaces; empty for other calls."""
    what = called.rpartition(".")[2]
    if what in ("patch", "dict", "setattr") and isinstance(first, ast.Constant) and isinstance(first.value, str):
        return first.value
    is_object = called.endswith(("patch.object", "patch.dict", "monkeypatch.setattr"))
    is_object = is_object and isinstance(first, (ast.Name, ast.Attribute))
    return f"{ast.unparse(first)}.*" if is_object else ""
