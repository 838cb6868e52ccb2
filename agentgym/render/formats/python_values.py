"""A parser of Python literals and keyword arguments in linear time.

Python's own parser takes seconds for a megabyte of incomplete calls, and text can exceed its memory and recursion
limits. Calls use a small part of the language: text, numbers, ``True``, ``False``, ``None``, lists, tuples and dicts.
:class:`PythonReader` reads these as :func:`ast.literal_eval` does. It also accepts what models write although Python
does not allow it: ``true``, ``false``, ``null``, line breaks inside quotes, leading zeros, and Python's keywords as
names.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from agentgym.canonical import MAX_DEPTH
from agentgym.render.formats.reading import NotReadableError

NAME = r"[^\W\d][\w.\-]*+"
"""Pattern of a tool's name. Dots and dashes are common in names of MCP servers' tools."""

MAX_VALUES = 30_000
"""Most values and calls that are read from one completion."""

_BLANK = re.compile(r"(?:\s++|#[^\n]*+|\\\n)*+")
_KEY = re.compile(r"([^\W\d][\w\-]*+)\s*+=(?!=)")
_STRING = (
    r"(?P<prefix>[rRuU]?)(?:"
    r"'''(?P<a>[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+)'''"
    r'|"""(?P<b>[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+)"""'
    r"|'(?!'')(?P<c>[^'\\]*+(?:\\.[^'\\]*+)*+)'"
    r'|"(?!"")(?P<d>[^"\\]*+(?:\\.[^"\\]*+)*+)")'
)
_TOKEN = re.compile(
    rf"(?P<string>{_STRING})"
    r"|(?P<number>[+-]?(?:0[xX][\da-fA-F_]++|0[oO][0-7_]++|0[bB][01_]++"
    r"|(?:\d[\d_]*+(?:\.[\d_]*+)?|\.\d[\d_]*+)(?:[eE][+-]?\d[\d_]*+)?)(?![\w.]))"
    r"|(?P<open>[\[({])"
    r"|(?P<word>[^\W\d]\w*+)",
    re.DOTALL,
)
_MORE_TEXT = re.compile(_STRING, re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<x>[\da-fA-F]{2})|u(?P<u>[\da-fA-F]{4})|U(?P<U>[\da-fA-F]{8})|N\{(?P<name>[^}\\]{1,100})\}"
    r"|(?P<one>.))",
    re.DOTALL,
)
_ONE = {
    "\n": "",
    "\\": "\\",
    "'": "'",
    '"': '"',
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}


@dataclass(slots=True)
class ReadingBudget:
    """A budget of values and calls for one completion, which limits the time spent on garbage.

    Args:
        left: values and calls that may still be read. Real completions contain far fewer.
    """

    left: int = MAX_VALUES

    def spend(self, amount: int, at: int) -> None:
        """Spend a part of the budget.

        Raises:
            NotReadableError: the budget is spent.
        """
        self.left -= amount
        if self.left < 0:
            raise NotReadableError(f"more than {MAX_VALUES:,} values", at)


@dataclass(frozen=True, slots=True)
class PythonReader:
    """A reader of literals and arguments in a text.

    Example:
        >>> PythonReader("[1, 'a', (True, None)] and more", ReadingBudget()).value(0)
        ([1, 'a', [True, None]], 22)
        >>> PythonReader("f(to='fridge', n=2)", ReadingBudget()).arguments(2)
        ({'to': 'fridge', 'n': 2}, 19)
    """

    text: str
    effort: ReadingBudget

    def arguments(self, at: int) -> tuple[dict[str, Any], int]:
        """Read ``key=value, ...)`` from ``at``, which is after the opening bracket. Return the arguments and the end.

        If a key is given twice, its last value counts.

        Raises:
            NotReadableError: the text has another syntax.
        """
        arguments: dict[str, Any] = {}
        at = self._after_blank(at)
        while not self.text.startswith(")", at):
            key = _KEY.match(self.text, at)
            if key is None:
                raise NotReadableError("arguments must be named: name(key=value)", at)
            arguments[key.group(1)], at = self.value(key.end())
            at = self._after_item(at, ")")
        return arguments, at + 1

    def value(self, at: int, depth: int = 1) -> tuple[Any, int]:
        """Read the literal at ``at``, after blanks if there are any. Return the value and the end.

        Raises:
            NotReadableError: there is no literal, it has no end, or it is nested deeper than :data:`MAX_DEPTH`.
        """
        at = self._after_blank(at)
        self.effort.spend(1, at)
        found = _TOKEN.match(self.text, at)
        if found is None:
            if self.text.startswith(("'", '"'), at):
                raise NotReadableError("text without a closing quote", len(self.text))
            raise NotReadableError("values must be literals", at)
        kind = found.lastgroup
        if kind == "number":
            return _number(found.group(), at), found.end()
        if kind == "word":
            if found.group() not in _WORDS:
                raise NotReadableError("values must be literals", found.end())
            return _WORDS[found.group()], found.end()
        if kind == "string":
            return self._joined(found)
        if depth >= MAX_DEPTH:
            raise NotReadableError(f"nested deeper than {MAX_DEPTH}", found.end())
        if found.group() == "{":
            return self._members(found.end(), depth + 1)
        return self._items(found.end(), depth + 1, found.group())

    def _joined(self, found: re.Match[str]) -> tuple[str, int]:
        """Return a string joined with adjacent strings, as Python does."""
        pieces, end = [_unescaped(found)], found.end()
        while True:
            following = _MORE_TEXT.match(self.text, self._after_blank(end))
            if following is None:
                return "".join(pieces), end
            self.effort.spend(1, end)
            pieces.append(_unescaped(following))
            end = following.end()

    def _items(self, at: int, depth: int, opening: str) -> tuple[object, int]:
        closing = "]" if opening == "[" else ")"
        is_list = opening == "["
        items: list[Any] = []
        at = self._after_blank(at)
        while not self.text.startswith(closing, at):
            item, end = self.value(at, depth)
            items.append(item)
            at = self._after_item(end, closing)
            is_list = is_list or len(items) > 1 or "," in self.text[end:at]
        return (items if is_list or not items else items[0]), at + 1

    def _members(self, at: int, depth: int) -> tuple[dict[str, object], int]:
        members: dict[str, Any] = {}
        at = self._after_blank(at)
        while not self.text.startswith("}", at):
            key, at = self.value(at, depth)
            at = self._after_blank(at)
            if not self.text.startswith(":", at):
                raise NotReadableError("expected key: value", at)
            members[str(key)], at = self.value(at + 1, depth)
            at = self._after_item(at, "}")
        return members, at + 1

    def _after_item(self, at: int, closing: str) -> int:
        """Return the position of the next item or of the closing bracket."""
        at = self._after_blank(at)
        if self.text.startswith(",", at):
            return self._after_blank(at + 1)
        if not self.text.startswith(closing, at):
            raise NotReadableError(f"expected , or {closing}", at)
        return at

    def _after_blank(self, at: int) -> int:
        found = _BLANK.match(self.text, at)
        return found.end() if found else at


def _number(word: str, at: int) -> int | float:
    digits = word.lstrip("+-").lower()
    try:
        if digits[:2] in ("0x", "0o", "0b"):
            return int(word, 0)
        return float(word) if set(digits) & set(".e") else int(word)
    except ValueError as error:  # `1__0`, or more digits than Python converts
        raise NotReadableError(f"not a number: {str(error)[:60]}", at) from None


def _unescaped(found: re.Match[str]) -> str:
    body = next(part for part in found.group("a", "b", "c", "d") if part is not None)
    if "\\" not in body or found.group("prefix") in ("r", "R"):
        return body
    return _ESCAPE.sub(_character, body)


def _character(found: re.Match[str]) -> str:
    one = found.group("one")
    if one is not None:
        return _ONE.get(one, found.group())  # an unknown escape stays as it is
    if found.group("octal"):
        return chr(int(found.group("octal"), 8))
    try:
        if found.group("name") is not None:
            return unicodedata.lookup(found.group("name"))
        return chr(int(found.group("x") or found.group("u") or found.group("U"), 16))
    except (KeyError, ValueError, OverflowError):
        raise NotReadableError(f"no such character: {found.group()}", found.start()) from None
