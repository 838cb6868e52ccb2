"""Pictures of a message for a report: small, so that whole episodes of screenshots have room in one file."""

from __future__ import annotations

import base64
import binascii
import io
from typing import Any

from agentgym.types import ImagePart, Message

LONGEST_IMAGE = 100_000
"""Characters of a picture that is taken as it is, where Pillow is not installed to make it smaller."""
WIDTH = 560
"""Pixels of a picture in a report, which is enough to read a page's larger print."""
_QUALITY = 55
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def images_of(message: Message) -> list[dict[str, Any]]:
    """A message's pictures, each with ``type`` and ``data`` (base64) and its ``size`` before it was made smaller.

    What is no PNG is left out, and what is too long to be shown.
    """
    if isinstance(message.content, str):
        return []
    found = (_shown(part.png_base64) for part in message.content if isinstance(part, ImagePart))
    return [image for image in found if image is not None]


def _shown(png_base64: str) -> dict[str, object] | None:
    try:
        png = base64.b64decode(png_base64, validate=True)
    except (binascii.Error, ValueError):
        return None
    if not png.startswith(_PNG_MAGIC) or len(png) < 24:
        return None
    size = [int.from_bytes(png[at : at + 4], "big") for at in (16, 20)]  # the header's width and height
    if (webp := _smaller(png)) is not None:
        return {"type": "image/webp", "data": base64.b64encode(webp).decode(), "size": size}
    return {"type": "image/png", "data": png_base64, "size": size} if len(png_base64) <= LONGEST_IMAGE else None


def _smaller(png: bytes) -> bytes | None:
    """The picture as a small WebP, None if that cannot be."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        return None
    try:
        image = Image.open(io.BytesIO(png)).convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError):  # a broken file; Pillow raises SyntaxError for some
        return None
    if image.width > WIDTH:
        image = image.resize((WIDTH, max(1, round(image.height * WIDTH / image.width))), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "webp", quality=_QUALITY)
    return out.getvalue()
