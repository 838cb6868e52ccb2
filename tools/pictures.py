"""Pictures in messages: sizes that no processor changes, coordinates on them, and PNG files with and without Pillow.

Processors of vision models resize a picture whose sides are no multiples of their patches: of 28 pixels (Qwen2-VL,
Qwen2.5-VL) or 32 (Qwen3-VL, Qwen3.5). A resized picture differs between libraries, and its coordinates are no longer
those that the environment means. Sides that are multiples of 224 are multiples of both.
"""

from __future__ import annotations

import base64
import io
import math
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import numpy as np
from pydantic import Field

from agentgym.errors import ConfigError, CorruptDataError, ToolError, require_extra, require_known
from agentgym.types import ImagePart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from PIL import Image

Scale = Literal["pixels", "normalised"]
"""``pixels`` of the picture, or ``normalised``: 0 to 1000 along each side."""
Size = tuple[int, int]
"""Width and height in pixels."""
Box = tuple[int, int, int, int]
"""Left, top, width, height in pixels."""
Coordinate = Annotated[float, Field(ge=-1e6, le=1e6)]
"""A coordinate as a model writes it. The range is that of a picture, which :class:`Screen` checks."""

SIDE = 224
"""Least common multiple of 28 and 32, in pixels."""
_PATCHES = (28, 32)
_NORMALISED = 1000
MOST_PIXELS = 16_000_000
"""Most pixels of a picture that is read: 64 MB once decoded."""
MOST_BYTES = 20 * 1024 * 1024
"""Most bytes of a picture's file that is read."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats of files that are read; all become PNG."""


def fitting_size(width: int, height: int) -> Size:
    """Return the size of the picture that shows a page: sides that are multiples of :data:`SIDE`.

    A side of at least 448 is rounded down, and the page is scaled. A smaller one is rounded up, and the page is padded,
    since its texts would be too small to read.

    Example:
        >>> fitting_size(1024, 768), fitting_size(332, 214)
        ((896, 672), (448, 224))
    """
    return _fitting_side(width), _fitting_side(height)


def _fitting_side(side: int) -> int:
    return side // SIDE * SIDE if side >= 2 * SIDE else max(1, math.ceil(side / SIDE)) * SIDE


def check_size(size: Sequence[int], what: str) -> Size:
    """Return a picture's size, if there are processors that leave it as it is.

    Raises:
        ConfigError: a side is no multiple of 28 or of 32, both sides alike, or is above 4,096.

    Example:
        >>> check_size((64, 64), "size")
        (64, 64)
    """
    given = tuple(size) if isinstance(size, list | tuple) else ()
    if len(given) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in given):
        raise ConfigError(f"{what} is a width and a height in pixels, such as 448, 448; got {size!r}")
    width, height = given
    fits = any(width % patch == 0 and height % patch == 0 for patch in _PATCHES)
    if not fits or not all(0 < side <= 4096 for side in given):
        raise ConfigError(
            f"{what} {width} x {height} would be resized by every processor; both sides must be multiples of 28 or of "
            f"32, at most 4096; multiples of {SIDE} are both, such as {' x '.join(map(str, fitting_size(*given)))}"
        )
    return width, height


