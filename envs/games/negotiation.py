"""``agentgym/Negotiation-v0``: trade goods with private values; the player who gains more wins.

After the two-player negotiation games of TextArena, which SPIRAL ("Self-Play on Zero-Sum Games Incentivizes Reasoning")
trains on; goods, numbers and texts are agentgym's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np

from agentgym.env.game_env import GameEnv, GameState, Opponent, random_opponent
from agentgym.settings import Range, check_number
from agentgym.types import Task

GOODS = ("wheat", "wood", "ore")
BASE_VALUES = (6, 10, 15)
SPREAD = 0.4
"""Largest relative difference between a player's value of a good and the base value."""
LARGEST_TRADE = 3

Amounts = tuple[int, int, int]
"""Amounts of wheat, wood and ore."""


@dataclass(frozen=True, slots=True)
class Trade:
    """An exchange from the offering player's point of view, with goods by index.

    Example:
        >>> str(Trade(give=1, num_given=2, take=2, num_taken=1))
        'offer 2 wood for 1 ore'
    """

    give: int
    num_given: int
    take: int
    num_taken: int

    def __str__(self) -> str:
        return f"offer {self.num_given} {GOODS[self.give]} for {self.num_taken} {GOODS[self.take]}"

    def gain(self, values: Amounts) -> int:
        """Return the offering player's gain under its own values."""
        return self.num_taken * values[self.take] - self.num_given * values[self.give]


TRADES = tuple(
    Trade(give, num_given, take, num_taken)
    for give, take in product(range(len(GOODS)), repeat=2)
    if give != take
    for num_given, num_taken in product(range(1, LARGEST_TRADE + 1), repeat=2)
)


@dataclass(frozen=True, slots=True)
class NegotiationState:
    """Holdings and values of both players, the open offer, and the turns left."""

    values: tuple[Amounts, Amounts]
    holdings: tuple[Amounts, Amounts]
    num_left: int
    player: int = 0
    offer: Trade | None = None
    gains: tuple[int, int] = (0, 0)

    def actions(self) -> tuple[str, ...]:
        """Return ``pass``, ``accept`` if there is an offer, and all trades for which both players have the goods."""
        if not self.num_left:
            return ()
        accept = ("accept",) if self.offer is not None else ()
        return ("pass", *accept, *(str(trade) for trade in TRADES if self.can(trade)))

    def can(self, trade: Trade) -> bool:
        """Return True if both players have the goods for a trade."""
        mine, others = self.holdings[self.player], self.holdings[1 - self.player]
        return mine[trade.give] >= trade.num_given and others[trade.take] >= trade.num_taken

    def after(self, action: str) -> NegotiationState:
        """Return the state after an action. Any action but ``accept`` declines an open offer."""
        done = replace(self._traded() if action == "accept" else self, offer=None)
        made = next((trade for trade in TRADES if str(trade) == action), None)
        return replace(done, player=1 - self.player, num_left=self.num_left - 1, offer=made)

    def _traded(self) -> NegotiationState:
        offer, offering = self.offer, 1 - self.player
        assert offer is not None
        change = [0] * len(GOODS)
        change[offer.give] -= offer.num_given
        change[offer.take] += offer.num_taken
        holdings = [list(amounts) for amounts in self.holdings]
        gains = list(self.gains)
        for player in (0, 1):
            sign = 1 if player == offering else -1
            for good, amount in enumerate(change):
                holdings[player][good] += sign * amount
                gains[player] += sign * amount * self.values[player][good]
        first, second = ((amounts[0], amounts[1], amounts[2]) for amounts in holdings)
        return replace(self, holdings=(first, second), gains=(gains[0], gains[1]))

    def returns(self) -> tuple[float, float]:
        """Return 1 for the player who gained more, -1 for the other, and 0 for a tie."""
        ahead = float(np.sign(self.gains[0] - self.gains[1]))
        return (ahead, -ahead)

    def view(self, player: int) -> str:
        """Return both players' goods, the player's own values and gain, and the open offer."""
        lines = [
            f"You have {_amounts(self.holdings[player])}; the other has {_amounts(self.holdings[1 - player])}.",
            f"Your values: {_amounts(self.values[player])}. You have gained {self.gains[player]}.",
        ]
        if not self.num_left:
            result = {1.0: "You win.", -1.0: "You lose.", 0.0: "A draw."}[self.returns()[player]]
            lines.append(f"The other gained {self.gains[1 - player]}. {result}")
        else:
            lines.append(f"The other says: {self.offer}." if self.offer else "There is no offer.")
            lines.append(f"Turns left: {self.num_left}.")
        return "\n".join(lines)


