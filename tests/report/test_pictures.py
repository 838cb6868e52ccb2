"""Pictures in a report: small, with the size they had, and nothing that is no picture."""

from __future__ import annotations

import base64
import builtins
import io
import random
from typing import Any

import pytest

from agentgym.report import pictures
from agentgym.report.pictures import images_of
from agentgym.types import ImagePart, Message, TextPart

Image = pytest.importorskip("PIL.Image")


def png(width: int, height: int) -> str:
    """A picture of noise, which compresses badly."""
    noise = random.Random(0).randbytes(3 * width * height)
    out = io.BytesIO()
    Image.frombytes("RGB", (width, height), noise).save(out, "png")
    return base64.b64encode(out.getvalue()).decode()


def test_large_pictures_are_made_small() -> None:
    given = png(800, 600)
    message = Message("user", (TextPart("Look."), ImagePart(given)))
    (image,) = images_of(message)
    assert (image["type"], image["size"]) == ("image/webp", [800, 600])
    assert len(image["data"]) < len(given) / 4
    assert Image.open(io.BytesIO(base64.b64decode(image["data"]))).size == (560, 420)


def test_small_pictures_keep_their_size() -> None:
    (image,) = images_of(Message("user", (ImagePart(png(40, 30)),)))
    assert image["size"] == [40, 30]
    assert Image.open(io.BytesIO(base64.b64decode(image["data"]))).size == (40, 30)


@pytest.mark.parametrize("data", ["<script>", "aGk=", base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()])
def test_what_is_no_picture_is_left_out(data: str) -> None:
    assert images_of(Message("user", (ImagePart(data),))) == []


def test_without_pillow_short_ones_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **others: Any) -> Any:
        if name == "PIL":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **others)

    short, long = png(20, 20), png(400, 400)
    monkeypatch.setattr(builtins, "__import__", without)
    (image,) = images_of(Message("user", (ImagePart(short), ImagePart(long))))
    assert image == {"type": "image/png", "data": short, "size": [20, 20], "number": 1}
    assert len(long) > pictures.LONGEST_IMAGE
