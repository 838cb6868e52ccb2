"""Seeded bugs: small changes of a program's syntax tree, applied to its text.

Only the text of the changed node is replaced. The rest of the file keeps its layout, and a repair is one line.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_OPERATORS: Final[Mapping[type[ast.operator], tuple[type[ast.operator], ...]]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.FloorDiv: (ast.Mod, ast.Mult),
    ast.Mod: (ast.FloorDiv,),
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BUILTINS: Final[Mapping[str, str]] = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A bug: the replacement of a text in a module.

    Example:
        >>> source = "def add(a, b):\\n    return a + b\\n"
        >>> bug = next(mutations(source, ["wrong_operator"]))
        >>> bug.kind, bug.function, bug.old, bug.new
        ('wrong_operator', 'add', 'a + b', 'a - b')
        >>> bug.applied(source)
        'def add(a, b):\\n    return a - b\\n'
    """

    kind: str
    function: str
    """Name of the innermost function that contains the bug."""
    start: int
    """Index of the first character of ``old`` in the source."""
    old: str
    new: str

    def applied(self, source: str) -> str:
        """Return the source with the bug."""
        return source[: self.start] + self.new + source[self.start + len(self.old) :]


def mutations(source: str, kinds: Sequence[str]) -> Iterator[Mutation]:
    """Yield all bugs of the given kinds (:data:`BUG_KINDS`) in a module's functions, in order of position.

    Some have no observable effect, so callers must run the tests.
    """
    lines = _LineStarts(source)
    for function in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)):
        names = _names_of(function)
        statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
        for statement in statements:
            for node in _nodes(statement):
                for kind in kinds:
                    for changed in BUG_KINDS[kind](node, names):
                        start, end = lines.span(node) if changed else lines.whole(node)
                        old, new = source[start:end], _text_of(changed, node) if changed else ""
                        if new != old:
                            yield Mutation(kind=kind, function=function.name, start=start, old=old, new=new)


def _nodes(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement, except those in f-strings, whose positions Python 3.11 does not report."""
    pending: list[ast.AST] = [statement]
    while pending:
        node = pending.pop(0)
        yield node
        pending += [] if isinstance(node, ast.JoinedStr) else ast.iter_child_nodes(node)


_Changed = ast.expr | ast.stmt | None
"""Replacement of a node; None if a statement is removed."""


def _text_of(changed: ast.AST, node: ast.AST) -> str:
    text = ast.unparse(changed)
    return text if isinstance(node, ast.expr) else text.replace("\n", "\n" + " " * getattr(node, "col_offset", 0))


class _LineStarts:
    """The positions of nodes' texts in their source."""

    def __init__(self, source: str) -> None:
        assert source.isascii()  # columns of syntax trees are in bytes
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.AST) -> tuple[int, int]:
        assert isinstance(node, ast.expr | ast.stmt) and node.end_lineno is not None and node.end_col_offset is not None
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def whole(self, node: ast.AST) -> tuple[int, int]:
        """Return the span of a statement's lines."""
        assert isinstance(node, ast.stmt) and node.end_lineno is not None
        return self._starts[node.lineno - 1], self._starts[node.end_lineno]


def _names_of(function: ast.FunctionDef) -> tuple[str, ...]:
    """Return parameters and local names in order of appearance."""
    names = [argument.arg for argument in function.args.args if argument.arg != "self"]
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.id)
    return tuple(dict.fromkeys(names))


# --------------------------------------------------------------------------------------------------- kinds of bugs


def _off_by_one(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield ast.Constant(node.value + 1)
        if node.value > 0:
            yield ast.Constant(node.value - 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range":
        *first, stop = node.args[:2]
        longer: ast.expr
        if isinstance(stop, ast.BinOp) and isinstance(stop.right, ast.Constant) and stop.right.value == 1:
            longer = stop.left
        else:
            longer = ast.BinOp(stop, ast.Sub(), ast.Constant(1))
        yield ast.Call(node.func, [*first, longer, *node.args[2:]], [])


def _wrong_operator(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.BinOp):
        for operator in _OPERATORS.get(type(node.op), ()):
            yield ast.BinOp(node.left, operator(), node.right)
    elif isinstance(node, ast.AugAssign):
        for operator in _OPERATORS.get(type(node.op), ()):
            yield ast.AugAssign(node.target, operator(), node.value)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other, node.values)


def _wrong_comparison(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for comparison in _COMPARISONS.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [comparison()], node.comparators)


def _wrong_constant(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if not isinstance(node, ast.Constant):
        return
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int):
        for other in (0, 1, 2 * value, 10 * value):
            if abs(other - value) > 1:  # otherwise the change is an off-by-one bug
                yield ast.Constant(other)
    elif isinstance(value, str) and len(value) > 1:
        yield ast.Constant(value[:-1])


def _swapped_arguments(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.Call) and len(node.args) >= 2 and not node.keywords:
        for at in range(len(node.args) - 1):
            args = [*node.args]
            args[at], args[at + 1] = args[at + 1], args[at]
            yield ast.Call(node.func, args, [])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.FloorDiv | ast.Mod):
        yield ast.BinOp(node.right, node.op, node.left)
    elif isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load) and len(node.elts) == 2:
        yield ast.Tuple([*reversed(node.elts)], ast.Load())


def _missing_branch(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.If):
        if node.orelse:
            yield ast.If(node.test, node.body, [])
            if isinstance(node.orelse[0], ast.If) and node.orelse[0].orelse:
                yield ast.If(node.test, node.body, node.orelse[0].orelse)
        else:
            yield None
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse


def _wrong_condition(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand
    elif isinstance(node, ast.If | ast.IfExp) and isinstance(node.test, ast.Name | ast.Call):
        inverse = ast.UnaryOp(ast.Not(), node.test)
        if isinstance(node, ast.If):
            yield ast.If(inverse, node.body, node.orelse)
        else:
            yield ast.IfExp(inverse, node.body, node.orelse)


def _wrong_variable(node: ast.AST, names: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
        for other in names:
            if other != node.id:
                yield ast.Name(other, ast.Load())


def _wrong_function(node: ast.AST, _: Sequence[str]) -> Iterator[_Changed]:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _BUILTINS:
        yield ast.Call(ast.Name(_BUILTINS[node.func.id], ast.Load()), node.args, node.keywords)


_MakeChanges = Callable[[ast.AST, Sequence[str]], Iterator[_Changed]]

BUG_KINDS: Final[Mapping[str, _MakeChanges]] = {
    "off_by_one": _off_by_one,
    "wrong_operator": _wrong_operator,
    "wrong_comparison": _wrong_comparison,
    "wrong_constant": _wrong_constant,
    "swapped_arguments": _swapped_arguments,
    "missing_branch": _missing_branch,
    "wrong_condition": _wrong_condition,
    "wrong_variable": _wrong_variable,
    "wrong_function": _wrong_function,
}
"""Kinds of bugs by name: functions from a node and the names in scope to faulty replacements."""
