"""Fields of requests: which ones the endpoint reads, overrides, ignores and refuses.

Agents send many fields that do not change what the policy writes, and new versions send new ones. Such fields are
ignored, and the run says so once per field. Only fields that would change the policy's text are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from agentgym.endpoint.calls import CallRefusedError

LABELS: Final = frozenset(
    ("model", "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention",
     "safety_identifier", "cache_control")
)  # fmt: skip
"""Fields about accounts, storage and caches, which most clients send. They are ignored without a note."""
_LONGEST_NAME = 60
_NUMBERS = frozenset(
    ("temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_p")
)
"""Overridden fields that are numbers in every API."""
_NEVER_NEGATIVE = frozenset(("temperature", "top_p"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The top-level fields of one API.

    A refused field with the value null, false, 0, or an empty text, list or object is ignored: it requests nothing.
    """

    read: frozenset[str]
    """Fields that the endpoint reads. Some of their values are refused."""
    fixed: frozenset[str]
    """Fields whose values the run decides."""
    refused: Mapping[str, str]
    """Fields that would change the policy's text, with the reason or the way out."""
    partly: Mapping[str, str] = field(default_factory=dict)
    """Fields that are read, with the values that are refused."""

    def checked(self, body: Mapping[str, Any]) -> Notes:
        """Return the notes about a request's fields.

        Raises:
            CallRefusedError: a field would change the policy's text, or a number is none.
        """
        for name in sorted(self.refused.keys() & body.keys()):
            if body[name]:
                raise CallRefusedError("unsupported", f"Unsupported field: {name}; {self.refused[name]}.", name)
        notes = Notes()
        notes.overrides(body, self.fixed)
        notes.skips(body, self.read | self.fixed | self.refused.keys() | LABELS)
        return notes


class Notes:
    """Fields of one request that have no effect, for the run's notes."""

    def __init__(self) -> None:
        self.overridden: list[str] = []
        """Fields that the run overrides."""
        self.ignored: list[str] = []
        """Fields and tools that are ignored."""

    def overrides(self, body: Mapping[str, Any], fixed: frozenset[str]) -> None:
        """Note the fields that the run overrides.

        Raises:
            CallRefusedError: one of them is no number, or a negative one, and must not be.
        """
        for name in _NUMBERS & fixed:
            value = body.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise CallRefusedError("invalid", f"{name} must be a number, got {value!r}.", name)
            if value is not None and name in _NEVER_NEGATIVE and value < 0:
                raise CallRefusedError("invalid", f"{name} must be at least 0, got {value!r}.", name)
        self.overridden += sorted(name for name in body if name in fixed and body[name] is not None)

    def skips(self, given: Mapping[str, Any], known: frozenset[str], where: str = "") -> None:
        """Note the set fields of an object that are not among the known ones.

        Args:
            where: path of the object, such as ``messages[].``.
        """
        for name, value in given.items():
            if name not in known and value is not None:
                self.ignore(f"{where}{name}")

    def ignore(self, what: str) -> None:
        """Note something that is ignored."""
        # names come from the agent and go to the terminal
        shown = ascii(what)[1:-1]
        self.ignored.append(shown if len(shown) <= _LONGEST_NAME else f"{shown[:_LONGEST_NAME]}...")


_UNSEEN: Final = frozenset(
    ("image", "image_url", "input_image", "input_audio", "audio", "file", "input_file", "document", "video_url")
)


def unseen_text(kind: object, notes: Notes, what: str) -> str | None:
    """Return the text that replaces a part with an image, sound or file, which the policy cannot see; None for others.

    Example:
        >>> unseen_text("image_url", Notes(), "messages[].content")
        '[image: this model reads text only]'
    """
    if kind not in _UNSEEN:
        return None
    notes.ignore(f"{what} of type {kind}")
    name = str(kind).removeprefix("input_").removesuffix("_url")
    return f"[{name}: this model reads text only]"
