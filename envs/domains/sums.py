"""Evaluation of arithmetic in a text without executing it as code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Final

from agentgym.errors import ToolError

_LONGEST = 200
_OPERATORS: Final[Mapping[type[ast.AST], Callable[..., float]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculated(expression: str) -> float:
    """Return the value of an expression of numbers, ``+ - * /`` and brackets, rounded to two decimals.

    Raises:
        ToolError: the expression contains something else or is too long.

    Example:
        >>> calculated("(2.5 + 1) * 3")
        10.5
    """
    try:
        if len(expression) > _LONGEST:
            raise ValueError(f"it is longer than {_LONGEST} characters")
        value = round(float(_value(ast.parse(expression.strip(), mode="eval").body)), 2)
    except (SyntaxError, ValueError, ArithmeticError, MemoryError, RecursionError) as error:
        raise ToolError(f"cannot calculate {expression[:_LONGEST]!r}: {error}", "invalid_arguments") from None
    return value


def _value(node: ast.AST) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return number
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(left), _value(right))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_value(operand))
        case _:
            raise ValueError("it may hold numbers, + - * / and brackets")
