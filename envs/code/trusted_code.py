"""Execution of generated modules in this process to compute expected values. It must never run an agent's code.

The modules come from agentgym's own generators and mutations, so they are not malicious. But a mutation can make a loop
endless or a number huge. :func:`why_unbounded` therefore rejects modules that could, and a counter in every loop and
function stops those that it overlooks.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Final

_MAX_TICKS: Final = 20_000
"""Most loop iterations and function calls in one evaluation."""

_BUILTINS: Final = (
    *("abs", "all", "any", "bool", "chr", "dict", "divmod", "enumerate", "int", "isinstance", "len", "list", "max"),
    *("min", "ord", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip"),
    *("Exception", "IndexError", "KeyError", "ValueError", "__build_class__"),
)
_GROWING: Final = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})
_TICK: Final = "_tick"


class EndlessError(Exception):
    """An evaluation exceeded the largest number of steps."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """An expression's value, or the name of the exception it raised.

    Example:
        >>> TrustedModules({"m": "def half(n):\\n    return n // 2\\n"}).outcome("m", "half(7)")
        Outcome(value=3, raised='')
    """

    value: object
    raised: str = ""


class TrustedModules:
    """Loaded modules that may import one another.

    Args:
        sources: sources by dotted module name; imported modules come before those that import them.

    Raises:
        ValueError: a module does not compile or load, or :func:`why_unbounded` rejects it.

    Example:
        >>> made = TrustedModules({"shop.tax": "def tax(n):\\n    return n // 5\\n", "shop.bill": (
        ...     "from shop.tax import tax\\n\\n\\ndef total(n):\\n    return n + tax(n)\\n")})
        >>> made.outcome("shop.bill", "total(10)").value
        12
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._ticks_left = 0
        self._modules: dict[str, ModuleType] = {}
        allowed = {name: getattr(builtins, name) for name in _BUILTINS}
        allowed["__import__"] = self._import
        for name, source in sources.items():
            module = ModuleType(name)
            module.__dict__.update({"__builtins__": allowed, _TICK: self._tick})
            self._ticks_left = _MAX_TICKS
            try:
                exec(_compiled(name, source), module.__dict__)
            except Exception as error:
                raise ValueError(f"{name} does not load: {type(error).__name__}: {error}") from error
            self._modules[name] = module

    def outcome(self, module: str, expression: str) -> Outcome:
        """Evaluate an expression in a module's namespace.

        Raises:
            EndlessError: it did not finish within the largest number of steps.
        """
        self._ticks_left = _MAX_TICKS
        try:
            return Outcome(eval(expression, self._modules[module].__dict__))
        except EndlessError:
            raise
        except Exception as error:
            return Outcome(None, type(error).__name__)

    def _tick(self) -> None:
        self._ticks_left -= 1
        if self._ticks_left < 0:
            raise EndlessError(f"over {_MAX_TICKS} steps")

    def _import(self, name: str, *_: object) -> ModuleType:
        if name not in self._modules:
            raise ImportError(f"{name} is not among {', '.join(self._modules) or 'nothing'}")
        return self._modules[name]


def why_unbounded(tree: ast.Module) -> str:
    """Return the reason why a module might not end or might exceed the memory; empty if it cannot.

    Only ``for`` loops and comprehensions are allowed, but not over an object that the loop body lets grow. Recursion,
    powers, shifts and self-multiplication such as ``x *= x`` are rejected.

    Example:
        >>> why_unbounded(ast.parse("for x in xs:\\n    xs.append(x)"))
        'line 1: a loop over xs, which grows in it'
    """
    return next(_unbounded(tree), "")


def _unbounded(tree: ast.Module) -> Iterator[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    line_of = {function.name: function.lineno for function in functions}
    for function in functions:
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and _callee(node) in line_of and line_of[_callee(node)] >= function.lineno:
                yield f"line {node.lineno}: {function.name} calls {_callee(node)}, which is not above it"
    for node in ast.walk(tree):
        if isinstance(node, ast.While | ast.AsyncFor):
            yield f"line {node.lineno}: {type(node).__name__}"
        elif isinstance(node, ast.Pow | ast.LShift):
            yield f"the operator {type(node).__name__}"
        elif isinstance(node, ast.For) and (name := _grown_in(node)):
            yield f"line {node.lineno}: a loop over {name}, which grows in it"
        elif isinstance(node, ast.Assign | ast.AugAssign) and (name := _grows_by_itself(node)):
            yield f"line {node.lineno}: {name} grows by itself"


def _callee(call: ast.Call) -> str:
    if isinstance(call.func, ast.Name):
        return call.func.id
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _grown_in(loop: ast.For) -> str:
    looped = {ast.unparse(node) for node in ast.walk(loop.iter) if isinstance(node, ast.Name | ast.Attribute)}
    for statement in loop.body:
        for node in ast.walk(statement):
            grown: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWING:
                grown = node.func.value
            elif isinstance(node, ast.AugAssign):
                grown = node.target
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                grown = node.targets[0].value
            if grown is not None and ast.unparse(grown) in looped:
                return ast.unparse(grown)
    return ""


def _grows_by_itself(node: ast.Assign | ast.AugAssign) -> str:
    """Return the name of a variable that doubles (``x += x``) or squares (``x = x * x``), which fills the memory."""
    if isinstance(node, ast.AugAssign):
        name, has_operator, num_needed = ast.unparse(node.target), isinstance(node.op, ast.Add | ast.Mult), 1
    else:
        name, num_needed = ast.unparse(node.targets[0]), 2
        has_operator = any(isinstance(part, ast.Add | ast.Mult) for part in ast.walk(node.value))
    num_uses = sum(ast.unparse(part) == name for part in ast.walk(node.value) if isinstance(part, ast.expr))
    return name if has_operator and num_uses >= num_needed else ""


def _compiled(name: str, source: str) -> CodeType:
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{name} does not compile: {error}") from error
    if reason := why_unbounded(tree):
        raise ValueError(f"{name} might not end: {reason}")
    return compile(ast.fix_missing_locations(_Ticking().visit(tree)), f"<{name}>", "exec", dont_inherit=True)


class _Ticking(ast.NodeTransformer):
    """A transformer that inserts a tick at the start of every function and loop iteration."""

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.body.insert(0, _tick_statement())
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.body.insert(0, _tick_statement())
        return node


def _tick_statement() -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name(_TICK, ast.Load()), [], []))
