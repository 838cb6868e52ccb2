"""A budget of time, tokens and money for an evaluation; ``--resume`` runs the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from agentgym.errors import RunStoppedError
from agentgym.evals.prices import Price, cost_text, count_tokens
from agentgym.types import Trajectory


@dataclass(slots=True)
class Budget:
    """Limits of wall minutes, sampled tokens and money; 0 for no limit.

    When the budget is spent, running episodes are dropped; they run again when the evaluation is resumed.
    """

    minutes: float = 0.0
    tokens: int = 0
    go_on: str = ""
    """Command that resumes the evaluation, for the message."""
    cost: float = 0.0
    """Money spent so far, by the prices of :meth:`at`."""
    _spent_tokens: int = 0
    _spent_cost: float = 0.0
    _num_episodes: int = 0
    _begun_s: float = field(default_factory=time.monotonic)

    def at(self, price: Price | None) -> Callable[[Trajectory], None]:
        """Return :meth:`spend` with the price of a policy."""
        return lambda trajectory: self.spend(trajectory, price)

    def spend(self, trajectory: Trajectory, price: Price | None = None) -> None:
        """Add a finished episode, with all its attempts.

        Raises:
            RunStoppedError: the budget is spent, or the cost is limited and that of the episode is unknown.
        """
        self._num_episodes += 1
        counted = count_tokens(trajectory)
        self._spent_tokens += counted["num_tokens"]
        if self.cost and price is not None:
            cost = price.cost(counted)
            if cost is None and trajectory.turns:
                go_on = f" to go on: {self.go_on}" if self.go_on else ""
                raise RunStoppedError(
                    f"--max-cost cannot be enforced: the endpoint reports no token counts; leave it out{go_on}"
                )
            self._spent_cost += cost or 0.0
        if self.minutes and time.monotonic() - self._begun_s >= 60 * self.minutes:
            raise RunStoppedError(self._message(f"{self.minutes:g} minutes"))
        if self.tokens and self._spent_tokens >= self.tokens:
            raise RunStoppedError(self._message(f"{self.tokens:,} sampled tokens"))
        if self.cost and self._spent_cost >= self.cost:
            raise RunStoppedError(self._message(f"--max-cost {cost_text(self.cost)}"))

    def _message(self, what: str) -> str:
        go_on = f"; go on: {self.go_on}" if self.go_on else ""
        episodes = (
            "1 episode, which is kept" if self._num_episodes == 1 else f"{self._num_episodes} episodes, which are kept"
        )
        return f"the budget of {what} is spent after {episodes}{go_on}"


def both(*calls: Callable[[Trajectory], None]) -> Callable[[Trajectory], None]:
    """Return a function that calls several functions with an episode, in order."""

    def call_all(trajectory: Trajectory) -> None:
        for call in calls:
            call(trajectory)

    return call_all
