"""Base class of games in which the agent asks yes/no questions about a hidden object and then names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from agentgym.call_syntax import format_call
from agentgym.canonical import canonical
from agentgym.envs.games.solo_game import SoloGame
from agentgym.envs.since_reset import SinceReset
from agentgym.errors import ToolError, require_known
from agentgym.settings import Range, check_number
from agentgym.types import Message, Task, ToolCall

YES, NO = "Yes.", "No."


class GuessingEnv(SoloGame):
    """A guessing game whose state is the set of objects that the answers leave.

    Subclasses create the objects in :meth:`make`, use :meth:`answer` in their tools, and list all questions for the
    oracle in :meth:`questions`. The reward is 1 for the right name and ``-question_cost`` for every turn.
    """

    state_names: ClassVar[tuple[str, ...]] = ("_names", "_secret", "_left")
    _names: tuple[str, ...] = ()
    _secret = SinceReset[int]()
    _left: tuple[int, ...] = ()

    def __init__(
        self, knobs: Mapping[str, object], *, question_cost: float, max_turns: int, render_mode: str | None
    ) -> None:
        check_number("question_cost", question_cost, Range(at_least=0))
        self._question_cost = question_cost
        super().__init__(knobs, max_turns=max_turns, render_mode=render_mode)

    # ------------------------------------------------------------------------------------ methods to implement

    def make(self, knobs: Mapping[str, object]) -> Sequence[str]:
        """Create the objects of an episode with ``self.np_random`` and return their names."""
        raise NotImplementedError(f"{type(self).__name__} must implement make(knobs)")

    def introduction(self) -> str:
        """Return the first message."""
        raise NotImplementedError(f"{type(self).__name__} must implement introduction()")

    def questions(self) -> Sequence[tuple[ToolCall, Callable[[int], bool]]]:
        """Return all questions, each with a function that returns True if the answer is yes for an object."""
        raise NotImplementedError(f"{type(self).__name__} must implement questions()")

    # ------------------------------------------------------------------------------------------------- an episode

    def start(self, task: Task) -> str:
        for name in task.data:
            require_known(f"{self.env_id} task data", name, self._knobs)
        self._names = tuple(self.make({**self._knobs, **task.data}))
        self._secret = int(self.np_random.integers(len(self._names)))
        self._left = tuple(range(len(self._names)))
        return self.introduction()

    def answer(self, holds: Callable[[int], bool]) -> str:
        """Answer a question and remove the objects that it rules out."""
        self.charge(self._question_cost, "question")
        is_yes = holds(self._secret)
        self._left = tuple(thing for thing in self._left if holds(thing) == is_yes)
        return YES if is_yes else NO

    def name_it(self, name: str) -> str:
        """Check a guess of the object's name."""
        thing = self.thing(name)
        self.charge(self._question_cost, "question")
        if thing == self._secret:
            self.finish(1.0)
            return YES
        self._left = tuple(other for other in self._left if other != thing)
        return NO

    def thing(self, name: str) -> int:
        """Return the index of an object.

        Raises:
            ToolError: no object has this name.
        """
        wanted = name.strip().casefold()
        for number, known in enumerate(self._names):
            if known.casefold() == wanted:
                return number
        raise ToolError(f"there is no {name.strip()[:40]!r}; there are: {', '.join(self._names)}", "unknown_name")

    # ----------------------------------------------------------------------------------------- beyond Gymnasium's API

    def state_key(self) -> str:
        """Return a key of the hidden object and the remaining objects, independent of the questions."""
        return canonical([self._secret, self._left])

    def oracle(self) -> Message:
        """Return the question that best halves the remaining objects, and finally the name."""
        call = ToolCall("guess", {"name": self._names[self._left[0]]}, "0")
        if len(self._left) > 1:
            half = len(self._left) / 2
            ranked = [
                (abs(sum(map(holds, self._left)) - half), index) for index, (_, holds) in enumerate(self.questions())
            ]
            unevenness, best = min(ranked)
            if unevenness < half:
                call = self.questions()[best][0]
        return Message("assistant", format_call(call, self.tools), (call,))

    def admissible_actions(self) -> tuple[str, ...]:
        calls = [call for call, _ in self.questions()]
        guesses = [ToolCall("guess", {"name": name}, "0") for name in self._names]
        return tuple(format_call(call, self.tools) for call in (*calls, *guesses))
