"""Metrics of a server in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Final

BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class Durations:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BUCKETS_S) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """Add a duration in seconds."""
        self._counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> list[str]:
        """Return the histogram's lines; buckets are cumulative."""
        lines, so_far = [f"# TYPE {name} histogram"], 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self._counts, strict=True):
            so_far += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {so_far}')
        return [*lines, f"{name}_sum {self._sum:.6f}", f"{name}_count {so_far}"]


def prometheus_text(num_sessions: int, counts: Mapping[str, int], durations: Durations) -> str:
    """Return all metrics.

    Example:
        >>> print(prometheus_text(2, {"steps": 5}, Durations()).splitlines()[1])
        agentgym_sessions 2
    """
    lines = ["# TYPE agentgym_sessions gauge", f"agentgym_sessions {num_sessions}"]
    for name in ("opened", "closed", "reaped", "refused", "requests", "steps", "errors"):
        full = f"agentgym_{name}_total"
        lines += [f"# TYPE {full} counter", f"{full} {counts.get(name, 0)}"]
    return "\n".join([*lines, *durations.lines("agentgym_request_seconds")]) + "\n"
