"""``agentgym/GuessCity-v0``: find the hidden city on a generated map.

After LMRL-Gym's Guess My City ("LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models",
Abdulhai et al., 2023), in which a language model answers. Here the answers come from a generated map.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentgym.envs.games.guessing import GuessingEnv
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import ToolCall

FIRST = ("Al", "Bran", "Cor", "Dun", "El", "Far", "Gal", "Hol", "Il", "Kar", "Lun", "Mar", "Nor", "Or", "Pel", "Ros")
LAST = ("bach", "burg", "dale", "field", "ford", "ham", "mere", "mouth", "stad", "ton", "vale", "wick")
FEATURES = ("harbour", "university", "castle", "airport", "cathedral")
Comparison = Literal["north of", "east of", "larger than"]
Feature = Literal["harbour", "university", "castle", "airport", "cathedral"]


@dataclass(frozen=True, slots=True)
class City:
    """A city on the map: kilometres north and east of a corner, and thousands of inhabitants."""

    name: str
    north: int
    east: int
    people: int
    features: tuple[str, ...]

    def __str__(self) -> str:
        has = f", {', '.join(self.features)}" if self.features else ""
        return f"{self.name}: {self.north} km north, {self.east} km east, {self.people},000 people{has}"


_MEASURES: dict[Comparison, Callable[[City], int]] = {
    "north of": lambda city: city.north,
    "east of": lambda city: city.east,
    "larger than": lambda city: city.people,
}


class GuessCityEnv(GuessingEnv):
    """Find the hidden city of a map with yes/no questions and name it.

    Questions compare the hidden city with another one (north of, east of, larger than) or ask for a feature. The seed
    draws map and cities. The reward is 1 for the right name and ``-question_cost`` for every turn.

    Args:
        num_cities: number of cities on the map, 2 to 60.
        question_cost: cost of a turn, taken off the reward.
        max_turns: most questions and guesses together.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = GuessCityEnv(num_cities=8)
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.turn
        4
    """

    state_names = (*GuessingEnv.state_names, "_cities")
    _cities: tuple[City, ...] = ()

    def __init__(
        self,
        *,
        num_cities: int = 16,
        question_cost: float = 0.01,
        max_turns: int = 20,
        render_mode: str | None = None,
    ) -> None:
        check_number("num_cities", num_cities, Range(at_least=2, at_most=60))
        super().__init__(
            {"num_cities": num_cities}, question_cost=question_cost, max_turns=max_turns, render_mode=render_mode
        )

    def make(self, knobs: Mapping[str, Any]) -> Sequence[str]:
        rng, count = self.np_random, knobs["num_cities"]
        names = rng.choice(len(FIRST) * len(LAST), count, replace=False)
        north, east = (rng.choice(1000, count, replace=False) for _ in range(2))
        people = rng.choice(range(10, 2000), count, replace=False)
        self._cities = tuple(
            City(
                name=FIRST[int(names[at]) // len(LAST)] + LAST[int(names[at]) % len(LAST)],
                north=int(north[at]),
                east=int(east[at]),
                people=int(people[at]),
                features=tuple(feature for feature in FEATURES if rng.random() < 0.4),
            )
            for at in range(count)
        )
        return [city.name for city in self._cities]

    def introduction(self) -> str:
        cities = "\n".join(map(str, self._cities))
        return f"I am from one of these cities. Ask yes/no questions, then guess which.\n{cities}"

    @tool
    def compare(self, comparison: Comparison, city: str) -> str:
        """Ask whether my city is north of, east of, or larger than another.

        Args:
            comparison: What to compare.
            city: The name of the other city.
        """
        return self.answer(self._beats(comparison, self.thing(city)))

    @tool
    def has(self, feature: Feature) -> str:
        """Ask whether my city has something.

        Args:
            feature: What it may have.
        """
        return self.answer(self._has(feature))

    @tool
    def guess(self, name: str) -> str:
        """Say which city it is.

        Args:
            name: The city's name.
        """
        return self.name_it(name)

    def questions(self) -> Sequence[tuple[ToolCall, Callable[[int], bool]]]:
        comparisons = [
            (
                ToolCall("compare", {"comparison": comparison, "city": self._names[other]}, "0"),
                self._beats(comparison, other),
            )
            for comparison in _MEASURES
            for other in range(len(self._cities))
        ]
        return [*comparisons, *((ToolCall("has", {"feature": name}, "0"), self._has(name)) for name in FEATURES)]

    def _beats(self, comparison: Comparison, other: int) -> Callable[[int], bool]:
        measure = _MEASURES[comparison]
        return lambda thing: measure(self._cities[thing]) > measure(self._cities[other])

    def _has(self, feature: str) -> Callable[[int], bool]:
        return lambda thing: feature in self._cities[thing].features
