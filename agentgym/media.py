"""Images in prompts: token ids that name an image, and a store of the images' bytes.

A place of a prompt that an image fills holds a negative id, one for each vector that the model makes of the image. The
id is a digest of the image's bytes. Two prompts that differ only in an image therefore differ in their ids, and so does
every key that is made of ids: prefixes, caches, checksums. Code that does not know images cannot take such an id for a
token, as no vocabulary has negative ids.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from agentgym.errors import CorruptDataError

FOLDER: Final = "media"
"""Folder of a run with the images of its records, each once."""
_DIGITS: Final = 13
"""Hexadecimal digits of a digest: 52 bits, which JSON readers that have no whole numbers beyond 2**53 keep exact."""
_MOST_HELD: Final = 1 << 28
"""Most bytes of images in memory, once they are in a folder."""
_INLINE: Final = re.compile(r'"png_base64":"([A-Za-z0-9+/]*={0,2})"')
_NAMED: Final = re.compile(rf'"png_base64":"media:([0-9a-f]{{{_DIGITS}}})"')


class Span(NamedTuple):
    """A run of ``length`` equal media ids of a prompt from ``start`` on; neighbouring equal images are one run."""

    start: int
    length: int
    digest: str


def digest_of(png: bytes) -> str:
    """Return the digest that names an image.

    Example:
        >>> digest_of(b"pixels"), id_of(digest_of(b"pixels"))
        ('6ec9c2b0eb140', -1949005341700417)
    """
    return hashlib.sha256(png).hexdigest()[:_DIGITS]


def id_of(digest: str) -> int:
    """Return the id of an image in prompts, which is negative."""
    return -1 - int(digest, 16)


def digest_in(token_id: int) -> str:
    """Return the digest that a media id holds."""
    return f"{-1 - token_id:0{_DIGITS}x}"


def has_media(token_ids: Sequence[int]) -> bool:
    """Return True if token ids hold an image."""
    return len(token_ids) > 0 and min(token_ids) < 0


def spans_in(token_ids: Sequence[int]) -> tuple[Span, ...]:
    """Return the runs of media ids in token ids.

    Example:
        >>> spans_in((7, -1949005341700417, -1949005341700417, 9))
        (Span(start=1, length=2, digest='6ec9c2b0eb140'),)
    """
    spans, at = [], 0
    for token_id, run in groupby(token_ids):
        length = sum(1 for _ in run)
        if token_id < 0:
            spans.append(Span(at, length, digest_in(token_id)))
        at += length
    return tuple(spans)


def missing_digest(png_base64: str) -> str:
    """Return the digest of an image that a record names and that could not be read; empty for an image.

    Example:
        >>> missing_digest("media:6ec9c2b0eb140"), missing_digest("iVBORw0KGgo=")
        ('6ec9c2b0eb140', '')
    """
    return png_base64.removeprefix("media:") if png_base64.startswith("media:") else ""


class MediaStore:
    """Images by digest: in memory, or in a run's folder, which several processes may share."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._num_bytes = 0
        self._folders: list[Path] = []
        self._own: Path | None = None
        self._lock = threading.Lock()

    def write_to(self, run_dir: Path | None) -> None:
        """Store images in a run's folder from now on; None keeps them in memory."""
        self._own = None if run_dir is None else run_dir / FOLDER
        if self._own is not None:
            self.read_from(self._own)

    def read_from(self, folder: Path) -> None:
        """Look for images in a folder, too."""
        if folder not in self._folders:
            self._folders.append(folder)

    def put(self, png: bytes) -> str:
        """Store an image and return its digest."""
        digest = digest_of(png)
        with self._lock:
            known = self._held.get(digest)
            if known is None:
                self._hold(digest, png)
        if known is not None and known != png:
            raise CorruptDataError(f"two images have the digest {digest}")
        self._write(digest, png)
        return digest

    def get(self, digest: str) -> bytes:
        """Return an image.

        Raises:
            CorruptDataError: it is nowhere, or its file was changed.
        """
        with self._lock:
            if digest in self._held:
                self._held.move_to_end(digest)
                return self._held[digest]
        for folder in self._folders:
            file = folder / f"{digest}.png"
            if file.is_file():
                png = file.read_bytes()
                if digest_of(png) != digest:
                    raise CorruptDataError(f"{file} was changed: its bytes are not those that its name is made of")
                with self._lock:
                    self._hold(digest, png)
                return png
        places = ", ".join(map(str, self._folders)) or f"memory alone, as the run has no folder {FOLDER}"
        raise CorruptDataError(f"the image {digest} of a prompt is missing; looked in {places}")

    def named(self, line: str) -> str:
        """Return a record's line with names in place of the images that it holds; as it is without a folder."""
        if self._own is None or '"png_base64":"' not in line:
            return line
        return _INLINE.sub(lambda found: f'"png_base64":"media:{self.put(base64.b64decode(found[1]))}"', line)

    def inlined(self, line: str, *, keeps_missing: bool = False) -> str:
        """Return a record's line with images in place of their names.

        Args:
            keeps_missing: leave the names of images that are missing or changed (:func:`missing_digest`).

        Raises:
            CorruptDataError: an image is missing or changed.
        """

        def image(found: re.Match[str]) -> str:
            try:
                return f'"png_base64":"{base64.b64encode(self.get(found[1])).decode()}"'
            except CorruptDataError:
                if keeps_missing:
                    return found[0]
                raise

        return _NAMED.sub(image, line) if '"png_base64":"media:' in line else line

    def _hold(self, digest: str, png: bytes) -> None:
        self._held[digest] = png
        self._num_bytes += len(png)
        while self._own is not None and self._num_bytes > _MOST_HELD and len(self._held) > 1:
            oldest = self._held.popitem(last=False)
            self._num_bytes -= len(oldest[1])
            self._write(*oldest)

    def _write(self, digest: str, png: bytes) -> None:
        if self._own is None or (file := self._own / f"{digest}.png").exists():
            return
        self._own.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}.partial")
        partial.write_bytes(png)
        os.replace(partial, file)


MEDIA: Final = MediaStore()
"""The images of this process. Their names are digests, so that one store can serve any number of runs."""
