"""Images of messages in rendered conversations: a mark in the text, and then one media id per vector of the image."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from agentgym.errors import EnvError
from agentgym.media import MEDIA
from agentgym.types import ImagePart, Message

IMAGE_MARK: Final = "\U000ffff0"
"""First character of an image's mark; the image's digest follows. The guard keeps it out of texts from outside."""
_MARK: Final = re.compile(rf"{IMAGE_MARK}([0-9a-f]+);")


class PromptVision(Protocol):
    """The part of a model's image processor that prompts need."""

    @property
    def pad(self) -> str:
        """Text of the token that an image's vectors replace, such as ``<|image_pad|>``."""
        ...

    @property
    def slot(self) -> str:
        """Text that the chat template writes once for an image; :meth:`expansion` replaces it."""
        ...

    @property
    def written(self) -> str:
        """Text of an image in a message, for templates that take text alone; ``{}`` is the place of its vectors."""
        ...

    @property
    def control_texts(self) -> tuple[str, ...]:
        """Texts that a message may not write: those of the tokens around and in an image."""
        ...

    def expansion(self, png: bytes) -> str:
        """Return the text of one image, with one :attr:`pad` for each of its vectors.

        Raises:
            EnvError: the image cannot be read, or is too large.
        """
        ...


def marked_text(message: Message, hidden: Callable[[str], str]) -> str:
    """Return the text of a message with a mark at the place of each image.

    Args:
        hidden: hides control texts in a text from outside.

    Raises:
        EnvError: an image is not base64.
    """
    if isinstance(message.content, str):
        return hidden(message.text)
    return "".join(_mark(part) if isinstance(part, ImagePart) else hidden(part.text) for part in message.content)


def has_images(message: Message) -> bool:
    """Return True if a message holds an image."""
    return not isinstance(message.content, str) and any(isinstance(part, ImagePart) for part in message.content)


def _mark(part: ImagePart) -> str:
    try:
        png = base64.b64decode(part.png_base64, validate=True)
    except (ValueError, binascii.Error) as error:
        raise EnvError(f"an image is not base64 ({error}); ImagePart takes PNG bytes in base64") from error
    return f"{IMAGE_MARK}{MEDIA.put(png)};"


def as_parts(text: str) -> list[dict[str, str]]:
    """Return a text with marks as the parts that chat templates take: texts and images, in order.

    Example:
        >>> as_parts(f"look {IMAGE_MARK}0a; here")
        [{'type': 'text', 'text': 'look '}, {'type': 'image'}, {'type': 'text', 'text': ' here'}]
    """
    pieces = _MARK.split(text)
    parts: list[dict[str, str]] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            parts.append({"type": "image"})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts


def digests_of(texts: Iterable[str]) -> list[str]:
    """Return the digests of the images that are marked in texts, in order."""
    return [digest for text in texts for digest in _MARK.findall(text)]


def with_marks(text: str, slot: str, digests: Sequence[str]) -> str | None:
    """Return a rendered text with marks in place of the template's slots; None if their numbers differ."""
    pieces = text.split(slot)
    if len(pieces) != len(digests) + 1:
        return None
    marks = [*(f"{IMAGE_MARK}{digest};" for digest in digests), ""]
    return "".join(piece + mark for piece, mark in zip(pieces, marks, strict=True))


def with_written(text: str, written: str) -> str:
    """Return a text with each mark inside the text of an image in templates that take text alone."""
    return _MARK.sub(lambda found: written.replace("{}", found[0]), text)


def expanded(text: str, vision: PromptVision) -> list[tuple[str, str, int]]:
    """Split a rendered text at its images: each piece of text, and the digest and number of vectors after it."""
    found: list[tuple[str, str, int]] = []
    pieces = _MARK.split(text)
    rest = pieces[0]
    pads = re.compile(f"((?:{re.escape(vision.pad)})+)")
    for digest, after in zip(pieces[1::2], pieces[2::2], strict=True):
        inner = pads.split(vision.expansion(MEDIA.get(digest)))
        for before, run in zip(inner[0::2], inner[1::2], strict=False):
            found.append((rest + before, digest, len(run) // len(vision.pad)))
            rest = ""
        rest = inner[-1] + after
    return [*found, (rest, "", 0)]
