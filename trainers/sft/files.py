"""Readers of conversations from files: JSON lines, and Parquet through pyarrow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, UsageError, require_extra
from agentgym.trainers.sft.conversation import Conversation, RowError, read_conversation

SUFFIXES = (".jsonl", ".parquet")


def rehearse_files(paths: Sequence[str]) -> list[str]:
    """Read the files that are on this machine, for a dry run; return a note on those that are not.

    Raises:
        UsageError: a file is invalid; the message names it and the line.
    """
    read_files([path for path in paths if Path(path).exists()])
    missing = [path for path in paths if not Path(path).exists()]
    return [f"sft.files: not on this machine, so not read: {', '.join(missing)}"] if missing else []


def read_files(paths: Sequence[str]) -> list[Conversation]:
    """Return the conversations of all files, in order.

    Raises:
        UsageError: a file is missing, has another format, is empty or has invalid rows; the message names the first.
        MissingExtraError: a file is Parquet and pyarrow is not installed.
    """
    return [conversation for path in paths for conversation in _read(Path(path))]


def _read(path: Path) -> list[Conversation]:
    if path.is_dir():
        raise UsageError(f"sft.files: {path} is a folder; name its files, or a folder of a run by sft.runs")
    if path.suffix not in SUFFIXES:
        raise UsageError(f"sft.files: {path} is neither {' nor '.join(SUFFIXES)}; convert it to one of them")
    if not path.is_file():
        raise UsageError(f"sft.files: there is no file {path}")
    rows = _parquet_rows(path) if path.suffix == ".parquet" else _json_rows(path)
    good: list[Conversation] = []
    bad: list[str] = []
    for where, row in rows:
        try:
            good.append(read_conversation(_loaded(row) if isinstance(row, bytes) else row, where))
        except RowError as error:
            bad.append(f"{where}: {error}")
    if bad:
        raise UsageError(
            f"{bad[0]} ({_counted(len(bad), 'bad row')}, {_counted(len(good), 'good row')} in {path.name})"
        )
    if not good:
        raise UsageError(f"sft.files: {path} has no rows, expected at least one conversation")
    return good


def _json_rows(path: Path) -> Iterator[tuple[str, bytes]]:
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield f"{path}, line {number}", line


def _loaded(line: bytes) -> object:
    try:
        return read_json(line)
    except ValueError as error:
        raise RowError(f"not JSON ({error}), expected an object with messages") from None


def _parquet_rows(path: Path) -> Iterator[tuple[str, object]]:
    require_extra(f"sft.files: {path}", "parquet", "pyarrow")
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        for batch in ParquetFile(path).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}, row {number}", row
    except (ArrowException, OSError) as error:
        raise CorruptDataError(f"sft.files: {path} cannot be read as Parquet ({error})") from error


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
