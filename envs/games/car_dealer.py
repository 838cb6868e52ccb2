"""``agentgym/CarDealer-v0``: bargain with a dealer over a car.

After LMRL-Gym's Car Dealer ("LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models", Abdulhai
et al., 2023), in which a language model plays the dealer. Here the dealer follows a rule with parameters drawn from the
seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar

from agentgym.canonical import canonical
from agentgym.envs.games.solo_game import SoloGame
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import ToolError
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import Message, Task

CARS = ("hatchback", "estate car", "pick-up", "van", "convertible", "saloon", "minibus", "off-roader")


@dataclass(frozen=True, slots=True)
class Dealer:
    """The state of a dealer; prices are integers.

    The dealer accepts an offer of at least its own next price. Otherwise it lowers the asked price by the share
    ``concession`` of the difference to ``reserve`` and loses one round of ``patience``. An offer below the share
    ``insult`` of the asked price costs two rounds and does not change the price.
    """

    asked: int
    reserve: int
    """Lowest price at which the dealer sells."""
    concession: float
    insult: float
    patience: int
    """Rounds until the dealer stops."""

    @property
    def next_asked(self) -> int:
        """Return the dealer's next price, which is also the lowest offer that it accepts now."""
        return self.reserve + round((1 - self.concession) * (self.asked - self.reserve))

    def answered(self, price: int) -> Dealer:
        """Return the dealer after an offer that it does not accept."""
        if price < self.insult * self.asked:
            return replace(self, patience=self.patience - 2)
        return replace(self, asked=self.next_asked, patience=self.patience - 1)


def best_offer(dealer: Dealer) -> int:
    """Return the best offer of a buyer who knows the dealer: the lowest that is no insult, and in the last round the
    lowest accepted one.

    Example:
        >>> dealer = Dealer(asked=100, reserve=60, concession=0.5, insult=0.5, patience=2)
        >>> best_offer(dealer), best_offer(dealer.answered(50))
        (50, 70)
    """
    low = ceil(dealer.insult * dealer.asked)
    return low if low < dealer.next_asked and dealer.patience > 1 else dealer.next_asked


def best_price(dealer: Dealer) -> int:
    """Return the final price of a buyer who always makes the best offer."""
    while (price := best_offer(dealer)) < dealer.next_asked:
        dealer = dealer.answered(price)
    return price


class CarDealerEnv(SoloGame):
    """Bargain with a dealer over a car: offer, accept the price asked, or leave.

    The reward is the buyer's share of the surplus, ``(worth - price) / (worth - reserve)``: 1 at the dealer's lowest
    price, 0 for leaving, negative for paying more than the car is worth. A reward of at least 0.5 is a success.

    Args:
        max_patience: most rounds of a dealer's patience, 2 to 20; the fewest are half of it.
        tightness: share by which the car's worth is below the first asked price, 0 to 0.5. The larger it is, the
            smaller is the surplus.
        turn_cost: cost of a turn, taken off the reward.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = CarDealerEnv()
        >>> env.reset(seed=0)[0][0].text
        'A used minibus. To you it is worth 14280. The dealer asks for 16800.'
        >>> while not env.step(env.oracle())[2]:
        ...     pass
    """

    success_outcome: ClassVar[float] = 0.5
    state_names = ("dealer", "_worth")
    dealer = SinceReset[Dealer]()
    """The dealer of the current episode."""
    _worth = 0

    def __init__(
        self,
        *,
        max_patience: int = 8,
        tightness: float = 0.15,
        turn_cost: float = 0.0,
        render_mode: str | None = None,
    ) -> None:
        check_number("max_patience", max_patience, Range(at_least=2, at_most=20))
        check_number("tightness", tightness, Range(at_least=0, at_most=0.5))
        check_number("turn_cost", turn_cost, Range(at_least=0))
        self._turn_cost = turn_cost
        knobs = {"max_patience": max_patience, "tightness": tightness}
        super().__init__(knobs, max_turns=2 * max_patience, render_mode=render_mode)

    def start(self, task: Task) -> str:
        knobs = {**self._knobs, **task.data}
        car = CARS[int(self.np_random.integers(len(CARS)))]
        while True:
            self.dealer, self._worth = self._draw(knobs)
            if self._share(best_price(self.dealer)) >= 0.75:  # so that bargaining pays
                break
        return f"A used {car}. To you it is worth {self._worth}. The dealer asks for {self.dealer.asked}."

    def _draw(self, knobs: dict[str, Any]) -> tuple[Dealer, int]:
        rng = self.np_random
        asked = int(rng.integers(30, 200)) * 100
        dealer = Dealer(
            asked=asked,
            reserve=int(asked * rng.uniform(0.5, 0.75)),
            concession=float(rng.uniform(0.25, 0.6)),
            insult=float(rng.uniform(0.4, 0.6)),
            patience=int(rng.integers((knobs["max_patience"] + 1) // 2, knobs["max_patience"] + 1)),
        )
        return dealer, round(asked * (1 - knobs["tightness"]))

    @tool
    def offer(self, price: int) -> str:
        """Offer a price; the dealer takes it, or asks for another.

        Args:
            price: A whole number.
        """
        self.charge(self._turn_cost, "turn")
        if price < 0:
            raise ToolError("a price is at least 0", "invalid_arguments")
        if price > self.dealer.asked:  # otherwise the reward would be unbounded
            raise ToolError(f"the dealer asks for {self.dealer.asked}; offer that or less", "invalid_arguments")
        if price >= self.dealer.next_asked:
            return self._sell(price)
        self.dealer = self.dealer.answered(price)
        if self.dealer.patience < 1:
            self.finish(0.0)
            return "The dealer has no more time for you. There is no deal."
        return f"The dealer asks for {self.dealer.asked}."

    @tool
    def accept(self) -> str:
        """Pay what the dealer asks for."""
        self.charge(self._turn_cost, "turn")
        return self._sell(self.dealer.asked)

    @tool
    def leave(self) -> str:
        """Go without the car."""
        self.charge(self._turn_cost, "turn")
        self.finish(0.0)
        return "You leave. There is no deal."

    def _sell(self, price: int) -> str:
        self.finish(self._share(price))
        return f"Sold for {price}."

    def _share(self, price: int) -> float:
        return (self._worth - price) / (self._worth - self.dealer.reserve)

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        return canonical([self._worth, self.dealer.asked, self.dealer.reserve, self.dealer.patience])

    def oracle(self) -> Message:
        """Return the best offer of a buyer who knows the dealer."""
        return self.move_of("offer", price=best_offer(self.dealer))

    def admissible_actions(self) -> tuple[str, ...]:
        """Return accept, leave, and offers from half of the asked price to the asked price."""
        shares = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
        return ("accept", "leave", *(f"offer: {round(share * self.dealer.asked)}" for share in shares))
