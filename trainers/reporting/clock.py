"""Seconds of a training step, by phase."""

from __future__ import annotations

import time


class Clock:
    """Seconds between laps, summed by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        """Add the seconds since the last lap to ``name``."""
        now = time.perf_counter()
        self.seconds[f"time/{name}_s"] = self.seconds.get(f"time/{name}_s", 0.0) + now - self._last
        self._last = now
