"""Notes on what episodes show while they run: hidden images, unread calls, and failures in a row."""

from __future__ import annotations

from collections.abc import Callable

from agentgym.media import has_media
from agentgym.types import ImagePart, Observation, Trajectory

_CALL_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call_start|>", "<|tool_call|>")
"""Texts that begin a call in the formats of common model families."""

_MANY_FAILURES = 8


class EpisodeNotes:
    """A watch over episodes that says each of its notes once.

    Args:
        say: receives a note.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._num_failed = 0
        self._left = [_of_hidden_images, _of_unread_calls, self._of_failures]

    def watch(self, trajectory: Trajectory) -> None:
        """Take an episode."""
        for find in tuple(self._left):
            if note := find(trajectory):
                self._left.remove(find)
                self._say(f"note: {note}")

    def _of_failures(self, trajectory: Trajectory) -> str:
        """Return a note if many episodes in a row failed, which may go on for hours."""
        self._num_failed = 0 if trajectory.status.is_evidence else self._num_failed + 1
        if self._num_failed < _MANY_FAILURES:
            return ""
        return f"the last {_MANY_FAILURES} episodes failed because of the infrastructure, at last: {trajectory.error}"


def _of_hidden_images(trajectory: Trajectory) -> str:
    """Return a note if a local model was prompted without images, since token ids hold the text of messages alone."""
    turns = [
        turn for turn in trajectory.turns if turn.prompt_ids and isinstance(turn.prompt_ids, tuple)
    ]  # on this rank
    if any(has_media(turn.prompt_ids) for turn in turns):
        return ""
    if turns and any(map(_shows_images, (trajectory.observation, *(turn.replies for turn in turns[:-1])))):
        lost = "shows images, which the model does not get: its prompts hold text alone"
        return f"{trajectory.env_id} {lost} (docs/vision.md)"
    return ""


def _of_unread_calls(trajectory: Trajectory) -> str:
    """Return a note if a server returned a call as text. Local models' completions are parsed here."""
    said = [turn.action.text for turn in trajectory.turns if not turn.prompt_ids and not turn.action.calls]
    mark = next((mark for text in said for mark in _CALL_MARKS if mark in text), "")
    if not mark:
        return ""
    return (
        f"a completion holds a call as text ({mark}), which nobody read, so its turn counts as invalid; start the "
        "server with a tool-call parser, or add tools=text&format=NAME to the address (docs/evaluation.md)"
    )


def _shows_images(messages: Observation) -> bool:
    contents = (message.content for message in messages if not isinstance(message.content, str))
    return any(isinstance(part, ImagePart) for content in contents for part in content)
