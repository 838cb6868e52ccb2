"""``agentgym/GuessNumber-v0``: find a number, the simplest game in which turns depend on each other."""

from __future__ import annotations

from agentgym.canonical import canonical
from agentgym.envs.games.solo_game import SoloGame
from agentgym.errors import ToolError
from agentgym.settings import Range, check_number
from agentgym.tool import tool
from agentgym.types import Message, Task


class GuessNumberEnv(SoloGame):
    """Find a number by guessing.

    The reward is 1 for the number. A good guess differs from earlier ones; with hints it can halve the remaining range.

    Args:
        largest: largest possible number, 2 to 1,000,000; the smallest is 1.
        hints: the reply to a wrong guess says whether it is too low or too high.
        max_turns: turns after which an episode is truncated; None allows one per number, or, with hints, as many as
            bisection needs.

    Raises:
        UsageError: a value is out of range.

    Example:
        >>> env = GuessNumberEnv(largest=4)
        >>> env.reset(seed=0)[0][0].text
        'Find my number, between 1 and 4. Guesses: 3.'
        >>> env.step("guess: 2")[0][0].text, env.step("guess: 4")[1]
        ('Too low.', 1.0)
    """

    state_names = ("_largest", "_hints", "_number", "_wrong")
    _largest: int = 0
    _hints: bool = False
    _number: int = 0
    _wrong: tuple[int, ...] = ()
    """Wrong guesses so far."""

    def __init__(
        self,
        *,
        largest: int = 16,
        hints: bool = True,
        max_turns: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_number("largest", largest, Range(at_least=2, at_most=1_000_000))
        limit = (largest.bit_length() if hints else largest) if max_turns is None else max_turns
        super().__init__({"largest": largest, "hints": hints}, max_turns=limit, render_mode=render_mode)

    def start(self, task: Task) -> str:
        knobs = {**self._knobs, **{name: task.data[name] for name in self._knobs if name in task.data}}
        self._largest, self._hints = int(knobs["largest"]), bool(knobs["hints"])
        self._number, self._wrong = int(self.np_random.integers(1, self._largest + 1)), ()
        return f"Find my number, between 1 and {self._largest}. Guesses: {self.max_turns}."

    @tool
    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: Your guess.
        """
        if not 1 <= number <= self._largest:
            raise ToolError(f"The number is between 1 and {self._largest}.", "out_of_range")
        if number == self._number:
            self.finish(1.0)
            return "Right."
        self._wrong = (*self._wrong, number)
        if self._hints:
            return "Too low." if number < self._number else "Too high."
        return "Wrong."

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return a key of the remaining numbers."""
        return canonical([self._number, self._left()])

    def oracle(self) -> Message:
        """Guess the number, which an agent cannot know at first."""
        return self.move_of("guess", number=self._number)

    def admissible_actions(self) -> tuple[str, ...]:
        """Return all possible guesses, at most a thousand."""
        return tuple(f"guess: {number}" for number in range(1, min(self._largest, 1000) + 1))

    def _left(self) -> list[int]:
        low = max((n for n in self._wrong if self._hints and n < self._number), default=0)
        high = min((n for n in self._wrong if self._hints and n > self._number), default=self._largest + 1)
        return [number for number in range(low + 1, high) if number not in self._wrong]
