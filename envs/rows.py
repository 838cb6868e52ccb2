"""Rows of published data files: JSON lines, a JSON list, one JSON object, or Parquet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, UsageError, require_extra

ROW_SUFFIXES = (".jsonl", ".json", ".parquet")


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file, in its order.

    Raises:
        UsageError: there is no such file, or its suffix is not one of :data:`ROW_SUFFIXES`.
        MissingExtraError: the file is Parquet and pyarrow is not installed.
        CorruptDataError: the file cannot be read, or a row is not a JSON object.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    if path.suffix not in ROW_SUFFIXES:
        raise UsageError(f"{path}: expected a file that ends in {', '.join(ROW_SUFFIXES)}")
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise CorruptDataError(f"{path}: row {number} must be an object with named values, not {str(row)[:60]!r}")
        yield row


def _json_rows(path: Path) -> Iterator[object]:
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".jsonl":
            yield from (read_json(line) for line in text.split("\n") if line.strip())
            return
        whole: object = read_json(text)
        yield from whole if isinstance(whole, list) else [whole]
    except ValueError as error:
        raise CorruptDataError(f"{path} is not JSON (a pointer to the real file, or cut off?): {error}") from error


def _parquet_rows(path: Path) -> Iterator[object]:
    require_extra(str(path), "parquet", "pyarrow")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        for batch in ParquetFile(path).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise CorruptDataError(f"{path} cannot be read as Parquet ({error})") from error
