"""The course of a run: its first RL step beside its last ones, to tell a collapse from a policy that never worked."""

from __future__ import annotations

import math
from collections.abc import Mapping

from agentgym.trainers.types import StateDict

NUM_LAST = 3
"""Number of the latest steps whose mean is the end of a run."""
_WATCHED = ("success", "invalid_share", "credit/phantom_share", "lr")
_FALL = 0.2
"""Smallest fall of success that counts, and success has to fall by half."""
_VALID, _INVALID = 0.5, 0.9
"""Shares of invalid turns up to which a policy counts as one that could call tools, and from which as one that cannot.
"""
_PHANTOM = 0.1
"""Share of turns with an advantage in groups without any success from which it is named."""


class Course:
    """The numbers of a run's first step, whose episodes the policy before RL played, and of its latest steps.

    Example:
        >>> course = Course()
        >>> for success in (0.5, 0.1, 0.0, 0.0):
        ...     course.add({"success": success, "invalid_share": 0.0, "lr": 0.1})
        >>> course.collapse()[:66]
        'the policy collapsed during RL: success fell from 50% to 3%. Lower'
    """

    def __init__(self) -> None:
        self._first: dict[str, float] = {}
        self._last: list[dict[str, float]] = []
        self._highest_rate = 0.0

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add a step's metrics."""
        found = {name: metrics[name] for name in _WATCHED if math.isfinite(metrics.get(name, math.nan))}
        self._highest_rate = max(self._highest_rate, found.get("lr", 0.0))
        if not self._first:
            self._first = found
        else:
            self._last = [*self._last, found][-NUM_LAST:]

    def collapse(self, before: float | None = None, after: float | None = None) -> str:
        """Return a line about a policy that could do more at the beginning than at the end; empty if it did not fall.

        Args:
            before: success in the evaluation before RL, if there was one.
            after: success in the evaluation after RL; by default that of the latest steps.
        """
        if len(self._last) < NUM_LAST and after is None:
            return ""
        success = self._first.get("success", math.nan) if before is None else before
        ended = self._mean("success") if after is None else after
        invalid, now_invalid = self._first.get("invalid_share", math.nan), self._mean("invalid_share")
        falls = [
            f"{name} fell from {high:.0%} to {low:.0%}"
            for name, high, low, has_fallen in (
                ("success", success, ended, success - ended >= _FALL and 2 * ended <= success),
                ("valid turns", 1 - invalid, 1 - now_invalid, invalid <= _VALID and now_invalid >= _INVALID),
            )
            if has_fallen
        ]
        return f"the policy collapsed during RL: {' and '.join(falls)}. {self._advice()}" if falls else ""

    def _advice(self) -> str:
        advice = [f"Lower optimizer.lr, which was {self._highest_rate:.3g}"]
        if (phantom := self._mean("credit/phantom_share")) >= _PHANTOM:
            first = self._first.get("credit/phantom_share", 0.0)
            advice.append(
                f"credit/phantom_share went from {first:.2f} to {phantom:.2f}: turns are paid in groups without any "
                'success; gate them by the outcome: credit.shapers=[{"kind": "g_ra"}]'
            )
        return f"{'; '.join(advice)} (docs/collapse.md)"

    def _mean(self, name: str) -> float:
        values = [step[name] for step in self._last if name in step]
        return sum(values) / len(values) if values else math.nan

    def state_dict(self) -> StateDict:
        """Return the state for a checkpoint."""
        return {"first": dict(self._first), "last": [dict(one) for one in self._last], "rate": self._highest_rate}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from what :meth:`state_dict` returned; an empty state is that of a new run."""
        self._first, self._last = dict(state.get("first", {})), [dict(one) for one in state.get("last", ())]
        self._highest_rate = state.get("rate", 0.0)
