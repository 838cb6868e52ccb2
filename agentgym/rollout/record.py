"""Records of rollouts, from which all later stages can be repeated.

One gzip file of JSON lines per training step, one line per group, written atomically. A record is enough to recompute
credit, to repeat the training step without environments, and to render the report.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from agentgym.canonical import read_json, strict_json
from agentgym.errors import CorruptDataError
from agentgym.media import FOLDER, MEDIA
from agentgym.types import TrajectoryGroup, TurnCredit

_DEPTH = 4
"""Folders above a record, of which one may be the run's, with its images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """A group with the credit that trained its turns."""

    group: TrajectoryGroup
    credit: tuple[tuple[TurnCredit, ...], ...] = ()
    """One tuple per trajectory, one entry per turn; empty for a trajectory (or group) that was not trained."""
    dropped: str | None = None
    """Reason why the group was not trained; None if it was."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """Model outputs that credit used (entropies, answer probabilities, values), over the turns, tokens or
    trajectories of the valid members in order."""


def record_path(run_dir: Path, step: int) -> Path:
    """Return the path of a training step's rollouts."""
    return run_dir / "rollouts" / f"step-{step:06d}.jsonl.gz"


def probe_record_path(run_dir: Path, env_name: str = "") -> Path:
    """Return the path of the rollouts of ``strategy.probe`` before RL, in a mixture those of one environment."""
    return run_dir / "rollouts" / (f"probe-{env_name}.jsonl.gz" if env_name else "probe.jsonl.gz")


def recorded_steps(run_dir: Path) -> tuple[int, ...]:
    """Return the training steps that a run has records of, in order."""
    names = (path.name for path in (run_dir / "rollouts").glob("step-*.jsonl.gz"))
    return tuple(sorted(int(name[len("step-") :].partition(".")[0]) for name in names))


def write_records(path: Path, records: Iterable[GroupRecord]) -> None:
    """Write a step's records. The file appears only when it is complete on disk."""
    write_lines(path, map(line_of, records))


def line_of(record: GroupRecord) -> bytes:
    """Return a record's line in the file."""
    # pydantic's JSON writer turns infinities into null and rejects lone surrogates
    text = strict_json(_adapter().dump_python(record), keeps_non_finite=True, separators=(",", ":"))
    return MEDIA.named(text).encode() + b"\n"


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write a step's records from their lines (:func:`line_of`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as out:
        out.writelines(lines)
        out.close()
        raw.flush()
        os.fsync(raw.fileno())
    os.replace(partial, path)


def read_records(path: Path, *, keeps_missing: bool = False) -> tuple[GroupRecord, ...]:
    """Read a step's records.

    Args:
        keeps_missing: keep the names of images that are missing or changed, for pages that show the rest.

    Raises:
        CorruptDataError: the file is missing, truncated or not a record, or an image is missing; the message names the
            line or the image.
    """
    from pydantic import ValidationError

    if not path.is_file():
        raise CorruptDataError(f"no record at {path}")
    if path.stat().st_size == 0:  # gzip reads an empty file as no records
        raise CorruptDataError(f"{path} is empty; it was cut short or changed")
    for folder in path.absolute().parents[:_DEPTH]:
        if (folder / FOLDER).is_dir():
            MEDIA.read_from(folder / FOLDER)
    records: list[GroupRecord] = []
    try:
        with gzip.open(path, "rb") as lines:
            for line in lines:
                records.append(
                    _adapter().validate_python(read_json(MEDIA.inlined(line.decode(), keeps_missing=keeps_missing)))
                )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(at) for at in first["loc"])
        at_line = f"{path}, line {len(records) + 1}"
        raise CorruptDataError(f"{at_line}: not a rollout record ({where}: {first['msg']})") from None
    except CorruptDataError:  # of an image
        raise
    except ValueError as error:
        raise CorruptDataError(f"{path}, line {len(records) + 1}: not JSON ({error})") from error
    except (OSError, EOFError, zlib.error) as error:
        raise CorruptDataError(f"{path} cannot be read ({error}); it was cut short or changed") from error
    return tuple(records)


def append_json_line(path: Path, row: Mapping[str, object]) -> None:
    """Append one line to a JSONL file, in place of an unfinished last line of a killed process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as out:
        _leave_out_half_a_line(out)
        out.write(f"{strict_json(row)}\n".encode())


def _leave_out_half_a_line(out: BinaryIO) -> None:
    """Cut a file after the last line that :func:`read_json_lines` returns. Go to its end."""
    size = out.seek(0, os.SEEK_END)
    if size == 0:
        return
    out.seek(-1, os.SEEK_END)
    if out.read(1) == b"\n":
        return
    out.seek(0)
    last = out.read().rpartition(b"\n")[2]
    try:
        read_json(last)
        out.write(b"\n")
    except ValueError:
        out.truncate(size - len(last))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSONL file, without an unfinished last line of a killed process.

    Raises:
        CorruptDataError: any other line is not JSON.
    """
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")  # a character of the last line may be cut, too
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            rows.append(read_json(line))
        except ValueError as error:
            if number == len(lines):
                break
            raise CorruptDataError(f"{path}, line {number}: not JSON ({error})") from error
    return rows


def rewrite_json_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Replace all rows of a JSONL file atomically."""
    replace_text(path, "".join(strict_json(row) + "\n" for row in rows))


def replace_text(path: Path, text: str) -> None:
    """Write a file. It replaces an older one only when it is complete on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")  # a folder's name may be no UTF-8
        os.replace(partial, path)
    except OSError:  # a full disk
        partial.unlink(missing_ok=True)
        raise


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if there is no such file.

    Raises:
        CorruptDataError: it is not JSON, or not an object.
    """
    if not path.is_file():
        return {}
    try:
        value = read_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CorruptDataError(f"{path} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CorruptDataError(f"{path} holds a {type(value).__name__}, expected an object")
    return value


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(GroupRecord)
