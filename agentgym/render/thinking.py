"""Separation of thinking from the rest of a completion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thought:
    """A completion split into thinking and the rest, which is the end of its text."""

    thinking: str
    rest: str
    is_closed: bool
    """False if the completion ended inside its thinking."""


def split_thinking(text: str, think: tuple[str, str] | None, *, is_open: bool) -> Thought:
    """Split thinking from the start of a completion.

    Args:
        text: text of the completion.
        think: opening and closing mark of thinking; None if the model has none.
        is_open: True if the prompt ends with the opening mark.

    Example:
        >>> split_thinking("<think>Left?</think>right", ("<think>", "</think>"), is_open=False)
        Thought(thinking='Left?', rest='right', is_closed=True)
        >>> split_thinking("Left? <tool_call>", ("<think>", "</think>"), is_open=True)
        Thought(thinking='Left? <tool_call>', rest='', is_closed=False)
    """
    if think is None:
        return Thought("", text, True)
    opening, closing = (mark.strip() for mark in think)
    begins = text.lstrip().startswith(opening)
    body = text.lstrip().removeprefix(opening) if begins else text
    thinking, found, rest = body.partition(closing)
    if not begins and not is_open and (not found or opening in thinking):
        return Thought("", text, True)  # thinking that is not at the start of the completion is text
    if not found:
        return Thought(body.strip(), "", False)
    return Thought(thinking.removeprefix("thought\n").strip(), rest, True)
