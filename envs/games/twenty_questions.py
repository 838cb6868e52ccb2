"""``agentgym/TwentyQuestions-v0``: find a hidden object with yes/no questions about its attributes.

After LMRL-Gym's Twenty Questions ("LMRL Gym: Benchmarks for Multi-Turn Reinforcement Learning with Language Models",
Abdulhai et al., 2023), in which a language model answers. Here the answers come from a generated table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym.envs.games.guessing import GuessingEnv
from agentgym.errors import ToolError
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import ToolCall

NOUNS = (
    *("lamp", "bottle", "drum", "basket", "clock", "ladder", "kite", "mirror", "anchor", "bell", "whistle", "candle"),
    *("bucket", "comb", "key", "button", "spoon", "brush", "hammer", "bowl", "chair", "box", "ring", "wheel", "cup"),
    *("fan", "pipe", "chain", "tray", "mask", "flute", "shield", "globe", "vase", "cart", "fork", "rope", "boat"),
    *("helmet", "stamp"),
)
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "material": ("wood", "metal", "glass", "clay"),
    "colour": ("red", "green", "blue", "white"),
    "size": ("small", "large"),
    "age": ("new", "old"),
    "place": ("kitchen", "garden", "attic", "garage"),
    "surface": ("smooth", "rough"),
    "weight": ("light", "heavy"),
    "state": ("whole", "broken"),
}


class TwentyQuestionsEnv(GuessingEnv):
    """Find a hidden object with yes/no questions and name it.

    The seed draws objects and attributes. No two objects have the same attributes. The reward is 1 for the right name
    and ``-question_cost`` for every turn.

    Args:
        num_objects: number of objects, 2 to 40.
        num_attributes: number of attributes of each object, 3 to 8.
        shows_table: show the attributes of all objects in the first message; otherwise only answers reveal them.
        question_cost: cost of a turn, taken off the reward.
        max_turns: most questions and guesses together.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = TwentyQuestionsEnv(num_objects=4)
        >>> observation, info = env.reset(seed=0)
        >>> while not env.step(env.oracle())[2]:
        ...     pass
        >>> env.turn
        3
    """

    state_names = (*GuessingEnv.state_names, "_table")
    _table: tuple[dict[str, str], ...] = ()

    def __init__(
        self,
        *,
        num_objects: int = 12,
        num_attributes: int = 6,
        shows_table: bool = True,
        question_cost: float = 0.01,
        max_turns: int = 20,
        render_mode: str | None = None,
    ) -> None:
        check_number("num_objects", num_objects, Range(at_least=2, at_most=len(NOUNS)))
        check_number("num_attributes", num_attributes, Range(at_least=3, at_most=len(ATTRIBUTES)))
        self._shows_table = shows_table
        knobs = {"num_objects": num_objects, "num_attributes": num_attributes}
        super().__init__(knobs, question_cost=question_cost, max_turns=max_turns, render_mode=render_mode)

    def make(self, knobs: Mapping[str, Any]) -> Sequence[str]:
        rng = self.np_random
        kinds = [
            list(ATTRIBUTES)[int(at)] for at in sorted(rng.choice(len(ATTRIBUTES), knobs["num_attributes"], False))
        ]
        table: list[dict[str, str]] = []
        while len(table) < knobs["num_objects"]:
            drawn = {kind: ATTRIBUTES[kind][int(rng.integers(len(ATTRIBUTES[kind])))] for kind in kinds}
            if drawn not in table or len(table) >= math.prod(len(ATTRIBUTES[kind]) for kind in kinds):
                table.append(drawn)
        self._table = tuple(table)
        return [NOUNS[int(at)] for at in rng.choice(len(NOUNS), knobs["num_objects"], False)]

    def introduction(self) -> str:
        lines = [f"I think of one of these: {', '.join(self._names)}. Ask yes/no questions, then guess it."]
        if self._shows_table:
            rows = zip(self._names, self._table, strict=True)
            lines += [f"{name}: {', '.join(attributes.values())}" for name, attributes in rows]
        kinds = [f"{kind} ({', '.join(ATTRIBUTES[kind])})" for kind in self._table[0]]
        return "\n".join([*lines, f"Attributes: {'; '.join(kinds)}."])

    @tool
    def ask(self, attribute: str, value: str) -> str:
        """Ask whether the object has a value of an attribute.

        Args:
            attribute: Such as: material.
            value: Such as: wood.
        """
        kind, wanted = attribute.strip().lower(), value.strip().lower()
        if kind not in self._table[0]:
            raise ToolError(f"no attribute {kind[:40]!r}; there are: {', '.join(self._table[0])}", "unknown_attribute")
        if wanted not in ATTRIBUTES[kind]:
            raise ToolError(f"{kind} is one of: {', '.join(ATTRIBUTES[kind])}", "unknown_value")
        return self.answer(self._has(kind, wanted))

    @tool
    def guess(self, name: str) -> str:
        """Say which object it is.

        Args:
            name: Such as: lamp.
        """
        return self.name_it(name)

    def questions(self) -> Sequence[tuple[ToolCall, Callable[[int], bool]]]:
        return [
            (ToolCall("ask", {"attribute": kind, "value": value}, "0"), self._has(kind, value))
            for kind in self._table[0]
            for value in ATTRIBUTES[kind]
        ]

    def _has(self, kind: str, value: str) -> Callable[[int], bool]:
        return lambda thing: self._table[thing][kind] == value
