"""Cost of episodes in money, by prices from the user. Without a price the cost is not known.

A file of prices is TOML or JSON, with a table for each policy or model, per million tokens::

    ["openai:https://example.org/v1?model=large"]
    input = 2.5
    cached_input = 1.25
    output = 10

A key is a policy, a model's name behind an endpoint, or the last part of a path.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from agentgym.canonical import read_json, strict_json
from agentgym.errors import ConfigError, CorruptDataError, UsageError
from agentgym.evals.attempts import inner_policy
from agentgym.rollout.record import replace_text
from agentgym.settings import NonNegative, Settings, check_ranges, checked
from agentgym.types import Trajectory

PRICES_FILE = "prices.json"
EVERY = "*"
"""Key of a price for every policy that samples tokens."""
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Price(Settings):
    """Prices in money per million tokens."""

    input: NonNegative
    output: NonNegative
    cached_input: NonNegative | None = None
    """Price of prompt tokens from the server's cache; None for the price of ``input``."""

    def __post_init__(self) -> None:
        check_ranges(self)

    def cost(self, row: Mapping[str, Any]) -> float | None:
        """Return the cost of an episode given by its row of ``episodes.jsonl``, or None if its tokens are not known.

        Example:
            >>> Price(input=2.0, output=10.0, cached_input=1.0).cost(
            ...     {"num_prompt_tokens": 500_000, "num_cached_tokens": 100_000, "num_tokens": 50_000})
            1.4
        """
        if not row.get("has_tokens", True):
            return None
        cached = row.get("num_cached_tokens") or 0
        of_cached = self.input if self.cached_input is None else self.cached_input
        read = (row["num_prompt_tokens"] - cached) * self.input + cached * of_cached
        return float(read + row["num_tokens"] * self.output) / _MILLION


@dataclass(frozen=True, slots=True)
class Prices(Settings):
    """Prices by policy."""

    by_policy: Mapping[str, Price] = field(default_factory=dict)

    def of(self, policy: str) -> Price | None:
        """Return the price of a policy, or None if it is not known."""
        known = (self.by_policy[name] for name in names_of(policy) if name in self.by_policy)
        return next(known, None)

    def save(self, folder: Path) -> None:
        """Save the prices in an evaluation's folder. Without prices, write nothing."""
        if self.by_policy:
            values = {name: asdict(price) for name, price in self.by_policy.items()}
            replace_text(folder / PRICES_FILE, strict_json(values, indent=2) + "\n")


NO_PRICES = Prices()


def names_of(policy: str) -> list[str]:
    """Return the keys under which a policy's price is looked up, the most specific first.

    Example:
        >>> names_of("retry:openai:http://127.0.0.1:8000/v1?model=large,attempts=3")[1:]
        ['openai:http://127.0.0.1:8000/v1?model=large', 'large', '*']
    """
    inner = inner_policy(policy)
    model = parse_qs(urlsplit(inner).query).get("model", [])
    last = [] if model or ":" in inner else [Path(inner).name]
    return list(dict.fromkeys([policy, inner, *model, *last, EVERY]))


def read_prices(given: str) -> Prices:
    """Parse the option ``--prices``: a file, or ``IN,OUT`` or ``IN,CACHED,OUT`` for every policy.

    Raises:
        UsageError: the option has another format, or the file cannot be read.
        ConfigError: the content of the file is wrong.

    Example:
        >>> read_prices("2.5,10").of("smollm2")
        Price(input=2.5, output=10.0, cached_input=None)
    """
    parts = given.split(",")
    if len(parts) in (2, 3) and not Path(given).is_file():
        try:
            first, *middle, last = (float(part) for part in parts)
        except ValueError:
            pass
        else:
            return Prices({EVERY: Price(input=first, output=last, cached_input=middle[0] if middle else None)})
    path = Path(given)
    if path.suffix not in (".toml", ".json") or not path.is_file():
        raise UsageError(
            f"--prices {given}: expected prices per million tokens as IN,OUT or IN,CACHED,OUT, or a file .toml or .json"
        )
    try:
        text = path.read_text(encoding="utf-8")
        values = tomllib.loads(text) if path.suffix == ".toml" else read_json(text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read ({error})") from error
    return prices_from(values, str(path))


def prices_from(values: object, where: str) -> Prices:
    """Return prices from plain data.

    Raises:
        ConfigError: the data are not prices.
    """
    if not isinstance(values, dict) or not values:
        raise ConfigError(f"{where}: expected a table of prices for each policy or model, as in [large] input = 2.5")
    return Prices({str(name): checked(Price, _table(one, where), f"{where}: {name}") for name, one in values.items()})


def _table(values: object, where: str) -> Mapping[str, object]:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a table with input and output, got {values!r}")
    return values


def saved_prices(folder: Path) -> Prices:
    """Return the prices that are saved with an evaluation; empty if there are none.

    Raises:
        CorruptDataError: the file cannot be read.
    """
    path = folder / PRICES_FILE
    if not path.is_file():
        return Prices()
    try:
        return prices_from(read_json(path.read_text(encoding="utf-8")), str(path))
    except (OSError, ValueError, ConfigError) as error:
        raise CorruptDataError(f"{path} cannot be read ({error})") from error


def count_tokens(trajectory: Trajectory) -> dict[str, Any]:
    """Return the token counts of an episode with all its attempts, as fields of its row.

    ``num_tokens``: sampled tokens. ``num_prompt_tokens``: tokens that turns added to the prompt, or the prompt tokens
    that an endpoint reports. ``num_cached_tokens``: those of them in the endpoint's cache; None if it does not report
    them. ``has_tokens``: False if a turn has no count at all.
    """
    turns = trajectory.turns_of_attempts
    told = [turn.usage for turn in turns if turn.usage is not None]
    cached = [usage.cached_tokens for usage in told if usage.cached_tokens is not None]
    return {
        "num_tokens": sum(turn.num_sampled_tokens for turn in turns),
        "num_prompt_tokens": sum(
            len(turn.prompt_ids) if turn.usage is None else turn.usage.prompt_tokens for turn in turns
        ),
        "num_cached_tokens": sum(cached) if cached else None,
        "has_tokens": all(turn.usage is not None or turn.completion.token_ids for turn in turns),
    }


def sum_costs(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the total cost of episodes, or None if the cost of one is not known."""
    costs = [row.get("cost") for row in rows]
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None


def cost_text(cost: float | None) -> str:
    """Format a cost; a dash means that it is not known.

    Example:
        >>> cost_text(0.00123456), cost_text(12.345), cost_text(0.0), cost_text(None)
        ('0.00123', '12.35', '0', '–')
    """
    if cost is None:
        return "–"
    return f"{cost:.2f}" if cost >= 1 else f"{cost:.3g}"
