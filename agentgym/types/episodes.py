"""Completions, turns, trajectories and groups, with rewards and credit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Literal

from agentgym.types.messages import Message, Observation, Task

# ------------------------------------------------------------------------------------------------------- rewards


class RewardRole(StrEnum):
    """Role of a reward part. Gating, shaping and normalisation depend on it."""

    OUTCOME = "outcome"
    PROCESS = "process"
    FORMAT = "format"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One named part of a turn's reward. The turn's reward is the sum of its parts."""

    name: str
    value: float
    role: RewardRole = RewardRole.OUTCOME


# --------------------------------------------------------------------------------------------------- completions


class FinishReason(StrEnum):
    """Reason why the engine stopped sampling: a stop token, the token limit, or an abort by the caller."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Tokens that an engine sampled for one prompt. The three tuples have one entry per token, shape ``[T]``.

    Example:
        >>> c = Completion(token_ids=(5, 2), logprobs=(-0.1, -0.7), policy_versions=(3, 3), finish_reason="stop")
        >>> len(c.token_ids)
        2
    """

    token_ids: tuple[int, ...]
    """Sampled token ids, including the stop token."""
    logprobs: tuple[float, ...]
    """Natural-log probabilities under the sampling distribution (after temperature, top-p and top-k)."""
    policy_versions: tuple[int, ...]
    finish_reason: FinishReason
    queued_s: float | None = field(default=None, compare=False)
    """Wall seconds in the engine's queue; None if the engine does not report them."""
    model: str = field(default="", compare=False)
    """Model that a server says has answered, such as a dated version of the one asked; empty if it names none."""

    def __post_init__(self) -> None:
        lengths = len(self.token_ids), len(self.logprobs), len(self.policy_versions)
        assert len(set(lengths)) == 1, (
            f"token_ids, logprobs and policy_versions have {lengths} entries, expected as many"
        )


EMPTY_COMPLETION = Completion(token_ids=(), logprobs=(), policy_versions=(), finish_reason=FinishReason.STOP)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a completion from a server that reports no token ids."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Prompt tokens that the server found in its cache; None if it does not report them."""


# -------------------------------------------------------------------------------------------- turns and episodes


@dataclass(frozen=True, slots=True)
class Latency:
    """Wall seconds that one turn spent rendering prompts, sampling tokens and in the environment."""

    render_s: float = 0.0
    generate_s: float = 0.0
    env_s: float = 0.0
    wait_s: float | None = None
    """Part of ``generate_s`` in the engine's queue; None if the engine does not report it."""