@dataclass(frozen=True, slots=True)
class Screen:
    """A picture on which an agent points, and the scale of its coordinates.

    Example:
        >>> Screen(448, 224, "normalised").point(500, 1000)
        (224, 223)
        >>> Screen(448, 224).point(448, 0)
        Traceback (most recent call last):
        agentgym.errors.ToolError: (448, 0) is outside the picture: x runs from 0 to 447, y from 0 to 223
    """

    width: int
    height: int
    scale: Scale = "pixels"

    def __post_init__(self) -> None:
        require_known("scale of coordinates", self.scale, get_args(Scale))

    @property
    def hint(self) -> str:
        """A sentence that tells an agent about the coordinates."""
        size = f"The picture is {self.width} pixels wide and {self.height} high"
        if self.scale == "pixels":
            return f"{size}; coordinates are its pixels, from the top left."
        return f"{size}; coordinates run from 0 to {_NORMALISED} along each side, from the top left."

    def point(self, x: float, y: float) -> tuple[int, int]:
        """Return the pixel of a point.

        Raises:
            ToolError: it is outside the picture, or is given as shares of 1.
        """
        most_x, most_y = self._most
        if not (0 <= x <= most_x and 0 <= y <= most_y):
            raise self._outside(f"({x:g}, {y:g})")
        if any(0 < value < 1 for value in (x, y)):
            raise ToolError(
                f"({x:g}, {y:g}) looks like shares of 1; x runs from 0 to {most_x}, y from 0 to {most_y}",
                "invalid_arguments",
            )
        return self._pixel(x, self.width), self._pixel(y, self.height)

    def box(self, left: float, top: float, right: float, bottom: float, least: int = 1) -> Box:
        """Return the pixels between two corners.

        Raises:
            ToolError: a corner is outside the picture, the box is empty, or has a side of fewer than ``least`` pixels.
        """
        most_x, most_y = (self.width, self.height) if self.scale == "pixels" else self._most
        said = f"({left:g}, {top:g}, {right:g}, {bottom:g})"
        if not (0 <= left <= most_x and 0 <= right <= most_x and 0 <= top <= most_y and 0 <= bottom <= most_y):
            raise ToolError(
                f"the box {said} is outside the picture: x runs from 0 to {most_x}, y from 0 to {most_y}",
                "invalid_arguments",
            )
        if right <= left or bottom <= top:
            raise ToolError(
                f"the box {said} is empty; give left, top, right, bottom, with right > left and bottom > top",
                "invalid_arguments",
            )
        if all(value <= 1 for value in (right, bottom)):
            raise ToolError(
                f"the box {said} looks like shares of 1; x runs from 0 to {most_x}, y from 0 to {most_y}",
                "invalid_arguments",
            )
        across, down = (1.0, 1.0) if self.scale == "pixels" else (self.width / _NORMALISED, self.height / _NORMALISED)
        x, y = math.floor(left * across + 1e-9), math.floor(top * down + 1e-9)
        width, height = math.ceil(right * across - 1e-9) - x, math.ceil(bottom * down - 1e-9) - y
        if min(width, height) < least:
            raise ToolError(
                f"the box {said} has {width} x {height} pixels; each side needs at least {least}", "invalid_arguments"
            )
        return x, y, width, height

    def spot(self, x: object, y: object) -> Box | None:
        """Return a box of 16 pixels around a point as a call gives it, for viewers; None if the point is refused."""
        given = [float(at) for at in (x, y) if isinstance(at, int | float) and not isinstance(at, bool)]
        try:
            across, down = self.point(*given) if len(given) == 2 else (-1, -1)
        except ToolError:
            return None
        return None if across < 0 else (across - 8, down - 8, 16, 16)

    def said(self, x: int, y: int) -> tuple[int, int]:
        """Return the whole coordinates that are nearest to a pixel's middle."""
        if self.scale == "pixels":
            return x, y
        return round((x + 0.5) * _NORMALISED / self.width), round((y + 0.5) * _NORMALISED / self.height)

    @property
    def _most(self) -> tuple[int, int]:
        return (self.width - 1, self.height - 1) if self.scale == "pixels" else (_NORMALISED, _NORMALISED)

    def _pixel(self, value: float, side: int) -> int:
        return int(value) if self.scale == "pixels" else min(int(value * side / _NORMALISED), side - 1)

    def _outside(self, said: str) -> ToolError:
        most_x, most_y = self._most
        return ToolError(
            f"{said} is outside the picture: x runs from 0 to {most_x}, y from 0 to {most_y}", "invalid_arguments"
        )


# ------------------------------------------------------------------------------------------------ PNG without Pillow


def png_of(pixels: np.ndarray) -> bytes:
    """Return colours, ``[height, width, 3]`` of ``uint8``, as a PNG.

    Example:
        >>> png_size(png_of(np.zeros((2, 3, 3), np.uint8)))
        (3, 2)
    """
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with its filter, 0
    rows[:, 1:] = pixels.reshape(height, 3 * width)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 1)
    return _PNG + _chunk(b"IHDR", head) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


