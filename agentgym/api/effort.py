"""Limits of an evaluation's concurrency, time, tokens and cost. They do not change its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgym.api.policies import is_scripted
from agentgym.canonical import shell_word
from agentgym.errors import UsageError
from agentgym.evals.budget import Budget
from agentgym.evals.prices import Prices, saved_prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits of an evaluation's concurrency, time, tokens and cost."""

    num_envs: int
    """Episodes played at the same time."""
    max_minutes: float = 0.0
    """Limit in minutes of wall time; 0 for no limit."""
    max_tokens: int = 0
    """Limit of sampled tokens; 0 for no limit."""
    max_cost: float = 0.0
    """Limit of money spent according to :attr:`prices`; 0 for no limit."""
    prices: Prices | None = None
    """None for the prices saved with the evaluation that is resumed."""

    def budget(self, folder: Path) -> Budget:
        """Return an unspent budget for the evaluation in a folder."""
        return Budget(self.max_minutes, self.max_tokens, f"agentgym eval --resume {shell_word(folder)}", self.max_cost)

    def prices_in(self, folder: Path, policies: Sequence[str]) -> Prices:
        """Return the prices of an evaluation and save them in its folder.

        Raises:
            UsageError: the cost is limited, and a policy that samples tokens has no price.
            CorruptDataError: the saved prices cannot be read.
        """
        prices = saved_prices(folder) if self.prices is None else self.prices
        if self.max_cost:
            for policy in policies:
                if not is_scripted(policy) and prices.of(policy) is None:
                    raise UsageError(f"--max-cost needs the price of {policy}: give --prices IN,OUT or a file")
        prices.save(folder)
        return prices
