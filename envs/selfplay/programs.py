"""Check by rule that a proposed program is a task: it is short, deterministic, ends, and has a value to predict.

Source: "Absolute Zero: Reinforced Self-play Reasoning with Zero Data": the program runs, uses no unsafe packages, and
gives the same output again. Its release calls the function twice in one process and bans a list of modules. Here each
call has a new sandbox and a new process, and a list names the modules that are allowed.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import Final

from agentgym.envs.code.grading import Returned, call_once, canonical_text
from agentgym.envs.code.inside import wire
from agentgym.envs.code.shared_pool import SharedPool

NAME: Final = "f"
MAX_CODE_CHARS, MAX_VALUE_CHARS = 2_000, 500
ALLOWED_MODULES: Final = (
    *("bisect", "collections", "decimal", "fractions", "functools", "heapq", "itertools", "math", "operator"),
    *("re", "statistics", "string", "typing"),
)
_FORBIDDEN_NAMES: Final = frozenset(
    (
        *("__import__", "breakpoint", "compile", "eval", "exec", "exit", "globals", "hash", "id", "input", "locals"),
        *("open", "print", "quit", "vars"),
    )
)

REASONS: Final = {
    "too_long": f"the code has over {MAX_CODE_CHARS} characters, or the input over {MAX_VALUE_CHARS}",
    "no_program": f"the code is no Python that defines one function {NAME}",
    "forbidden": f"the code may import {', '.join(ALLOWED_MODULES)} alone, and use neither files nor output nor eval",
    "bad_input": "the input is not the arguments as Python literals, such as: [1, 2], 'a'",
    "copied": "the code is that of the example",
    "failed": "the call fails, or does not end within its limits",
    "bad_output": f"the output is no literal of at most {MAX_VALUE_CHARS} characters",
    "not_deterministic": "two runs give different outputs",
}
"""Reasons why a proposal is invalid, with what its author reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A valid program with an input and its output."""

    code: str
    """The code without comments, as the solver sees it."""
    arguments: tuple[object, ...]
    output: object

    @property
    def shown_arguments(self) -> str:
        """The arguments as the proposer writes them."""
        return ", ".join(map(repr, self.arguments))


def check_program(pool: SharedPool, code: str, given: str, example: str = "") -> Program | str:
    """Return the program of a proposal, or the key of :data:`REASONS` for the first rule that it breaks.

    Args:
        code: the proposed code.
        given: the input, as arguments in Python's syntax.
        example: code that the proposal must not repeat.

    Raises:
        SandboxError: the sandbox failed, not the program.
    """
    if flaw := flaw_of_text(code, given, example):
        return flaw
    shown, arguments = ast.unparse(ast.parse(code)), read_arguments(given)
    assert arguments is not None
    first = run(pool, shown, arguments)
    if not first.is_value:
        return "failed"
    if not is_literal(first.value) or len(repr(first.value)) > MAX_VALUE_CHARS:
        return "bad_output"
    again = run(pool, shown, arguments)
    if not again.is_value or not are_equal(first.value, again.value):
        return "not_deterministic"
    return Program(code=shown, arguments=arguments, output=first.value)


def flaw_of_text(code: str, given: str, example: str = "") -> str:
    """Return the first rule that a proposal breaks before its program runs, or an empty text.

    Example:
        >>> flaw_of_text("def f(x): return x", "1"), flaw_of_text("import os", "1")
        ('', 'no_program')
    """
    if len(code) > MAX_CODE_CHARS or len(given) > MAX_VALUE_CHARS:
        return "too_long"
    tree = _parsed(code)
    if tree is None or [node.name for node in tree.body if isinstance(node, ast.FunctionDef)].count(NAME) != 1:
        return "no_program"
    if _is_forbidden(tree):
        return "forbidden"
    if read_arguments(given) is None:
        return "bad_input"
    return "copied" if example and ast.unparse(tree) == ast.unparse(ast.parse(example)) else ""


def run(pool: SharedPool, code: str, arguments: tuple[object, ...]) -> Returned:
    """Call a program's function in a new sandbox.

    Raises:
        SandboxError: the sandbox failed, not the program.
    """
    return call_once(pool, {"solution.py": code}, f"solution:{NAME}", arguments)


def read_arguments(text: str) -> tuple[object, ...] | None:
    """Return the arguments that a text writes as literals, or None if it does not.

    Example:
        >>> read_arguments("[1, 2], 'a'"), read_arguments("3"), read_arguments("open('x')")
        (([1, 2], 'a'), (3,), None)
    """
    value = read_literal(f"({text.strip().rstrip(',')},)") if text.strip() else None
    return value if isinstance(value, tuple) else None


def read_literal(text: str) -> object:
    """Return the literal that a text writes, or None if it is no literal (or the literal None).

    Example:
        >>> read_literal(" {'a': (1, 2.5)} "), read_literal("{1, 2}"), read_literal("1 + x")
        ({'a': (1, 2.5)}, None, None)
    """
    if len(text) > MAX_VALUE_CHARS + 3:
        return None
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return value if is_literal(value) else None


def is_literal(value: object) -> bool:
    """Return True for numbers, texts, None, and lists, tuples and dicts of them; sets have no fixed order to show."""
    if value is None or isinstance(value, bool | int | str):
        return True
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list | tuple):
        return all(map(is_literal, value))
    return isinstance(value, dict) and all(is_literal(key) and is_literal(item) for key, item in value.items())


def are_equal(one: object, other: object) -> bool:
    """Return True for literals that are equal and of the same types.

    Example:
        >>> are_equal([1, {"a": 2}], [1, {"a": 2}]), are_equal(1, True), are_equal((1,), [1])
        (True, False, False)
    """
    return canonical_text(wire.encode(one, _refuse)) == canonical_text(wire.encode(other, _refuse))


def _parsed(code: str) -> ast.Module | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _is_forbidden(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name not in ALLOWED_MODULES for name in names):
            return True
        if isinstance(node, ast.Name) and (node.id in _FORBIDDEN_NAMES or node.id.startswith("__")):
            return True
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            return True
    return False


def _refuse(value: object) -> dict[str, object]:
    raise TypeError(f"a {type(value).__name__} is no literal")