_PNG = b"\x89PNG\r\n\x1a\n"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_size(png: bytes) -> Size:
    """Return width and height of a PNG, read from its first bytes.

    Raises:
        CorruptDataError: it is no PNG.
    """
    if len(png) < 24 or not png.startswith(_PNG):
        raise CorruptDataError("the picture is no PNG")
    width, height = struct.unpack(">II", png[16:24])
    return int(width), int(height)


def image_part(png: bytes) -> ImagePart:
    """Return a PNG as a part of a message."""
    return ImagePart(base64.b64encode(png).decode())


def png_bytes(part: ImagePart) -> bytes:
    """Return the PNG of a message's part.

    Raises:
        CorruptDataError: it is not base64.
    """
    try:
        return base64.b64decode(part.png_base64, validate=True)
    except ValueError as error:
        raise CorruptDataError(f"the picture is not base64: {error}") from error


# --------------------------------------------------------------------------------------------------- with Pillow


def opened(data: bytes, name: str) -> Image.Image:
    """Return a picture from the bytes of its file, decoded whole, upright, as RGB.

    Args:
        data: the file's bytes, in one of :data:`FORMATS`.
        name: name of the picture in errors.

    Raises:
        CorruptDataError: it is broken, of another format, or larger than :data:`MOST_BYTES` or :data:`MOST_PIXELS`.
        MissingExtraError: Pillow is not installed.
    """
    require_extra("reading pictures", "images", "PIL")
    from PIL import Image, ImageOps

    if not data:
        raise CorruptDataError(f"the picture {name} is empty")
    if len(data) > MOST_BYTES:
        raise CorruptDataError(f"the picture {name} has {len(data):,} bytes, more than the {MOST_BYTES:,} allowed")
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:  # Pillow's own limit is far above ours
        raise CorruptDataError(f"the picture {name} has more than the {MOST_PIXELS:,} pixels allowed") from None
    except Exception as error:  # a plugin raises what it likes for bytes of others
        known = ", ".join(FORMATS)
        raise CorruptDataError(f"the picture {name} is broken or of another format than {known}: {error}") from error
    if (size := picture.width * picture.height) > MOST_PIXELS:  # known from the header, before anything is decoded
        raise CorruptDataError(
            f"the picture {name} has {picture.width} x {picture.height} pixels ({size:,}), more than the "
            f"{MOST_PIXELS:,} allowed"
        )
    try:
        picture.load()
        upright = ImageOps.exif_transpose(picture)
        return _on_white(upright)
    except Exception as error:
        raise CorruptDataError(f"the picture {name} is broken: {error}") from error


def _on_white(picture: Image.Image) -> Image.Image:
    """Return a picture as RGB. What is transparent becomes white, as on a page."""
    from PIL import Image

    if picture.mode not in ("RGBA", "LA", "PA") and "transparency" not in picture.info:
        return picture.convert("RGB")
    ground = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(ground, picture.convert("RGBA")).convert("RGB")


def png_from(picture: Image.Image) -> bytes:
    """Return a picture of Pillow as a PNG."""
    out = io.BytesIO()
    picture.save(out, format="PNG")
    return out.getvalue()


def placed(picture: Image.Image, size: Size) -> tuple[Image.Image, float]:
    """Return a picture scaled into the top left of one of another size, and the scale, at most 1.

    The aspect stays, and the rest is grey.
    """
    from PIL import Image

    scale = min(1.0, size[0] / picture.width, size[1] / picture.height)
    inner = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
    if inner != picture.size:
        picture = picture.resize(inner, Image.Resampling.LANCZOS)
    return _on_grey(picture, size), scale


def padded(picture: Image.Image) -> Image.Image:
    """Return a picture in the top left of a grey one, whose sides are the next multiples of :data:`SIDE`."""
    width, height = (math.ceil(side / SIDE) * SIDE for side in picture.size)
    return _on_grey(picture, (width, height))


def _on_grey(picture: Image.Image, size: Size) -> Image.Image:
    from PIL import Image

    if picture.size == size:
        return picture
    whole = Image.new("RGB", size, "#808080")
    whole.paste(picture, (0, 0))
    return whole
