"""Limits of an evaluation's concurrency, time, tokens and cost. They do not change its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from agentgym.api.policies import is_scripted
from agentgym.canonical import read_json, shell_word, strict_json
from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.evals.budget import Budget
from agentgym.evals.prices import Prices, saved_prices
from agentgym.rollout.record import replace_text
from agentgym.settings import checked

DEFAULT_ENVS = 32
EFFORT_FILE = "effort.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Limits of an evaluation's concurrency, time, tokens and cost; None for those kept in its folder."""

    num_envs: int | None = None
    """Episodes played at the same time; by default 32."""
    max_minutes: float | None = None
    """Limit of one command in minutes of wall time; 0, the default, for no limit. A limit that was reached is lifted:
    the resumed evaluation goes on without it."""
    max_tokens: int | None = None
    """Limit of sampled tokens; 0, the default, for no limit."""
    max_cost: float | None = None
    """Limit of money spent according to :attr:`prices`; 0, the default, for no limit."""
    prices: Prices | None = None
    """None for the prices saved with the evaluation that is resumed."""

    @property
    def slots(self) -> int:
        """Episodes played at the same time."""
        return DEFAULT_ENVS if self.num_envs is None else self.num_envs

    def kept_in(self, folder: Path) -> Effort:
        """Return the limits, completed by those that the evaluation in a folder was begun with, and keep them there.

        Raises:
            CorruptDataError: the kept limits cannot be read.
        """
        path = folder / EFFORT_FILE
        kept: Mapping[str, object] = {}
        if path.is_file():
            try:
                kept = asdict(checked(_Kept, read_json(path.read_text(encoding="utf-8"))))
            except (OSError, ValueError, ConfigError) as error:
                raise CorruptDataError(f"{path} cannot be read ({error})") from error
        missing = {name: value for name, value in kept.items() if getattr(self, name) is None}
        completed = replace(self, **missing)  # type: ignore[arg-type]  # checked above
        completed.keep(folder)
        return completed

    def keep(self, folder: Path) -> None:
        """Write the limits to an evaluation's folder."""
        values = {one.name: getattr(self, one.name) for one in fields(_Kept)}
        kept = {name: value for name, value in values.items() if value is not None}
        replace_text(folder / EFFORT_FILE, strict_json(kept, indent=2) + "\n")

    @property
    def is_limited(self) -> bool:
        """True if the tokens or the money of this command are limited."""
        return bool(self.max_tokens or self.max_cost)

    def budget(self, folder: Path) -> Budget:
        """Return an unspent budget for the evaluation in a folder."""
        go_on = f"agentgym eval --resume {shell_word(folder)}"

        def lift(name: str) -> None:
            replace(self, **{name: None}).keep(folder)

        return Budget(self.max_minutes or 0.0, self.max_tokens or 0, go_on, self.max_cost or 0.0, lift)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """The limits that an evaluation's folder keeps. Its prices are a file of their own."""

    num_envs: int | None = None
    max_minutes: float | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
