"""Pictures of an episode for a report: small, so that episodes of screenshots fit into one file."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Iterator
from itertools import count
from typing import Any

from agentgym.media import FOLDER, missing_digest
from agentgym.types import ImagePart, Message, ToolCall, Turn

LONGEST_IMAGE = 100_000
"""Longest image, in base64 characters, that is included unchanged if Pillow is not installed to shrink it."""
WIDTH = 560
"""Width of an image in a report in pixels, which is enough to read a page's larger print."""
_QUALITY = 55
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def images_of(message: Message, numbers: Iterator[int] | None = None) -> list[dict[str, Any]]:
    """Return a message's images, each with ``type``, ``data`` (base64), its original ``size`` and its ``number``.

    Images that are not PNG or are too long are left out. One that is missing has the type ``missing``, and the name of
    its file as ``data``.

    Args:
        message: any message.
        numbers: numbers for its images, also for those that are left out; from 1 by default.
    """
    if isinstance(message.content, str):
        return []
    parts = (part for part in message.content if isinstance(part, ImagePart))
    found = ((number, _shown(part.png_base64)) for part, number in zip(parts, numbers or count(1), strict=False))
    return [image | {"number": number} for number, image in found if image is not None]


def acted_on(turn: Turn, message: Message, num_seen: int) -> int | None:
    """Return the number of the picture on which a call acted: the one that it names, or the last before the turn.

    Args:
        turn: the turn.
        message: one of its replies.
        num_seen: pictures of the episode before the turn.
    """
    result = message.result
    if result is None or result.box is None:
        return None
    calls = (call for call in turn.action.calls if isinstance(call, ToolCall) and call.id == result.call_id)
    named = next((call.arguments.get("picture") for call in calls), None)
    return named if isinstance(named, int) and not isinstance(named, bool) else num_seen


def missing_files(message: Message) -> list[str]:
    """Return the names of files of a message's images that are missing from the run's folder, or were changed."""
    if isinstance(message.content, str):
        return []
    digests = (missing_digest(part.png_base64) for part in message.content if isinstance(part, ImagePart))
    return [f"{FOLDER}/{digest}.png" for digest in digests if digest]


def _shown(png_base64: str) -> dict[str, object] | None:
    if digest := missing_digest(png_base64):
        return {"type": "missing", "data": f"{FOLDER}/{digest}.png", "size": [1, 1]}
    try:
        png = base64.b64decode(png_base64, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not png.startswith(_PNG_MAGIC) or len(png) < 24:
        return None
    size = [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]  # width and height in the PNG header
    if (webp := _smaller(png)) is not None:
        return {"type": "image/webp", "data": base64.b64encode(webp).decode(), "size": size}
    return {"type": "image/png", "data": png_base64, "size": size} if len(png_base64) <= LONGEST_IMAGE else None


def _smaller(png: bytes) -> bytes | None:
    """Return the image as a small WebP, or None if the conversion fails."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return None
    try:
        image = Image.open(io.BytesIO(png)).convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError):  # a corrupt image; Pillow raises SyntaxError for some
        return None
    if image.width > WIDTH:
        image = image.resize((WIDTH, max(1, round(image.height * WIDTH / image.width))), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "webp", quality=_QUALITY)
    return out.getvalue()
