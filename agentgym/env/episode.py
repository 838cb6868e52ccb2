"""The bookkeeping of a running episode, kept apart from the author's own attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentgym.errors import UsageError
from agentgym.types import Message, Observation, RewardPart, Task, ToolCall


@dataclass(slots=True, kw_only=True)
class EpisodeState:
    """The bookkeeping of an episode; a new one at each reset."""

    task: Task | None = None
    seed: int = 0
    """The one that randomness was seeded with."""
    turn: int = 0
    """Turns taken."""
    is_over: bool = True
    is_cut_off: bool = False
    """True if the world truncated it."""
    outcome: float = 0.0
    """Sum of the outcome parts so far."""
    actions: list[Message] = field(default_factory=list)
    last_observation: Observation = ()
    is_turn_valid: bool = True
    """False once this turn's action was refused."""
    played: Message | None = None
    """The action done in place of this turn's."""
    parts: list[RewardPart] = field(default_factory=list)
    """Of this turn's reward."""

    def enter(self, action: Message) -> None:
        """Begin a turn."""
        self.actions.append(action)
        self.turn += 1
        self.is_turn_valid, self.played, self.parts = True, None, []

    @property
    def place(self) -> str:
        """The turn with the tools that it calls, for messages."""
        if not self.turn:
            return "reset"
        calls = self.actions[-1].calls if self.actions else ()
        names = ", ".join(call.name for call in calls if isinstance(call, ToolCall))
        return f"turn {self.turn}" + (f" ({names})" if names else "")

    @property
    def progress(self) -> tuple[int, bool, float, Observation]:
        """The part of a snapshot beside the actions."""
        return self.turn, self.is_over, self.outcome, self.last_observation

    def resume(self, progress: tuple[int, bool, float, Observation], actions: Sequence[Message]) -> None:
        """Go on from :attr:`progress`."""
        self.turn, self.is_over, self.outcome, self.last_observation = progress
        self.actions = list(actions)


def refuse_taken_names(cls: type) -> None:
    """Refuse a class of the user's that overrides a private method of an environment of ours by accident.

    Raises:
        UsageError: it does; the message names both.
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
