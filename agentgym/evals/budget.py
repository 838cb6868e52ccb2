"""A budget of time, tokens and money for an evaluation; ``--resume`` runs the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym.canonical import read_json, shell_word
from agentgym.errors import ConfigError, CorruptDataError, RunStoppedError, UsageError
from agentgym.evals.config import EvalConfig
from agentgym.evals.episodes import write_json
from agentgym.evals.ledger import Ledger
from agentgym.evals.policies import is_scripted
from agentgym.evals.prices import Price, Prices, cost_text, count_tokens, read_prices, saved_prices
from agentgym.settings import checked
from agentgym.types import Trajectory

LIMITS_FILE = "effort.json"


@dataclass(slots=True)
class Budget:
    """Limits of wall minutes, sampled tokens and money; 0 for no limit.

    It counts everything that the ledger does (:class:`agentgym.evals.ledger.Ledger`): failed attempts, opponents,
    judges and checks, too. When the budget is spent, running episodes are dropped; they run again when the
    evaluation is resumed.
    """

    minutes: float = 0.0
    tokens: int = 0
    go_on: str = ""
    """Command that resumes the evaluation, for the message."""
    cost: float = 0.0
    """Limit of money."""
    lift: Callable[[str], None] = lambda name: None
    """Called with the name of a limit that is reached, so that it does not stop the resumed evaluation again."""
    _spent_tokens: int = 0
    _spent_cost: float = 0.0
    _uncounted: str = ""
    _num_episodes: int = 0
    _begun_s: float = field(default_factory=time.monotonic)

    def count(self, cost: float | None, num_tokens: int, uncounted: str = "") -> None:
        """Add a line of the ledger. A cost that is not known counts as nothing here.

        Args:
            uncounted: a model with a price whose server reports no token counts; a limit of money stops at it.
        """
        self._spent_cost += cost or 0.0
        self._spent_tokens += num_tokens
        self._uncounted = self._uncounted or uncounted

    def at(self, price: Price | None) -> Callable[[Trajectory], None]:
        """Return :meth:`end_episode` with the price of a policy."""
        return lambda trajectory: self.end_episode(trajectory, price)

    def end_episode(self, trajectory: Trajectory, price: Price | None = None) -> None:
        """Count a finished episode.

        Raises:
            RunStoppedError: the budget is spent, or the cost is limited and that of the episode is unknown.
        """
        self._num_episodes += 1
        if price is not None and trajectory.turns and price.cost(count_tokens(trajectory)) is None:
            self._uncounted = self._uncounted or "the endpoint"
        self.check()

    def end_attempt(self, trajectory: Trajectory) -> None:
        """Stop after an attempt that failed, which would otherwise be repeated beyond the budget.

        Raises:
            RunStoppedError: the budget is spent.
        """
        if not trajectory.status.is_evidence:
            self.check()

    def check(self) -> None:
        """Stop if the budget is spent, or if its money cannot be counted.

        Raises:
            RunStoppedError: it is.
        """
        if self.cost and self._uncounted:
            self.lift("max_cost")
            go_on = f" to go on: {self.go_on}" if self.go_on else ""
            raise RunStoppedError(
                f"--max-cost cannot be enforced: {self._uncounted} reports no token counts; leave it out{go_on}"
            )
        if self.minutes and time.monotonic() - self._begun_s >= 60 * self.minutes:
            raise self._spent("max_minutes", f"{self.minutes:g} minutes")
        if self.tokens and self._spent_tokens >= self.tokens:
            raise self._spent("max_tokens", f"{self.tokens:,} sampled tokens")
        if self.cost and self._spent_cost >= self.cost:
            raise self._spent("max_cost", f"--max-cost {cost_text(self.cost)}")

    def _spent(self, name: str, what: str) -> RunStoppedError:
        self.lift(name)
        go_on = f"; go on: {self.go_on}" if self.go_on else ""
        episodes = (
            "1 episode, which is kept" if self._num_episodes == 1 else f"{self._num_episodes} episodes, which are kept"
        )
        return RunStoppedError(f"the budget of {what} is spent after {episodes}{go_on}")


@dataclass(slots=True)
class Spending:
    """The limits and the prices of an evaluation, which its folder keeps for the commands that resume it.

    Args:
        folder: folder of the evaluation.
        given: the limits that this command was given. They replace those that the folder keeps.
        policies: policies to evaluate.

    Raises:
        UsageError: the cost is limited, and a policy that samples tokens has no price.
        CorruptDataError: the kept limits or prices cannot be read.
    """

    folder: Path
    given: Mapping[str, Any]
    policies: Sequence[str]
    limits: EvalConfig = field(init=False)
    prices: Prices = field(init=False)
    budget: Budget = field(init=False)
    _kept: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self._kept = self._read() | {name: value for name, value in self.given.items() if name != "prices"}
        self.limits = limits = checked(EvalConfig, self._kept)
        self._keep()
        go_on = f"agentgym eval --resume {shell_word(self.folder)}"
        self.budget = Budget(limits.max_minutes, limits.max_tokens, go_on, limits.max_cost, self._lift)
        prices = self.given.get("prices")
        self.prices = read_prices(prices) if prices else saved_prices(self.folder)
        for policy in self.policies if limits.max_cost else ():
            if not is_scripted(policy) and self.prices.of(policy) is None:
                raise UsageError(f"--max-cost needs the price of {policy}: give --prices IN,OUT or a file")
        self.prices.save(self.folder)

    def ledger(self, folder: Path, *policies: str) -> Ledger:
        """Return the ledger in a folder. What earlier commands spent counts, unless this one was given a new limit."""
        ledger = Ledger(folder, self.prices, policies, self.budget.count)
        if not (self.given.get("max_tokens") or self.given.get("max_cost")):
            ledger.count_again()
        return ledger

    def _read(self) -> dict[str, Any]:
        path = self.folder / LIMITS_FILE
        try:
            kept = read_json(path.read_text(encoding="utf-8")) if path.is_file() else {}
            checked(EvalConfig, kept)
        except (OSError, ValueError, ConfigError) as error:
            raise CorruptDataError(f"{path} cannot be read ({error})") from error
        return dict(kept)

    def _keep(self) -> None:
        write_json(self.folder / LIMITS_FILE, self._kept)

    def _lift(self, name: str) -> None:
        self._kept.pop(name, None)
        self._keep()


def both(*calls: Callable[[Trajectory], None]) -> Callable[[Trajectory], None]:
    """Return a function that calls several functions with an episode, in order."""

    def call_all(trajectory: Trajectory) -> None:
        for call in calls:
            call(trajectory)

    return call_all
