"""Texts from outside for terminals: characters that control a terminal are shown, not obeyed."""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and line feed, DEL, C1
    r"\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # line separators, and controls of the direction of writing
    r"\U000e0000-\U000e007f]"  # invisible tags
)
_CR_LF: Final = re.compile(r"\r+\n")


def visible(text: str) -> str:
    r"""Return a text whose control characters, other than tab and line feed, are written as escapes.

    A page, a tool or a model could otherwise set a terminal's title or clipboard, move its cursor, or reverse the order
    of what is shown.

    Example:
        >>> visible("red: \x1b[31m, bell: \x07, reversed: \u202e")
        'red: \\x1b[31m, bell: \\x07, reversed: \\u202e'
    """
    if text.isascii() and text.isprintable():
        return text
    return _CONTROLS.sub(_escaped, _CR_LF.sub("\n", text))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
