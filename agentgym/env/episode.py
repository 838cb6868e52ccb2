"""Bookkeeping of a running episode, separate from the attributes of the environment's author."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from agentgym.errors import EnvError, UsageError
from agentgym.types import Message, Observation, RewardPart, Task, ToolCall


@dataclass(slots=True, kw_only=True)
class EpisodeState:
    """Bookkeeping of an episode; each reset makes a new one."""

    task: Task | None = None
    seed: int = 0
    """Seed of the episode's randomness."""
    turn: int = 0
    """Number of turns taken."""
    is_over: bool = True
    is_cut_off: bool = False
    """True if the environment truncated the episode."""
    outcome: float = 0.0
    """Sum of the outcome parts so far."""
    actions: list[Message] = field(default_factory=list)
    last_observation: Observation = ()
    is_turn_valid: bool = True
    """False if this turn's action was impossible."""
    played: Message | None = None
    """Action that was executed in place of this turn's action."""
    parts: list[RewardPart] = field(default_factory=list)
    """Parts of this turn's reward."""

    def enter(self, action: Message) -> None:
        """Begin a turn."""
        self.actions.append(action)
        self.turn += 1
        self.is_turn_valid, self.played, self.parts = True, None, []

    @property
    def place(self) -> str:
        """Number of the turn and the tools that it calls, for error messages."""
        if not self.turn:
            return "reset"
        calls = self.actions[-1].calls if self.actions else ()
        names = ", ".join(call.name for call in calls if isinstance(call, ToolCall))
        return f"turn {self.turn}" + (f" ({names})" if names else "")

    @property
    def progress(self) -> tuple[int, bool, float, Observation]:
        """Part of a snapshot besides the actions."""
        return self.turn, self.is_over, self.outcome, self.last_observation

    def resume(self, progress: tuple[int, bool, float, Observation], actions: Sequence[Message]) -> None:
        """Continue from a saved :attr:`progress`."""
        self.turn, self.is_over, self.outcome, self.last_observation = progress
        self.actions = list(actions)


def refuse_taken_names(cls: type) -> None:
    """Raise an error if a user's class accidentally overrides a private method of a base class.

    Raises:
        UsageError: a method is overridden; the message names both classes.
    """
    if cls.__module__.partition(".")[0] == "agentgym":
        return
    for base in cls.__mro__[1:]:
        if not base.__module__.startswith("agentgym."):
            continue
        for name, value in vars(base).items():
            if name in vars(cls) and name.startswith("_") and not name.startswith("__") and callable(value):
                raise UsageError(
                    f"{cls.__name__}.{name} hides a private method of {base.__name__}: give it another name"
                )


def with_checked_tasks(cls: type) -> None:
    """Make the ``tasks`` of a user's class raise an error where it returns something without a length.

    Otherwise each of its readers would fail in its own way, for example at a generator.
    """
    method: Callable[..., Any] | None = vars(cls).get("tasks")
    if not inspect.isfunction(method):
        return

    @wraps(method)
    def checked(self: object, split: str) -> Any:
        tasks = method(self, split)
        if not (hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")):
            kind = type(tasks).__name__
            raise EnvError(f"{cls.__name__}.tasks({split!r}) returned a {kind}, expected a sequence such as a list")
        return tasks

    cls.tasks = checked  # type: ignore[attr-defined]