TurnKind = Literal["act", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One action of the policy, with its prompt, its tokens and its result.

    ``prompt_ids`` are only the tokens *added* since the previous turn's completion. In the first turn of a segment they
    are the whole prompt. A segment's tokens are therefore ``prompt_ids + completion.token_ids`` of its turns, in order.
    """

    index: int = 0
    """0-based position in the episode, across segments."""
    kind: TurnKind = "act"
    """A ``summary`` turn closes a segment. The environment does not see it, and the next segment begins with it."""
    prompt_ids: tuple[int, ...] = ()
    completion: Completion = EMPTY_COMPLETION
    usage: Usage | None = None
    """Token counts from an endpoint that gives no token ids. ``prompt_ids`` and the completion's ids are empty then."""
    num_thinking_tokens: int = 0
    """Number of thinking tokens at the start of the completion, including the thinking marks. If the limit cut the
    completion while thinking, all of its tokens."""
    action: Message
    played: Message | None = None
    """Message that the environment got in place of ``action``, such as an expert's action; None if it got ``action``.
    Later prompts contain this message, while training uses the sampled tokens."""
    replies: Observation = ()
    """Messages with which the environment replied."""
    reward_parts: tuple[RewardPart, ...] = ()
    state_key: str | None = None
    """Canonical key of the state *in* which the action was taken. Step-level credit groups turns by it."""
    is_valid: bool = True
    """False if a call was malformed, named an unknown tool, did not fit the schema, or was impossible according to the
    environment."""
    is_void: bool = False
    """True if the turn made no call and gave no answer (SimpleTIR's void turn)."""
    is_faulty: bool = False
    """True for the first wrong turn of an episode, if a judge looked for it."""
    hint: str = ""
    """Hint that the policy saw at the end of its prompt. ``prompt_ids`` do not include it: training on this turn and
    sampling of later turns omit it."""
    num_copied_tokens: int = 0
    """Number of tokens at the start of the completion that a branch copied from a turn of its parent, and did not
    sample for this turn."""
    num_rescored_tokens: int = 0
    """Number of copied tokens, the last ones, that were sampled in another context. Their log-probabilities were
    computed in the context of this turn. The other copied tokens have the log-probabilities they were sampled with."""
    feedback: str = ""
    """A teacher's comment on the turn, which is the last of ``replies``; empty if there is none."""
    latency: Latency = Latency()

    @property
    def num_sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled for this turn: those of the completion that are not copied, or the
        endpoint's count.
        """
        if self.usage is not None:
            return self.usage.completion_tokens
        return len(self.completion.token_ids) - self.num_copied_tokens

    @property
    def reward(self) -> float:
        """Sum of the reward parts."""
        return sum(part.value for part in self.reward_parts)


@dataclass(frozen=True, slots=True)
class Segment:
    """One contiguous context window of an episode, which becomes one training row.

    An episode has several segments if its context was shortened or summarised, if the chat template changes old
    messages, or if it called sub-agents, each of which has its own context.
    """

    turns: tuple[Turn, ...]
    agent: str = ""
    """Name of the sub-agent that the context belongs to; empty for the main agent."""
    invocation: int = -1
    """Number of the sub-agent call in the episode, from 0; -1 for the main agent."""
    asked_at: int = -1
    """Index of the main agent's turn in which a sub-agent was asked; -1 for the main agent, and where nobody knows."""
    role: str = ""
    """Role whose model sampled the turns (:mod:`agentgym.rollout.roles`); empty for the policy."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens of the window, shape ``[T]``."""
        return tuple(chain.from_iterable((*turn.prompt_ids, *turn.completion.token_ids) for turn in self.turns))

    @property
    def loss_mask(self) -> tuple[int, ...]:
        """1 for each token that the policy sampled, 0 for all others, shape ``[T]``."""
        ones_and_zeros: list[int] = []
        for turn in self.turns:
            ones_and_zeros += [0] * len(turn.prompt_ids) + [1] * len(turn.completion.token_ids)
        return tuple(ones_and_zeros)


class Status(StrEnum):
    """Reason why an episode ended.

    The first four are evidence about the policy and are trained on. The last three are infrastructure failures: such an
    episode has no reward and is excluded from the loss and from every statistic.
    """

    COMPLETED = "completed"
    TRUNCATED_TURNS = "truncated_turns"
    TRUNCATED_TOKENS = "truncated_tokens"
    POLICY_ERROR = "policy_error"
    ENV_ERROR = "env_error"
    TIMEOUT = "timeout"
    ABORTED = "aborted"

    @property
    def is_evidence(self) -> bool:
        """True if the infrastructure did not fail, so that the episode is evidence about the policy."""
        return self not in (Status.ENV_ERROR, Status.TIMEOUT, Status.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The data of one finished episode."""

    task: Task
    env_id: str
    status: Status
    segments: tuple[Segment, ...]
    seed: int
    """Seed of the policy's sampling in this episode. (The task fixes the start state.)"""
    frozen_segments: tuple[Segment, ...] = ()
    """Context windows of sub-agents and of other players that roles without training played. Credit, training and
    counts of tokens do not read them."""
    task_type: str = ""
    """Kind of the task as the environment reports it; empty if its tasks have no kinds."""
    observation: Observation = ()
    """First observation, before any turn."""
    success: bool | None = None
    """None if the infrastructure failed, so that success is unknown."""
    error: str | None = None
    failed_part: str = ""
    """Part of the infrastructure that failed: ``sandbox``, ``agent`` (an agent's own program), ``opponent`` (by
    breaking its rules), ``judge``, ``judge_schema`` (its endpoint refuses such requests), ``attempts`` (what scores
    them or notes on them). Empty if none of these did."""
    num_retries: int = 0
    """Number of earlier attempts in which the infrastructure failed."""
    voids: tuple[str, ...] = ()
    """Operation in progress at each infrastructure failure, over all attempts: ``reset``, ``sampling``, or the kinds of
    the action that the environment was processing."""
    player: int = 0
    """Index of the player whose turns these are. In a game, each player has its own trajectory."""
    is_unplayed: bool = False
    """True if the game was over before the player's first move."""
    is_forfeit: bool = False
    """True if the game ended because a player broke its rules or could not go on."""
    parent: int = -1
    """Index, among the group's trajectories, of the one that this trajectory branched from; -1 if it began at the
    start."""
    branch_turn: int = 0
    """First turn of its own. Earlier turns are copies of the parent's, with their tokens and rewards."""
    is_stopped: bool = False
    """True if the rollout strategy stopped the episode before its end. Groups record it as cancelled and never hold
    it."""
    num_reflection_tokens: int = 0
    """Tokens that the policy sampled to reflect on another episode before this one began."""
    replayed_step: int | None = None
    """Training step in which a replayed trajectory was first trained on; None for a new one."""
    final_state_key: str | None = None
    """State after the last turn, in the keys of :attr:`Turn.state_key`; None if the infrastructure failed, or the
    environment has no key after its end."""
    is_demonstration: bool = False
    """True if the environment's oracle acted. The log-probabilities of its tokens mean nothing."""

    attempts: tuple[Trajectory, ...] = ()
    """Other attempts at the task, in order, by a policy that makes several attempts. This one is the attempt that
    counts."""
    attempt: int = 0
    """Index of this attempt among all attempts."""

    @property
    def turns_of_attempts(self) -> tuple[Turn, ...]:
        """Turns of this episode and of all other attempts, for counts of tokens and time."""
        return tuple(chain(self.turns, *(other.turns for other in self.attempts)))

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """Turns that the policy took in this trajectory: not copied from a parent, replayed or demonstrated."""
        is_own = self.replayed_step is None and not self.is_demonstration
        return self.turns[self.branch_turn :] if is_own else ()

    @property
    def is_unaided(self) -> bool:
        """True for a new episode of the policy that began at the start and in which it got no hint or feedback.

        A game that was over before the policy's first move tells nothing about the policy, so it is not one of them.
        """
        is_new = self.parent < 0 and self.replayed_step is None and not self.is_demonstration
        return is_new and not self.is_unplayed and not any(turn.hint or turn.feedback for turn in self.turns)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Turns of all segments in order, length ``K``; turns of sub-agents come last."""
        return tuple(turn for segment in self.segments for turn in segment.turns)

    @property
    def reward(self) -> float | None:
        """Undiscounted return of the main agent; None if the infrastructure failed."""
        if not self.status.is_evidence:
            return None
        return sum(turn.reward for segment in self.segments if not segment.agent for turn in segment.turns)


CutReason = Literal["slow", "surplus", "waiting", "pruned"]
"""Reason why a member was cancelled: it was still running (``slow``), it ended just after the group was complete
(``surplus``), it had not begun (``waiting``), or the rollout strategy stopped it (``pruned``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelledMember:
    """A member that was cancelled: an over-provisioned one because its group was complete without it, or one that the
    rollout strategy pruned. It is neither data nor a failure.

    Example:
        >>> CancelledMember(member=8, seed=3, reason="slow", num_turns=4, num_sampled_tokens=31).reason
        'slow'
    """

    member: int
    seed: int
    """Seed of the policy's sampling. Together with the group's task it identifies the episode."""
    reason: CutReason
    num_turns: int
    """Turns finished before cancellation; all turns of the episode if the reason is ``surplus``."""
    num_sampled_tokens: int
    """Tokens sampled in these turns, which the cancellation discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """Episodes of one task from one start state, which group-relative credit compares.

    For a game, the group holds the trajectories of all players, game by game. Credit compares those of the same player.
    """

    ordinal: int
    """Position of the task in the run's task order. Each position is trained exactly once."""
    task: Task
    trajectories: tuple[Trajectory, ...]
    cut: tuple[CancelledMember, ...] = ()
    """Cancelled members; empty unless members are over-provisioned or pruned."""
    env_name: str = ""
    """Name of the environment in a run that mixes several; empty in other runs."""

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """Members whose infrastructure did not fail."""
        return tuple(t for t in self.trajectories if t.status.is_evidence)


# -------------------------------------------------------------------------------------------------------- credit


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCredit:
    """Credit of one turn and its parts, for records and reports. (Trainers use columns of arrays instead.)"""

    shaped_reward: float
    return_to_go: float
    advantage: float
    anchor_group: int = -1
    """Index of the anchor group (turns taken in the same state) in the batch; -1 if the estimator uses none."""
    anchor_size: int = 0
    gate_open: bool = True
    loss_weight: float = 1.0
    """Weight of the turn in the loss. A turn of weight 0 is excluded from the denominators, too."""
    token_advantages: tuple[float, ...] = ()
    """One advantage per sampled token, shape ``[T]``, if the estimator works on tokens; empty if all tokens have
    ``advantage``."""
    token_keep: tuple[bool, ...] = ()
    """True for each sampled token that is trained on, shape ``[T]``; empty if no selection chooses tokens."""
