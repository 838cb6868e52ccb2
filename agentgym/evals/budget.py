"""A limit to what an evaluation may take; what is left goes on by ``--resume``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agentgym.errors import RunStoppedError
from agentgym.types import Trajectory


@dataclass(slots=True)
class Budget:
    """Minutes by the clock and sampled tokens; 0 for no limit.

    Episodes that are being played when it is spent are left out, and played when the evaluation goes on.
    """

    minutes: float = 0.0
    tokens: int = 0
    go_on: str = ""
    """The command by which the evaluation goes on, for the message."""
    _spent_tokens: int = 0
    _num_episodes: int = 0
    _begun_s: float = field(default_factory=time.monotonic)

    def spend(self, trajectory: Trajectory) -> None:
        """Count an episode that has ended.

        Raises:
            RunStoppedError: the budget is spent.
        """
        self._num_episodes += 1
        self._spent_tokens += sum(turn.num_sampled_tokens for turn in trajectory.turns)
        if self.minutes and time.monotonic() - self._begun_s >= 60 * self.minutes:
            raise RunStoppedError(self._message(f"{self.minutes:g} minutes"))
        if self.tokens and self._spent_tokens >= self.tokens:
            raise RunStoppedError(self._message(f"{self.tokens:,} sampled tokens"))

    def _message(self, what: str) -> str:
        go_on = f"; go on: {self.go_on}" if self.go_on else ""
        return f"the budget of {what} is spent after {self._num_episodes} episodes, which are kept{go_on}"


def both(*calls: Callable[[Trajectory], None]) -> Callable[[Trajectory], None]:
    """Return a function that makes several calls with an episode, in order."""

    def call_all(trajectory: Trajectory) -> None:
        for call in calls:
            call(trajectory)

    return call_all
