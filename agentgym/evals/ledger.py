"""The ledger of an evaluation: everything that was spent on it, over all commands that worked on it.

``spent.jsonl`` has a line for each completion of an endpoint: of valid, failed, repeated and interrupted episodes, of
opponents and judges, and of the client's own checks. Of a model whose tokens agentgym samples it has a line for each
attempt at an episode. Lines have token counts; prices apply when they are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from agentgym.engine import ENDPOINT
from agentgym.evals.attempts import inner_policy
from agentgym.evals.prices import NO_PRICES, Price, Prices, count_tokens
from agentgym.rollout.record import append_json_line, read_json_lines
from agentgym.spending import heard_by
from agentgym.types import Trajectory, Usage

LEDGER_NAME = "spent.jsonl"
Count = Callable[[float | None, int, str], None]
"""A function of the cost of a line (None if it is not known), of its sampled tokens, and of the model whose price says
nothing because its server reports no token counts, empty for others."""


def _count_nothing(cost: float | None, num_tokens: int, uncounted: str) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The sum of a ledger."""

    cost: float | None
    """Money of all lines with a price and token counts; None if there are none."""
    num_unknown: int
    """Lines whose cost is not known: the model has no price, or the server reports no token counts."""


@dataclass(slots=True)
class Ledger:
    """The ledger in an evaluation's folder.

    Args:
        folder: the folder, which is created with the first line.
        prices: prices of policies and models.
        policies: policies that play, whose options (``&tools=text``) may be part of a price's key.
        count: called with each new line.
    """

    folder: Path
    prices: Prices = NO_PRICES
    policies: Sequence[str] = ()
    count: Count = _count_nothing
    _price_of: dict[str, Price | None] = field(default_factory=dict)

    def hear(self, url: str, model: str, usage: Usage | None) -> None:
        """Add a completion of an endpoint."""
        row: dict[str, Any] = {"model": f"{ENDPOINT}{url}?model={model}"}
        if usage is None:
            row["has_tokens"] = False
        else:
            row |= {
                "num_prompt_tokens": usage.prompt_tokens,
                "num_cached_tokens": usage.cached_tokens,
                "num_tokens": usage.completion_tokens,
            }
        self._add(row)

    def add_attempt(self, policy: str, played: Trajectory) -> None:
        """Add an attempt of a model whose tokens agentgym samples; requests to endpoints have been added already."""
        counted = count_tokens(played)
        if counted["num_tokens"] and not any(turn.usage for turn in played.turns_of_attempts):
            self._add({"model": policy, **counted})

    def spent(self) -> Spent | None:
        """Return the sum of all lines; None if there are none.

        Raises:
            CorruptDataError: a line cannot be read.
        """
        rows = read_json_lines(self.folder / LEDGER_NAME)
        costs = [self._cost(row) for row in rows]
        known = [cost for cost in costs if cost is not None]
        if not rows:
            return None
        return Spent(cost=sum(known) if known else None, num_unknown=len(costs) - len(known))

    def count_again(self) -> None:
        """Count the lines of earlier commands, whose limit of money or tokens still holds."""
        for row in read_json_lines(self.folder / LEDGER_NAME):
            self._count(row)

    def _add(self, row: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        append_json_line(self.folder / LEDGER_NAME, row)
        self._count(row)

    def _count(self, row: dict[str, Any]) -> None:
        cost, model = self._cost(row), str(row["model"])
        is_priced = self._price_of[model] is not None
        self.count(cost, row.get("num_tokens", 0), model if cost is None and is_priced else "")

    def _cost(self, row: dict[str, Any]) -> float | None:
        model = str(row["model"])
        if model not in self._price_of:
            self._price_of[model] = self._find_price(model)
        price = self._price_of[model]
        return None if price is None else price.cost(row)

    def _find_price(self, model: str) -> Price | None:
        """Return the price of a model; the keys of endpoints may have more options than its address."""
        named = [name for name in (*self.policies, *self.prices.by_policy) if _is_at(name, model)]
        found = (self.prices.of(name) for name in [*named, model])
        return next((price for price in found if price is not None), None)


def _is_at(policy: str, model: str) -> bool:
    """Return True if a policy is the model of an endpoint."""
    inner = inner_policy(policy)
    if not inner.startswith(ENDPOINT) or not model.startswith(ENDPOINT):
        return False
    asked, found = urlsplit(inner), urlsplit(model)
    own, names = parse_qs(asked.query).get("model", []), parse_qs(found.query).get("model", [])
    is_same_place = (asked.scheme, asked.netloc, asked.path.rstrip("/")) == (found.scheme, found.netloc, found.path)
    return is_same_place and own in ([], names)


_CURRENT: ContextVar[Ledger | None] = ContextVar("ledger of the evaluation", default=None)


@contextmanager
def kept_in(ledger: Ledger) -> Iterator[None]:
    """Keep the spending of the ``with`` block in a ledger."""
    token = _CURRENT.set(ledger)
    try:
        with heard_by(ledger.hear):
            yield
    finally:
        _CURRENT.reset(token)


def ledger_of(folder: Path) -> Ledger | None:
    """Return the current ledger if it is that of a folder, and None for the folder of one of its parts."""
    ledger = _CURRENT.get()
    return ledger if ledger is not None and ledger.folder.resolve() == folder.resolve() else None


def add_attempt(policy: str, played: Trajectory) -> None:
    """Add an attempt to the current ledger, if there is one."""
    ledger = _CURRENT.get()
    if ledger is not None:
        ledger.add_attempt(policy, played)
