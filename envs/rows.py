"""Rows of published data files: JSON lines, a JSON list, one JSON object, or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, MissingDataError, UsageError, require_extra

ROW_SUFFIXES = (".jsonl", ".json", ".parquet")
_HINT = " (a pointer to the real file, or cut off?)"


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, in its order.

    Raises:
        UsageError: there is no such file, or its suffix is not one of :data:`ROW_SUFFIXES`.
        MissingExtraError: the file is Parquet and pyarrow is not installed.
        CorruptDataError: the file cannot be read, or a row is not a JSON object.
    """
    if not path.is_file():
        raise MissingDataError(f"there is no file {path}")
    if path.suffix not in ROW_SUFFIXES:
        raise UsageError(f"{path}: expected a file that ends in {', '.join(ROW_SUFFIXES)}")
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise CorruptDataError(f"{path}: row {number} must be an object with named values, not {str(row)[:60]!r}")
        yield row


def text_field(row: Mapping[str, Any], name: str) -> str:
    """Return a field of a row as text.

    Raises:
        KeyError: the row does not have it.
        ValueError: it is null or not a single value, and so no text.

    Example:
        >>> text_field({"answer": 7}, "answer")
        '7'
    """
    value = row[name]
    if value is None or isinstance(value, dict | list):
        raise ValueError(f"{name} is {str(value)[:60] if value is not None else 'null'}, expected a text")
    return str(value)


def read_utf8(path: Path) -> str:
    """Return the text of a file, without a byte order mark.

    Raises:
        CorruptDataError: it is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not UTF-8 ({error}); convert it, as iconv -t utf-8 does") from error


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not blank, with their numbers from 1.

    ``str.splitlines`` would also split at U+2028 and U+0085, which JSON text may hold.

    Raises:
        CorruptDataError: the file is not UTF-8.
    """
    return ((number, line) for number, line in enumerate(read_utf8(path).split("\n"), 1) if line.strip())


def read_json_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a file of JSON lines.

    Raises:
        CorruptDataError: the file is not UTF-8, or a line is not JSON; the error names it.
    """
    for number, line in lines_of(path):
        try:
            yield read_json(line)
        except ValueError as error:
            raise CorruptDataError(f"{path}, line {number} is not JSON{_HINT}: {error}") from error


def read_json_file(path: Path) -> Any:
    """Return the value of a JSON file.

    Raises:
        CorruptDataError: the file is not UTF-8 or not JSON.
    """
    try:
        return read_json(read_utf8(path))
    except ValueError as error:
        raise CorruptDataError(f"{path} is not JSON{_HINT}: {error}") from error


def _json_rows(path: Path) -> Iterator[object]:
    if path.suffix == ".jsonl":
        return read_json_lines(path)
    whole: object = read_json_file(path)
    return iter(whole if isinstance(whole, list) else [whole])


def _parquet_rows(path: Path) -> Iterator[object]:
    require_extra(str(path), "parquet", "pyarrow")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        for batch in ParquetFile(path).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise CorruptDataError(f"{path} cannot be read as Parquet ({error})") from error
