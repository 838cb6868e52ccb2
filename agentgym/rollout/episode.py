"""An episode as a program of its group plays it: to its end or to a pause, with branches and hints.

An episode that pauses is played on from there: the environment returns by a native snapshot, or by replay, and the
sampling seeds are those of an episode without a pause. The episode is therefore the same as without one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING

from agentgym.env.env import Snapshot
from agentgym.env.observations import as_observation
from agentgym.errors import ConfigError
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.branch import Branch, Start, branch_from
from agentgym.rollout.memory import FEEDBACK
from agentgym.rollout.request import RolloutRequest
from agentgym.rollout.seeds import derive_seed
from agentgym.types import CancelledMember, CutReason, Message, Trajectory, Turn

if TYPE_CHECKING:
    from agentgym.rollout.program import Group
    from agentgym.rollout.reflection import Reflect

Path = tuple[int, ...]
"""Place of an episode among those of its group, which does not depend on the time that others take."""


class Member:
    """A group member in progress: its request, and the turns of its current attempt."""

    def __init__(self, request: RolloutRequest, *, is_demonstration: bool = False) -> None:
        self.request, self.is_demonstration = request, is_demonstration
        self.snapshots: dict[int, Snapshot] = {}
        """Native snapshots before its turns."""
        self.turns: list[Turn] | None = None
        """Turns of the current attempt; None if it has not begun."""

    def begin(self, num_retries: int, on_turn: Callable[[Turn], None]) -> RolloutRequest:
        """Return the request of an attempt, which records its turns."""
        turns = self.turns = []
        for turn in [turn for turn in self.snapshots if turn >= self.request.num_copied]:
            del self.snapshots[turn]

        def note(turn: Turn) -> None:
            turns.append(turn)
            on_turn(turn)

        return replace(self.request, num_retries=num_retries, on_turn=note)


@dataclass(slots=True, kw_only=True)
class Stage:
    """The means by which all episodes of a group are played."""

    play: Callable[[Member], Awaitable[tuple[Trajectory, ...]]]
    """Plays a member until it ends, pauses, or has failed too often."""
    request: RolloutRequest
    """The request that those of all members are made from."""
    seed: int
    program: str = "the program"
    """Name of the program, for errors."""
    uses: frozenset[str] | None = None
    """Means that the program has declared; None if it may use all."""
    reflect: Reflect | None = None
    demonstrator: MakeAgent | None = None
    episodes: list[Episode] = field(default_factory=list)
    """All episodes of the group, in the order in which the program made them."""

    def refuse(self, why: str) -> ConfigError:
        """Return the error of a program that does what it may not."""
        return ConfigError(f"{self.program} {why}")

    def need(self, means: str, call: str) -> None:
        """Check that the program has declared means.

        Raises:
            ConfigError: it has not; the message says how to.
        """
        if self.uses is not None and means not in self.uses:
            raise self.refuse(
                f"calls {call}: declare it with uses=({means!r},) in the decorator, so that credit and loss know"
            )


class Episode:
    """One episode of a group.

    A program gets episodes from :meth:`Group.start` and :meth:`branch`, and plays them with :meth:`play`.
    """

    def __init__(
        self, group: Group, start: Start, member: Member, path: Path, parent: Episode | None, known: Sequence[Episode]
    ) -> None:
        self._group, self._stage, self._start, self._member = group, group.stage, start, member
        self.path, self.parent, self._known = path, parent, known
        """The episodes that the program knew when it made this one."""
        self._num_hints, self._hint = start.num_hints, start.hint
        self._num_reflection_tokens = self._num_played = 0
        self._played: tuple[Trajectory, ...] = ()
        self._is_playing = False
        self._cut: CutReason | None = None

    # ------------------------------------------------------------------------------------------------- what it reads

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Its turns so far, those that it copied included."""
        if self._played:
            return self._played[0].turns
        return () if self.parent is None else self.parent.turns[: self._start.turn]

    @property
    def num_turns(self) -> int:
        """The number of its turns so far."""
        return len(self.turns)

    @property
    def is_paused(self) -> bool:
        """True if it was played up to a pause, and can be played on."""
        return self._cut is None and bool(self._played) and self._played[0].is_stopped

    @property
    def is_finished(self) -> bool:
        """True if it has ended and belongs to the group."""
        return self._cut is None and bool(self._played) and not self._played[0].is_stopped

    @property
    def has_failed(self) -> bool:
        """True if the infrastructure failed, after all retries: the episode tells nothing about the policy."""
        return self.is_finished and not all(one.status.is_evidence for one in self._played)

    @property
    def success(self) -> bool | None:
        """True or False if it has ended; None if it has not, or if the infrastructure failed."""
        return self._played[0].success if self._played else None

    @property
    def reward(self) -> float:
        """The sum of its turns' rewards so far."""
        return sum(turn.reward for turn in self.turns)

    def entropy(self, turn: int, num_tokens: int | None = None) -> float:
        """Return the mean surprise of a turn's first tokens in nats, an estimate of their entropy; 0 without tokens."""
        return -fmean(self.turns[turn].completion.logprobs[:num_tokens] or (0.0,))

    @property
    def trajectory(self) -> Trajectory:
        """All that is known of it.

        Raises:
            ConfigError: it has not been played.
        """
        if not self._played:
            raise self._stage.refuse("reads the trajectory of an episode that it has not played")
        return self._played[0]

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        """Its trajectory, or those of all players of a game; empty before it is played."""
        return self._played

    # --------------------------------------------------------------------------------------------- what it does

    async def play(self, until: int | None = None) -> Episode:
        """Play on to the end, or until the episode has ``until`` turns; return the episode.

        Raises:
            ConfigError: it has ended or was cancelled, it is being played, or it has as many turns.
        """
        stage = self._stage
        self._group.check_task()
        self._must_be_open("plays")
        if until is not None and (isinstance(until, bool) or not isinstance(until, int) or until <= self.num_turns):
            raise stage.refuse(f"plays an episode of {self.num_turns} turns until turn {until!r}, expected a later one")
        self._is_playing = True
        try:
            if not self._played:
                await self._reflect()
                self._member.request = self._first_request()
            else:
                self._member.request = self._resumed_request()
            if until is not None or stage.uses is None or "branches" in stage.uses:
                self._keep_snapshots()
            self._member.request = replace(self._member.request, pause_after=until, num_hints=self._num_hints)
            self._member.request = replace(self._member.request, hint=self._hint)
            self._take(await stage.play(self._member), is_paused=until is not None)
        finally:
            self._is_playing = False
        return self

    def branch(self, turn: int, tokens: int | None = None) -> Episode:
        """Return a new episode that copies this one's turns before ``turn``, and is played on from there.

        Args:
            turn: first turn that is not copied, counted from 0.
            tokens: number of tokens of that turn that are copied, too.

        Raises:
            ConfigError: there is no such turn, or this episode failed.
        """
        return self.begin_branch(Start(parent=0, turn=turn, num_tokens=tokens or 0))

    def begin_branch(self, start: Start) -> Episode:
        """Return a new episode that begins by ``start``, in which this one is the parent whatever its number."""
        stage = self._stage
        stage.need("branches", "branch()")
        if self.has_failed or not self._played or not 0 <= start.turn < max(1, self.num_turns):
            state = (
                "failed with the infrastructure (has_failed)"
                if self.has_failed
                else f"has {self.num_turns} turns, counted from 0"
            )
            raise stage.refuse(f"branches at turn {start.turn} of an episode that {state}")
        return self._group.make(start, self if start.is_branch or start.reflects else None)

    def show(self, text: str = "", turns: int = 1) -> None:
        """Show a hint at the end of the prompts of the next turns. Prompts that are trained do not hold it.

        Args:
            text: text of the hint; empty for what the environment's oracle, or the run's teacher, would do.
            turns: number of turns that see it.
        """
        self._stage.need("hints" if text else "oracle", "show()")
        self._must_be_open("shows a hint in")
        self._hint, self._num_hints = text, turns

    def comment(self, text: str) -> None:
        """Append a user's message to the environment's last reply. Later prompts hold it, and those that are trained.

        Raises:
            ConfigError: the episode is not paused.
        """
        self._stage.need("comments", "comment()")
        if not self.is_paused or self._is_playing or not self.turns or not text.strip():
            raise self._stage.refuse("comments on an episode that is not paused, or without a text")
        (message,) = as_observation((Message("user", FEEDBACK.format(text=text)),))
        (paused,) = self._played
        *before, last = paused.segments
        *turns, turn = last.turns
        told = replace(turn, replies=(*turn.replies, message), feedback=text)
        self._played = (replace(paused, segments=(*before, replace(last, turns=(*turns, told)))),)

    def cancel(self) -> None:
        """Leave the episode out of the group. It is neither a failure nor data.

        Raises:
            ConfigError: it is being played.
        """
        if self._is_playing:
            raise self._stage.refuse("cancels an episode that is being played; pause it first")
        self.cut("pruned")

    def cut(self, reason: CutReason) -> None:
        """Leave the episode out of the group for a reason."""
        self._cut = self._cut or reason

    def cut_short(self) -> None:
        """Leave the episode out because its group was complete without it."""
        self.cut("surplus" if self.is_finished else "waiting" if self._member.turns is None else "slow")

    def as_cut(self, number: int) -> CancelledMember:
        """Return the record of an episode that was left out; ``number`` is its index among all of the group."""
        turns = self._played[0].turns[self.num_copied :] if self._played else tuple(self._member.turns or ())
        return CancelledMember(
            member=number,
            seed=self._member.request.seed,
            reason=self._cut or ("pruned" if self._played else "waiting"),
            num_turns=len(turns),
            num_sampled_tokens=sum(turn.num_sampled_tokens for turn in turns),
        )

    @property
    def is_cut(self) -> bool:
        """True if it was left out of the group."""
        return self._cut is not None

    @property
    def num_copied(self) -> int:
        """The number of turns that it copies from its parent."""
        return 0 if self.parent is None else self._start.turn

    # ------------------------------------------------------------------------------------------------- how it is done

    def _must_be_open(self, what: str) -> None:
        if self._is_playing or self._cut is not None or self.is_finished:
            state = "is being played" if self._is_playing else "was cancelled" if self._cut else "has ended"
            raise self._stage.refuse(f"{what} an episode that {state}")

    def _keep_snapshots(self) -> None:
        self._member.request = replace(self._member.request, on_snapshot=self._member.snapshots.__setitem__)

    async def _reflect(self) -> None:
        """Let the policy, or a judge, name the turn at which a retry begins, if the start asks for it."""
        start, reflect, request = self._start, self._stage.reflect, self._member.request
        if not start.reflects or reflect is None or self.parent is None:
            return
        seed = derive_seed(self._stage.seed, request.ordinal, request.member, "reflect")
        found = await reflect(self.parent.trajectory, seed)
        self._num_reflection_tokens = found.num_tokens
        if found.turn:
            self._start = replace(start, turn=found.turn, advice=found.advice)

    def _first_request(self) -> RolloutRequest:
        own = replace(self._member.request, advice=self._start.advice)
        if self._start.demonstrates:
            assert self._stage.demonstrator is not None, "a player of groups with demonstrations needs a demonstrator"
            own = replace(own, make_agent=self._stage.demonstrator)
        if self.parent is None:
            return own
        known = resolved(self._known)
        start = replace(self._start, parent=list(self._known).index(self.parent))
        copied = branch_from(start, known, [episode._member.snapshots for episode in self._known])
        return replace(own, branch=copied)

    def _resumed_request(self) -> RolloutRequest:
        paused = self._played[0]
        turns = tuple((turn, at == 0) for segment in paused.segments for at, turn in enumerate(segment.turns))
        rest = Branch(
            parent=-1, observation=paused.observation, turns=turns, snapshot=self._member.snapshots.get(len(turns))
        )
        return replace(self._member.request, branch=rest, advice="")

    def _take(self, played: tuple[Trajectory, ...], *, is_paused: bool) -> None:
        """Keep what was played, as if it had not paused: none of its own turns are copies."""
        if is_paused and len(played) > 1:
            raise self._stage.refuse(f"pauses an episode of {played[0].env_id}, which has several players")
        before, first = self.num_turns, played[0]
        if self._played:
            paused = self._played[0]
            first = replace(
                first,
                branch_turn=min(self.num_copied, len(first.turns)),
                num_retries=paused.num_retries + first.num_retries,
                voids=(*paused.voids, *first.voids),
            )
        if self._num_reflection_tokens:
            first = replace(first, num_reflection_tokens=self._num_reflection_tokens)
        self._played = (first, *played[1:])
        if first.is_stopped and not is_paused:  # by the rule of its start
            self.cut("pruned")
        if self._stage.request.write_feedback is None:  # comments are counted over the whole episode
            self._num_hints = max(0, self._num_hints - (self.num_turns - before))


def resolved(episodes: Sequence[Episode]) -> list[Trajectory]:
    """Return the trajectories of a group's episodes, whose parents are indices among them.

    If a parent is not among them, or failed, the first of its branches has its turns as its own, since nobody else
    trains them; the other branches are branches of this one.
    """
    index: dict[Episode, int] = {}
    number = 0
    for episode in episodes:
        if not episode.has_failed:
            index[episode] = number
        number += len(episode.trajectories)
    heirs: dict[Episode, Episode] = {}

    def lineage(episode: Episode) -> tuple[int, int]:
        parent, turn = episode.parent, episode.num_copied
        while parent is not None and parent not in index:
            heir = heirs.setdefault(parent, episode) if episode in index else episode
            if heir is not episode:
                return index[heir], min(turn, heir.num_copied)
            turn, parent = min(turn, parent.num_copied), parent.parent
        return (-1, 0) if parent is None else (index[parent], turn)

    found: list[Trajectory] = []
    for episode in episodes:
        for one in episode.trajectories:
            parent, turn = lineage(episode)
            turn = min(turn, len(one.turns))
            is_right = (one.parent, one.branch_turn) == (parent, turn)
            found.append(one if is_right else replace(one, parent=parent, branch_turn=turn))
    return found
