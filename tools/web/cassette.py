"""A cassette, which records answers of the live web and replays them.

The web changes daily. With a cassette, training is repeatable, and two evaluations differ only in the policy. A file
has one JSON object per line and is append-only, so any number of processes may add to it at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json
from agentgym.errors import CorruptDataError, EnvError, ToolError, UsageError

PAGE = "page"
"""Engine name of fetched pages; the query is the URL and ``k`` is 0."""
LINKED_PAGE = "page with links"
"""Engine name of fetched pages whose text includes links."""


class CassetteMode(StrEnum):
    """Requests that go to the web: all (``record``), none (``replay``), or those missing in the file (``auto``)."""

    RECORD = "record"
    REPLAY = "replay"
    AUTO = "auto"


class CassetteMissError(EnvError):
    """A replayed cassette lacks an answer. It is an infrastructure failure, since the policy is not at fault."""


@dataclass(frozen=True, slots=True)
class Key:
    """The key of an answer. ``date`` is the user's name for the recorded state of the web, usually a date."""

    engine: str
    query: str
    k: int
    date: str


class Cassette:
    """Recorded answers in a file.

    For each key the last line counts, so recording again replaces an answer. If several processes record the same key
    at once in mode ``auto``, all return the answer of the first.

    Args:
        path: the file; in mode ``replay`` it must exist.
        mode: see :class:`CassetteMode`.
        date: name of the recorded or replayed state of the web, for example ``"2026-11-21"``.

    Raises:
        UsageError: there is nothing to replay, or the date is empty.
    """

    def __init__(self, path: Path | str, mode: CassetteMode | str = CassetteMode.AUTO, *, date: str) -> None:
        self.path = Path(path)
        self.mode = CassetteMode(mode)
        self.date = date
        if not date:
            raise UsageError("a cassette needs a date, which names the recorded state of the web, as in '2026-11-21'")
        if self.mode is CassetteMode.REPLAY and not self.path.is_file():
            raise UsageError(f"no cassette at {self.path} to replay; record one first (mode 'auto' or 'record')")
        self._places: dict[Key, tuple[int, int]] = {}  # offsets in the file, since all pages may exceed memory
        self._num_read = 0
        self._lock = threading.Lock()

    async def answer(self, engine: str, query: str, k: int, ask: Callable[[], Awaitable[object]]) -> Any:
        """Return the recorded answer, or the result of ``ask``, which is then recorded.

        A mistake of the policy (:class:`~agentgym.errors.ToolError`) is recorded and raised again on replay.
        Infrastructure failures are not recorded.

        Args:
            engine: name of the engine.
            query: the query or URL.
            k: number of results.
            ask: coroutine function that returns the answer as JSON data.

        Raises:
            CassetteMissError: the answer is not recorded, in mode ``replay``.
        """
        key = Key(engine, query.encode(errors="replace").decode(), k, self.date)
        recorded = None if self.mode is CassetteMode.RECORD else self._lookup(key)
        if recorded is None:
            if self.mode is CassetteMode.REPLAY:
                raise CassetteMissError(
                    f"cassette {self.path} holds no answer for {asdict(key)}; "
                    "record it in mode 'auto', or replay another date"
                )
            recorded = self._record(key, await _outcome(ask))
        if "error" in recorded:
            raise ToolError(recorded["error"]["message"], recorded["error"]["type"])
        return recorded["answer"]

    def engines(self) -> tuple[str, ...]:
        """Return the engines with recorded answers of this date."""
        with self._lock:
            self._read_new_lines()
            return tuple(sorted({key.engine for key in self._places if key.date == self.date} - {PAGE, LINKED_PAGE}))

    def dates(self) -> tuple[str, ...]:
        """Return the dates that are recorded."""
        with self._lock:
            self._read_new_lines()
            return tuple(sorted({key.date for key in self._places}))

    def _lookup(self, key: Key) -> dict[str, Any] | None:
        with self._lock:
            if key not in self._places:
                self._read_new_lines()
            return self._entry(key)

    def _record(self, key: Key, outcome: dict[str, object]) -> dict[str, Any]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"key": asdict(key), **outcome}).encode() + b"\n"
        with self._lock, self.path.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            self._read_new_lines()
            if self.mode is CassetteMode.AUTO and key in self._places:  # another process recorded it first
                return self._entry(key) or outcome
            if self._ends_in_half_a_line():
                line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
            self._read_new_lines()
        return outcome

    def _read_new_lines(self) -> None:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._num_read)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # an incomplete line: it is being written, or its writer was killed
                place = (self._num_read, len(line))
                self._num_read += len(line)
                try:
                    self._places[Key(**read_json(line)["key"])] = place
                except (ValueError, TypeError, KeyError):
                    continue  # an incomplete line with another line appended to it; its answer counts as missing

    def _entry(self, key: Key) -> dict[str, object] | None:
        if key not in self._places:
            return None
        begin, length = self._places[key]
        with self.path.open("rb") as file:
            file.seek(begin)
            try:
                entry: dict[str, Any] = read_json(file.read(length))
            except ValueError as error:
                raise CorruptDataError(
                    f"cassette {self.path} was changed while it was in use (at byte {begin})"
                ) from error
        return entry

    def _ends_in_half_a_line(self) -> bool:
        with self.path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0:
                return False
            file.seek(size - 1)
            return file.read(1) != b"\n"


async def _outcome(ask: Callable[[], Awaitable[object]]) -> dict[str, Any]:
    try:
        return {"answer": await ask()}
    except ToolError as error:
        return {"error": {"type": error.error_type, "message": str(error)}}
