"""Text that replaces earlier turns in a prompt: the last turns or a summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from agentgym.types import ImagePart, Message, Observation, TextPart

TURNS_LEFT = "\nTurns left: {number}."
TURNS_TAKEN = "Turns taken: {number}. The last of them:"
NOW = "Now:"
SUMMARY = "Summary of the turns so far:"
HINT = "\nHint: {text}"
FEEDBACK = "Feedback: {text}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A finished turn: the observation and the action."""

    observation: Observation
    action: str


def remembered(first: Observation, past: Sequence[Exchange], num_turns: int, now: Observation) -> Observation:
    """Return a prompt with the task, the last ``num_turns`` turns and the current observation.

    The first observation is the task and always shown, so the first turn adds only its action.

    Example:
        >>> def seen(text):
        ...     return (Message("tool", text),)
        >>> past = [Exchange(seen("Find the mug."), "look"), Exchange(seen("A fridge."), "open fridge")]
        >>> print(remembered(seen("Find the mug."), past, 1, seen("It is open."))[-1])
        Turns taken: 2. The last of them:
        A fridge.
        > open fridge
        Now:
        It is open.
    """
    lines = [TURNS_TAKEN.format(number=len(past))] if num_turns else []
    for index in range(max(0, len(past) - num_turns), len(past)):
        seen = "\n".join(message.text for message in past[index].observation)
        lines += [f"> {past[index].action}"] if index == 0 else [seen, f"> {past[index].action}"]
    return _continued(first, "\n".join([*lines, NOW]), now)


def summarised(first: Observation, summary: str, now: Observation) -> Observation:
    """Return a prompt with the task, a summary and the current observation."""
    return _continued(first, f"{SUMMARY}\n{summary}\n{NOW}", now)


def with_turns_left(observation: Observation, number: int) -> Observation:
    """Return the observation with the number of turns left in its last message.

    Example:
        >>> with_turns_left((Message("user", "A room."),), 3)[0].text
        'A room.\\nTurns left: 3.'
    """
    if not observation:
        return observation
    return (*observation[:-1], with_note(observation[-1], TURNS_LEFT.format(number=number)))


def with_note(message: Message, note: str) -> Message:
    """Return a message with text at its end.

    Example:
        >>> with_note(Message("user", "A room."), HINT.format(text="look")).text
        'A room.\\nHint: look'
    """
    content = message.content
    return replace(message, content=content + note if isinstance(content, str) else (*content, TextPart(note)))


def scripted_summary(past: Sequence[Exchange], fits: Callable[[str], bool]) -> str:
    """Return the summary of a demonstration: the newest turns that fit, oldest first.

    Example:
        >>> past = [Exchange((Message("tool", f"Room {n}."),), f"go {n}") for n in range(9)]
        >>> print(scripted_summary(past, lambda text: len(text) < 30))
        Room 7.
        > go 7
        Room 8.
        > go 8
    """
    summary = ""
    for exchange in reversed(past):
        seen = "\n".join(message.text for message in exchange.observation)
        whole = "\n".join(filter(None, [seen, f"> {exchange.action}", summary]))
        if not fits(whole):
            break
        summary = whole
    newest = f"> {past[-1].action}" if past else ""
    return summary or (newest if fits(newest) else "")


def _continued(first: Observation, text: str, now: Observation) -> Observation:
    """Append text and the current observation to the last user message of the first observation."""
    parts: list[TextPart | ImagePart] = []
    *before, last = first or (Message("user"),)
    if last.role == "user":
        parts += [*_parts(last), *([TextPart("\n\n")] if last.text else [])]
    else:
        before.append(last)
    parts.append(TextPart(text))
    for message in now:
        parts += [TextPart("\n"), *_parts(message)]
    has_images = any(isinstance(part, ImagePart) for part in parts)
    joined = "".join(part.text for part in parts if isinstance(part, TextPart))
    return (*before, Message("user", tuple(parts) if has_images else joined))


def _parts(message: Message) -> list[TextPart | ImagePart]:
    return [TextPart(message.content)] if isinstance(message.content, str) else list(message.content)