def _amounts(amounts: Amounts) -> str:
    return ", ".join(f"{amount} {good}" for good, amount in zip(GOODS, amounts, strict=True))


def winning_trades(state: NegotiationState, player: int) -> list[Trade]:
    """Return the trades by which both players gain, the offering player more; its best one first."""
    mine, others = state.values[player], state.values[1 - player]
    there = replace(state, player=player)
    found = [t for t in TRADES if there.can(t) and t.gain(mine) > -t.gain(others) > 0]
    return sorted(found, key=lambda trade: (-(trade.gain(mine) + trade.gain(others)), str(trade)))


def naive_opponent(state: NegotiationState, rng: np.random.Generator) -> str:
    """Accept any trade with a gain, even if the other player gains more, and offer such trades."""
    values = state.values[state.player]
    if state.offer is not None and -state.offer.gain(values) > 0:
        return "accept"
    wishes = [str(trade) for trade in TRADES if state.can(trade) and trade.gain(values) > 0]
    return wishes[int(rng.integers(len(wishes)))] if wishes else "pass"


class NegotiationEnv(GameEnv):
    """Trade wheat, wood and ore with private values. The player who gains more under its own values wins.

    Players move in turn: ``offer 2 wood for 1 ore``, ``accept`` or ``pass``. In every deal, each player could win
    against a player who accepts every trade with a gain. The oracle knows both players' values.

    Args:
        opponent: ``naive``, ``random``, or ``self``.
        seat: the agent's seat, 0 (moves first) or 1; None draws one per episode.
        num_turns: number of turns of both players together, 2 to 20.
        explain: include the rules in the first message to a player.
        max_errors: impossible moves a player may make before it forfeits.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = NegotiationEnv(seat=0)
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.success_of(0)
        True
    """

    rules: ClassVar[str] = (
        "Trade with the other player. Values are yours alone; the other's may differ. Who has gained more at the end, "
        "each by its own values, wins. Say for instance: offer 2 wood for 1 ore (you give wood), accept, or pass."
    )
    opponents: ClassVar[Mapping[str, Opponent]] = {"naive": naive_opponent, "random": random_opponent}

    def __init__(
        self,
        *,
        opponent: str = "naive",
        seat: int | None = None,
        num_turns: int = 6,
        explain: bool = True,
        max_errors: int = 1,
        render_mode: str | None = None,
    ) -> None:
        check_number("num_turns", num_turns, Range(at_least=2, at_most=20))
        self._num_turns = num_turns
        super().__init__(opponent=opponent, seat=seat, explain=explain, max_errors=max_errors, render_mode=render_mode)

    def deal(self, task: Task) -> NegotiationState:
        """Draw goods and values with which each player has a winning trade to offer."""
        while True:
            state = NegotiationState(
                values=(self._draw_values(), self._draw_values()),
                holdings=(self._draw_goods(), self._draw_goods()),
                num_left=self._num_turns,
            )
            if winning_trades(state, 0) and winning_trades(state, 1):
                return state

    def _draw_values(self) -> Amounts:
        wheat, wood, ore = (round(base * float(self.np_random.uniform(1 - SPREAD, 1 + SPREAD))) for base in BASE_VALUES)
        return (wheat, wood, ore)

    def _draw_goods(self) -> Amounts:
        wheat, wood, ore = (int(self.np_random.integers(2, 7)) for _ in GOODS)
        return (wheat, wood, ore)

    def best_action(self, state: GameState) -> str:
        """Return the offer with the largest lead, decline other offers, and pass when ahead."""
        assert isinstance(state, NegotiationState)
        player = state.player
        if state.gains[player] > state.gains[1 - player]:
            return "pass"
        offers = winning_trades(state, player)
        return str(offers[0]) if offers else "pass"
