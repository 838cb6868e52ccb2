"""Pictures of data sets: rows of JSONL or Parquet with paths, base64, bytes, or what `datasets` stores.

A row's pictures are in ``image`` or ``images``. Each is a path relative to the file's folder, base64 (also as a
``data:`` URL), bytes, or a mapping with ``bytes`` and ``path`` as Hugging Face's ``datasets`` writes them. All become
PNG, so that broken, huge and foreign pictures are refused when the file is read and not in the middle of a run.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, MissingDataError, UsageError, require_extra
from agentgym.tools.pictures import MOST_BYTES, Size, image_part, opened, padded, placed, png_from
from agentgym.types import ImagePart

_COLUMNS = ("image", "images")
_SUFFIXES = (".jsonl", ".parquet")
_LONGEST_PATH = 1024
_LONGEST_NAME = 255  # characters, of a file in most file systems


def read_picture_rows(path: Path, size: Size | None = None) -> Iterator[tuple[dict[str, Any], tuple[ImagePart, ...]]]:
    """Yield each row of a file without its pictures, and its pictures.

    Args:
        path: a ``.jsonl`` or ``.parquet`` file.
        size: width and height of all pictures, scaled down and padded with grey; None pads each one to multiples of
            224.

    Raises:
        UsageError: there is no such file, or it is of another type.
        CorruptDataError: a row is no object, has no picture, or has one that is refused; the message names file, row
            and picture.
        MissingExtraError: Pillow, or for Parquet pyarrow, is not installed.
    """
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{path} is neither of {', '.join(_SUFFIXES)}, the files of pictures that are read")
    if not path.is_file():
        raise MissingDataError(f"{path} is no file")
    for number, row in enumerate(_rows(path), 1):
        where = f"{path}, row {number}"
        if not isinstance(row, Mapping):
            raise CorruptDataError(f"{where}: expected an object, got {type(row).__name__}")
        given = [one for name in _COLUMNS for one in _listed(row.get(name))]
        if not given:
            raise CorruptDataError(
                f"{where}: no picture in {' or '.join(_COLUMNS)}; it has {', '.join(row) or 'nothing'}"
            )
        pictures = tuple(_part(one, path.parent, f"{at} of {where}", size) for at, one in enumerate(given, 1))
        yield {name: value for name, value in row.items() if name not in _COLUMNS}, pictures


def _rows(path: Path) -> Iterator[Any]:
    if path.suffix == ".parquet":
        require_extra("Parquet files", "parquet", "pyarrow")
        import pyarrow.parquet

        try:
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=64):
                yield from batch.to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise CorruptDataError(f"{path} is no Parquet file: {error}") from error
        return
    with path.open(encoding="utf-8") as lines:
        try:
            for line in lines:
                if line.strip():
                    yield read_json(line)
        except ValueError as error:
            raise CorruptDataError(f"{path}: a line is not JSON: {error}") from error


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _part(given: Any, folder: Path, name: str, size: Size | None) -> ImagePart:
    picture = opened(_data(given, folder, name), name)
    return image_part(png_from(padded(picture) if size is None else placed(picture, size)[0]))


def _data(given: Any, folder: Path, name: str) -> bytes:
    """Return the bytes of a picture's file."""
    if isinstance(given, Mapping):
        inside = given.get("bytes")
        given = given.get("path") if inside is None else inside
    if isinstance(given, bytes):
        return given
    if not isinstance(given, str) or not given:
        raise CorruptDataError(f"the picture {name} is {type(given).__name__}, expected a path, base64 or bytes")
    if given.startswith("data:"):
        return _decoded(given.partition(",")[2], name)
    found = _file(given, folder, name)
    return found if found is not None else _decoded(given, name)


def _file(given: str, folder: Path, name: str) -> bytes | None:
    """Return the bytes of a file below the folder; None if the text is no path of a file there."""
    if len(given) > _LONGEST_PATH or "\0" in given or max(map(len, given.split("/"))) > _LONGEST_NAME:
        return None  # base64
    home = folder.resolve()
    target = (home / given).resolve()  # follows links, which may lead out
    is_below = target.is_relative_to(home)
    is_path = ".." in Path(given).parts or target.exists() or (Path(given).is_absolute() and _has_suffix(given))
    if not is_below and is_path:
        raise CorruptDataError(f"the picture {name} is outside the folder of its file: {given!r}")
    if not is_below or not target.is_file():
        if _has_suffix(given):
            raise CorruptDataError(f"the picture {name} is missing: there is no file {given!r} in {home}")
        return None
    if (length := target.stat().st_size) > MOST_BYTES:
        raise CorruptDataError(f"the picture {name} has {length:,} bytes, more than the {MOST_BYTES:,} allowed")
    return target.read_bytes()


def _has_suffix(given: str) -> bool:
    return "." in given.rpartition("/")[2]


def _decoded(text: str, name: str) -> bytes:
    if len(text) > MOST_BYTES * 4 // 3 + 4:
        raise CorruptDataError(f"the picture {name} has {len(text):,} characters of base64, more than allowed")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise CorruptDataError(f"the picture {name} is neither a file nor base64: {text[:40]!r}") from None
