"""Branching episodes, which begin at a turn of another episode of their group.

A branch copies the earlier turns with their tokens and samples from there. Its environment returns to the turn through
a native snapshot if it has one, else by replaying the actions. The replies to replayed actions must equal the recorded
ones. The first own turn of a branch may begin with tokens of the parent's turn, or consist of a later turn's tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from agentgym.env.env import Snapshot
from agentgym.errors import ConfigError
from agentgym.rollout.look_ahead import LookAhead
from agentgym.types import Completion, FinishReason, Observation, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The start of an episode of a group, and its hints.

    Example (from the third turn of the group's first episode, the next turn with a hint):
        >>> Start(parent=0, turn=2, num_hints=1).is_branch
        True
    """

    parent: int = -1
    """Index of the parent among the group's trajectories; -1 for the start of the task."""
    turn: int = 0
    """First turn that is not copied."""
    num_hints: int = 0
    """Number of turns from there whose prompts end with the oracle's next action."""
    hint: str = ""
    """Text of these hints, the same for every turn; empty for the oracle's or the teacher's."""
    reflects: bool = False
    """True if the policy reads the parent's episode first. If it names a turn and gives advice, the episode begins at
    this turn, and the advice ends the first prompt."""
    advice: str = ""
    """Advice for the first turn, as text."""
    num_tokens: int = 0
    """Number of tokens of the parent's turn ``turn`` with which the first own turn begins."""
    correction: int = -1
    """Later turn of the parent whose completion makes up the rest of the first own turn; -1 to sample the rest."""
    look_ahead: LookAhead | None = None
    """Rule that stops the episode if it resembles another one from ``turn`` on; None to play it to its end."""
    demonstrates: bool = False
    """True if the environment's oracle plays the episode."""

    @property
    def is_branch(self) -> bool:
        """True if the episode does not begin at the start of the task, or begins with tokens of another episode."""
        return self.parent >= 0 and (self.turn > 0 or self.num_tokens > 0 or self.correction >= 0)


START = Start()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedTokens:
    """Copied tokens with which the first own turn of a branch begins."""

    known: Completion
    """Tokens of the parent's turn at this place, with the log-probabilities they were sampled with."""
    moved: Completion | None = None
    """Tokens of a later turn, which complete the turn. They were sampled in another context, so that their
    log-probabilities must be computed again. None: the policy samples the rest of the turn."""

    @property
    def num_tokens(self) -> int:
        """Number of copied tokens."""
        return len(self.known.token_ids) + (0 if self.moved is None else len(self.moved.token_ids))


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """The turns that an episode copies, and the snapshot to which its environment returns."""

    parent: int
    observation: Observation
    """The environment's first observation."""
    turns: tuple[tuple[Turn, bool], ...]
    """Copied turns, each with True if it begins a segment."""
    snapshot: Snapshot | None = None
    """Native snapshot after the copied turns; if None, the actions are replayed."""
    given: ForcedTokens | None = None
    """Tokens with which the first own turn begins; None if the policy samples all of it."""
    look_ahead: LookAhead | None = None
    """Rule that stops the episode; None to play it to its end."""
    others: tuple[tuple[Turn, ...], ...] = ()
    """Turns of the episodes that ``look_ahead`` compares with, from the branching turn on."""

    def stops(self, turns: Sequence[tuple[Turn, bool]], state_key: str) -> bool:
        """Return True if the episode must stop after these turns, which include the copied ones."""
        if self.look_ahead is None:
            return False
        return self.look_ahead.stops([turn for turn, _ in turns[len(self.turns) :]], state_key, self.others)


def branch_from(
    start: Start, trajectories: Sequence[Trajectory], snapshots: Sequence[Mapping[int, Snapshot]] = ()
) -> Branch | None:
    """Return the branch of an episode, or None if it begins at the start of its task.

    Args:
        start: start of the episode.
        trajectories: trajectories of the group so far.
        snapshots: for each trajectory, native snapshots before its own turns, by turn.

    Raises:
        ConfigError: there is no such episode or turn, or the episode failed.
    """
    if not start.is_branch:
        return None
    parent = trajectories[start.parent] if start.parent < len(trajectories) else None
    if parent is None or not (parent.status.is_evidence or parent.is_stopped):
        raise ConfigError(f"{start}: a branch needs an episode of the group that did not fail")
    turns = tuple((turn, at == 0) for segment in parent.segments for at, turn in enumerate(segment.turns))
    if start.turn >= len(turns):
        raise ConfigError(f"{start}: episode {start.parent} of the group has {len(turns)} turns, counted from 0")
    owner = start.parent
    while start.turn < trajectories[owner].branch_turn:
        owner = trajectories[owner].parent
    held = snapshots[owner] if owner < len(snapshots) else {}
    return Branch(
        parent=start.parent,
        observation=parent.observation,
        turns=turns[: start.turn],
        snapshot=held.get(start.turn),
        given=_given(start, [turn for turn, _ in turns]),
        look_ahead=start.look_ahead,
        others=() if start.look_ahead is None else _others(start, trajectories, start.look_ahead.num_turns),
    )


def _others(start: Start, trajectories: Sequence[Trajectory], num_turns: int) -> tuple[tuple[Turn, ...], ...]:
    """Return the turns from the branching turn on of all episodes that copied or took the same turns before it."""
    before = trajectories[start.parent].turns[: start.turn]
    alike = [one for one in trajectories if one.status.is_evidence and one.turns[: start.turn] == before]
    return tuple(one.turns[start.turn : start.turn + num_turns + 1] for one in alike)


def _given(start: Start, turns: Sequence[Turn]) -> ForcedTokens | None:
    """Return the tokens with which the first own turn of a branch begins, or None.

    Raises:
        ConfigError: the turn has fewer tokens, or the correction is no later turn.
    """
    if not start.num_tokens and start.correction < 0:
        return None
    here = turns[start.turn].completion
    if start.num_tokens > len(here.token_ids):
        raise ConfigError(f"{start}: turn {start.turn} has {len(here.token_ids)} tokens")
    known = part_of(here, 0, start.num_tokens)
    if start.correction < 0:
        return ForcedTokens(known=known)
    if not start.turn < start.correction < len(turns):
        raise ConfigError(f"{start}: a correction is a turn after turn {start.turn} of an episode of {len(turns)}")
    later = turns[start.correction]
    first = later.num_thinking_tokens if start.num_tokens else 0  # the thinking of the first turn stays
    return ForcedTokens(known=known, moved=part_of(later.completion, first, len(later.completion.token_ids)))


def part_of(completion: Completion, first: int, last: int) -> Completion:
    """Return the tokens ``first`` to ``last``, without the latter, of a completion.

    Example:
        >>> whole = Completion(token_ids=(5, 6, 2), logprobs=(-1.0, -2.0, -3.0), policy_versions=(0, 0, 1),
        ...                    finish_reason=FinishReason.STOP)
        >>> part_of(whole, 0, 2).token_ids, part_of(whole, 0, 2).finish_reason.value
        ((5, 6), 'length')
    """
    ends = last == len(completion.token_ids)
    return replace(
        completion,
        token_ids=completion.token_ids[first:last],
        logprobs=completion.logprobs[first:last],
        policy_versions=completion.policy_versions[first:last],
        finish_reason=completion.finish_reason if ends else FinishReason.LENGTH,
    )
