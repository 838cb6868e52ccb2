"""The pulse of a run: its current activity, written to a small file every second.

``agentgym view --live`` and the terminal show it. It has no effect on the run, so each beat replaces the last one.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json, strict_json
from agentgym.engine import Engine, EngineHealth, ReportsHealth
from agentgym.errors import error_text
from agentgym.rollout.in_flight import InFlight
from agentgym.rollout.record import replace_text
from agentgym.rollout.request import RolloutRequest
from agentgym.tool import cut_output
from agentgym.types import Trajectory

PULSE_FILE = "pulse.json"
BEAT_S = 1.0
_LONGEST_FAULT = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The state of rollouts at one moment."""

    at_s: float
    """Unix time."""
    doing: str
    """``playing``, ``training`` or ``not playing``."""
    done: int
    """Number of finished episodes since the process began."""
    playing: int
    limit: int
    """Limit of episodes in flight."""
    waiting: int
    """Number of episodes that wait for a slot."""
    failures: dict[str, int] = field(default_factory=dict)
    """Episodes that failed after all retries, by status."""
    retries: int = 0
    """Number of retries after infrastructure failures."""
    last_failure: str = ""
    engine: dict[str, Any] | None = None
    """Fields of :class:`~agentgym.engine.EngineHealth`; None if the engine does not report them."""

    total: int | None = None
    """Total number of episodes; None if it is not fixed."""

    @property
    def health(self) -> EngineHealth | None:
        """Return the load that the engine reports."""
        return None if self.engine is None else EngineHealth(**self.engine)

    @property
    def alarms(self) -> tuple[str, ...]:
        """Return problems, for a line of a terminal.

        Example:
            >>> Beat(at_s=0.0, doing="playing", done=9, playing=4, limit=4, waiting=0, failures={"timeout": 2}).alarms
            ('2 failed',)
        """
        failed, health = sum(self.failures.values()), self.health
        out = health is not None and health.servers is not None and health.ready != health.servers
        servers = [f"servers {health.ready}/{health.servers}"] if health is not None and out else []
        return (*([f"{failed} failed"] if failed else []), *servers)

    @property
    def load(self) -> tuple[str, ...]:
        """Return the current activity, for a line of a terminal."""
        queued = 0 if self.health is None else self.health.queued
        return (
            f"playing {self.playing}",
            *([f"waiting {self.waiting}"] if self.waiting else []),
            *([f"queue {queued}"] if queued else []),
        )


class Pulse:
    """A counter of episodes that writes a :class:`Beat` to a run's folder every second.

    Args:
        in_flight: limit of episodes in flight.
        engine: the engine whose load is included, if it reports it.
        on_beat: called with each beat.
        total: total number of episodes; None if it is not fixed.
    """

    def __init__(
        self,
        run_dir: Path,
        in_flight: InFlight,
        engine: Engine | None = None,
        on_beat: Callable[[Beat], None] = lambda beat: None,
        total: int | None = None,
    ) -> None:
        self._total = total
        self._path, self._in_flight, self._engine, self._on_beat = run_dir / PULSE_FILE, in_flight, engine, on_beat
        self._failures: Counter[str] = Counter()
        self._last_failure = ""
        self._done = self._retries = 0
        self._task: asyncio.Task[None] | None = None

    def count(self, request: RolloutRequest, trajectory: Trajectory) -> None:
        """Count a finished episode."""
        self._done += 1
        self._retries += trajectory.num_retries
        if not trajectory.status.is_evidence:
            self._failures[trajectory.status.value] += 1
            self._last_failure = cut_output(trajectory.error or "")[:_LONGEST_FAULT]

    def beat(self, doing: str) -> Beat:
        """Write the current state and return it."""
        health = self._engine.health() if isinstance(self._engine, ReportsHealth) else None
        beat = Beat(
            at_s=round(time.time(), 1),
            doing=doing,
            done=self._done,
            playing=self._in_flight.num_playing,
            limit=self._in_flight.limit,
            waiting=self._in_flight.num_waiting,
            failures=dict(self._failures),
            retries=self._retries,
            last_failure=self._last_failure,
            engine=None if health is None else asdict(health),
            total=self._total,
        )
        replace_text(self._path, strict_json(asdict(beat)) + "\n")
        self._on_beat(beat)
        return beat

    def start(self) -> None:
        """Start writing in the running event loop; a second call does nothing."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="pulse")

    async def stop(self) -> None:
        """Stop and remove the file, since a finished run has no pulse."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._path.unlink(missing_ok=True)

    async def _run(self) -> None:
        told = ""
        while True:
            try:
                self.beat("playing" if self._in_flight.num_playing else "not playing")
            except Exception as error:  # the episodes go on, and so does the pulse if the next beat succeeds
                if told != (told := error_text(error)):
                    warnings.warn(f"{self._path} shows no current state: {told}", RuntimeWarning, stacklevel=1)
            await asyncio.sleep(BEAT_S)


def read_pulse(run_dir: Path) -> Beat | None:
    """Return the last beat of a run, or None if there is none or it is incomplete."""
    path = run_dir / PULSE_FILE
    try:
        values = read_json(path.read_text(encoding="utf-8"))
        return Beat(**values)
    except (OSError, ValueError, TypeError):  # the file is from another version, or was removed meanwhile
        return None
