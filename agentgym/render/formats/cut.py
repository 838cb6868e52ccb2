"""Calls that the token limit cut, in formats that can read them nevertheless.

A cut call in JSON cannot be read. Elsewhere a value may end anywhere, or a call may have no arguments, so a part of a
call is read as another one: ``rm /tmp`` for ``rm /tmp/old``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def open_call(name: str, text: str) -> int | None:
    """Return where the last call of a text begins if it may lack a part; None if it is complete, or not readable.

    Args:
        name: name of the tool-call format.

    Example:
        >>> open_call("glm", "<tool_call>look</tool_call><tool_call>remove")
        27
        >>> open_call("glm", "<tool_call>look</tool_call>") is None
        True
    """
    if name not in _FORMATS:
        return None
    openings, is_complete = _FORMATS[name]
    start = max(0, next((at for at in map(text.rfind, openings) if at >= 0), 0))
    return None if is_complete(text[start:]) else start


def _has_value(mark: str) -> Callable[[str], bool]:
    return lambda call: bool(call.partition(mark)[2].strip())


_FORMATS: Mapping[str, tuple[tuple[str, ...], Callable[[str], bool]]] = {
    "qwen_xml": (("<tool_call>", "<function="), lambda call: "</function>" in call),
    "glm": (("<tool_call>",), lambda call: "</tool_call>" in call),
    "mistral": (("[TOOL_CALLS]",), lambda call: "{" in call),
    "react": (("Action:",), _has_value("Action Input:")),
    "harmony": (("<|start|>assistant",), _has_value("<|message|>")),
    "compact": (("\n",), lambda line: not line.strip()),
}
"""For each format, texts of which the last begins a call, and whether nothing may follow in a call."""
