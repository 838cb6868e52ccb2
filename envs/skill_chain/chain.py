"""The state of a chain of tasks, and the rewards of its players."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from agentgym.envs.skill_chain.library import Skill
from agentgym.types import Call, Message, Observation, RewardPart, RewardRole, Task, ToolCall

MADE, USED = "skill_made", "skill_used"
"""Names of the reward parts for a skill that helped later, and for the use of a skill of an earlier task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The course of one task of a chain."""

    task: Task
    parts: tuple[RewardPart, ...] = ()
    """Sums of the wrapped environment's reward parts, by name and role."""
    used: tuple[int, ...] = ()
    """Numbers of the earlier tasks whose skills ran to their end."""
    num_turns: int = 0
    is_over: bool = False
    is_success: bool = False
    said: Observation = ()
    """The newest messages to the player."""
    read: tuple[str, ...] = ()
    """Texts that the player has read."""

    def earned(self, parts: Sequence[RewardPart]) -> tuple[RewardPart, ...]:
        """Return the sums of the parts so far and of further parts."""
        sums: dict[tuple[str, RewardRole], float] = {}
        for part in (*self.parts, *parts):
            sums[part.name, part.role] = sums.get((part.name, part.role), 0.0) + part.value
        return tuple(RewardPart(name, value, role) for (name, role), value in sums.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The state of an episode: one entry for each task that has begun, and the library."""

    played: tuple[Played, ...] = ()
    library: tuple[Skill, ...] = ()

    @property
    def at(self) -> int:
        """Number of the current task, from 0."""
        return max(0, len(self.played) - 1)

    def helped(self, number: int) -> bool:
        """Return True if a task succeeded, and a later one used a skill of it and succeeded, too."""
        later = self.played[number + 1 :]
        return self.succeeded(number) and any(one.is_success and number in one.used for one in later)

    def reused(self, number: int) -> bool:
        """Return True if a task succeeded and used a skill of an earlier one."""
        return self.succeeded(number) and bool(self.played[number].used)

    def succeeded(self, number: int) -> bool:
        """Return True if a task was played and succeeded."""
        return number < len(self.played) and self.played[number].is_success


@dataclass(frozen=True, slots=True, kw_only=True)
class Bonuses:
    """Rewards for skills, on top of the wrapped environment's; 0 switches one off."""

    made: float
    used: float

    def of(self, chain: Chain, number: int, num_tasks: int) -> Iterator[RewardPart]:
        """Yield the parts of a task's player: the first task can use no skill, and the last helps no other."""
        if self.made and number < num_tasks - 1:
            yield RewardPart(MADE, self.made * chain.helped(number), RewardRole.PROCESS)
        if self.used and number > 0:
            yield RewardPart(USED, self.used * chain.reused(number), RewardRole.PROCESS)


def runs_of(calls: Sequence[Call], own: Collection[str]) -> Iterator[tuple[bool, tuple[Call, ...]]]:
    """Yield the calls in order, those of the wrapped environment's tools together as far as they follow each other.

    Example:
        >>> calls = [ToolCall("go"), ToolCall("take"), ToolCall("use_skill"), ToolCall("go")]
        >>> [(is_own, len(run)) for is_own, run in runs_of(calls, ["use_skill"])]
        [(False, 2), (True, 1), (False, 1)]
    """
    for is_own, run in groupby(calls, lambda call: isinstance(call, ToolCall) and call.name in own):
        if is_own:
            yield from ((True, (call,)) for call in run)
        else:
            yield False, tuple(run)


def with_text(observation: Observation, text: str) -> Observation:
    """Add a paragraph to the last user message, or a user message if there is none that is plain text.

    Example:
        >>> with_text((Message("user", "Heat the egg."),), "Skills: none.")[0].text
        'Heat the egg.\\n\\nSkills: none.'
    """
    if observation and observation[-1].role == "user" and isinstance(observation[-1].content, str):
        last = observation[-1]
        return (*observation[:-1], Message("user", f"{last.content}\n\n{text}"))
    return (*observation, Message("user", text))


def scenario_of(task: Task) -> str:
    """Return the part of a task's id before the last ``_``, as AppWorld names its scenarios; empty if there is none.

    Example:
        >>> scenario_of(Task(id="82e2fac_3", split="train", seed=0))
        '82e2fac'
    """
    return task.id.rpartition("_")[0]


def kind_in(data: Mapping[str, object]) -> str:
    """Return the kind of a task that its data names, as :attr:`Env.task_type` reads it."""
    return str(data.get("task_type", f"level {data['level']}" if "level" in data else ""))
