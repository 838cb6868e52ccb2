"""Every noun that flows through agentgym, from a task to the credit of a turn.

The flow, one noun per arrow::

    Task -> Message -> Completion -> Turn -> Segment -> Trajectory -> TrajectoryGroup -> TurnCredit

All nouns are frozen dataclasses holding tuples, so that a stage can only make new values, never change those of an
earlier stage. This module needs the standard library alone.

Dimension suffixes: ``_G`` sibling in a group, ``_K`` turn, ``_T`` token, ``_B`` row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain
from typing import Any, Literal, TypeAlias

from agentgym.canonical import digest

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A decoded JSON value; narrow it with ``isinstance`` before it is used."""
JsonObject: TypeAlias = "Mapping[str, Json]"
JsonSchema: TypeAlias = Mapping[str, Any]
"""A JSON schema, of a tool's arguments or of one of them."""

# --------------------------------------------------------------------------------------------------------- tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem an environment can be reset to.

    Example:
        >>> task = Task(id="train-7", split="train", seed=7, data={"goal": "heat the mug"})
        >>> len(task.content_hash)
        32
    """

    id: str
    split: str
    seed: int
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def content_hash(self) -> str:
        """128-bit hex digest of what the task *is* (seed and data), whatever its id or split."""
        return digest({"seed": self.seed, "data": dict(self.data)})

    @property
    def answers(self) -> tuple[str, ...]:
        """Reference answers, ``data["answers"]``: what information gain is measured on; empty if there are none.

        Example:
            >>> Task(id="q1", split="train", seed=0, data={"answers": ["Paris"]}).answers
            ('Paris',)
        """
        given = self.data.get("answers", ())
        return tuple(text for text in ((given,) if isinstance(given, str) else given) if text.strip())


# ------------------------------------------------------------------------------------------ messages and tool calls

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text in a message of several parts."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image in a message, as PNG bytes in base64."""

    png_base64: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One well-formed call of a tool.

    Example:
        >>> ToolCall("go_to", {"receptacle": "fridge 1"}).name
        'go_to'
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """An attempted call that could not be parsed; the other calls of the turn still run.

    ``span`` is the half-open character range in the completion's text.

    Example:
        >>> MalformedCall((0, 6), "expected a tool name", "go to?").reason
        'expected a tool name'
    """

    span: tuple[int, int]
    reason: str
    text: str


Call = ToolCall | MalformedCall


@dataclass(frozen=True, slots=True)
class ToolResult:
    """Result of one call. ``error_type`` is set exactly if the policy is to see an error."""

    content: str
    name: str = ""
    call_id: str = ""
    error_type: str | None = None
    box: tuple[int, int, int, int] | None = None
    """Where on the screen, as it was before, the call acted: left, top, width, height in pixels; for who looks on."""
    images: tuple[ImagePart, ...] = ()
    """Images that the tool returned, on their way into the content of the tool message."""

    @property
    def is_error(self) -> bool:
        return self.error_type is not None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it: name, description, and a JSON schema of the arguments.

    Example:
        >>> spec = ToolSpec("look", "Look around.", {"type": "object", "properties": {}})
        >>> spec.as_function()["function"]["name"]
        'look'
    """

    name: str
    description: str
    parameters: JsonSchema
    is_parallel_safe: bool = False
    timeout_s: float | None = None

    def as_function(self) -> dict[str, Any]:
        """The function schema that chat templates and OpenAI-compatible servers take."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation.

    An environment says ``user`` and ``tool`` messages; a policy says ``assistant`` messages. Their ``content`` is the
    text as it was sampled; ``thinking``, ``calls`` and ``answer`` are what it was read as.

    Example:
        >>> Message("user", "You are in the middle of a room.").text
        'You are in the middle of a room.'
    """

    role: Role
    content: str | tuple[TextPart | ImagePart, ...] = ""
    calls: tuple[Call, ...] = ()
    result: ToolResult | None = None
    thinking: str = ""
    """What the policy thought before it answered."""
    answer: str | None = None
    """``content`` without thinking and calls; None for the whole of it."""

    @property
    def text(self) -> str:
        """Text that the message says, without thinking, calls and images."""
        if self.answer is not None:
            return self.answer
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    def __str__(self) -> str:
        return self.text


Observation = tuple[Message, ...]
"""What an environment says at one time: zero or more messages."""


# ------------------------------------------------------------------------------------------------------- rewards


class RewardRole(StrEnum):
    """Role of a reward part; gating, shaping and normalisation act by role."""

    OUTCOME = "outcome"
    PROCESS = "process"
    FORMAT = "format"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One named part of a turn's reward; the turn's reward is the sum of its parts."""

    name: str
    value: float
    role: RewardRole = RewardRole.OUTCOME


# --------------------------------------------------------------------------------------------------- completions


class FinishReason(StrEnum):
    """Reason why the engine stopped: a stop token, the token limit, or an abort from outside."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """An engine's answer to one prompt; the three tuples have one entry per sampled token.

    Example:
        >>> c = Completion(token_ids=(5, 2), logprobs=(-0.1, -0.7), policy_versions=(3, 3), finish_reason="stop")
        >>> len(c.token_ids)
        2
    """

    token_ids: tuple[int, ...]
    """Sampled token ids, a stop token included."""
    logprobs: tuple[float, ...]
    """Natural-log probabilities under the distribution that was sampled from (after temperature, top-p, top-k)."""
    policy_versions: tuple[int, ...]
    finish_reason: FinishReason
    queued_s: float | None = field(default=None, compare=False)
    """Wall seconds before the engine began to work on it; None where the engine does not say."""

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.logprobs) == len(self.policy_versions)


EMPTY_COMPLETION = Completion(token_ids=(), logprobs=(), policy_versions=(), finish_reason=FinishReason.STOP)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a completion by a server that does not say which tokens."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    """Of the prompt, those that the server had kept; None if it does not say."""


# -------------------------------------------------------------------------------------------- turns and episodes


@dataclass(frozen=True, slots=True)
class Latency:
    """Wall seconds one turn spent rendering prompts, sampling tokens and inside the environment."""

    render_s: float = 0.0
    generate_s: float = 0.0
    env_s: float = 0.0
    wait_s: float | None = None
    """Of ``generate_s``, the time in the engine's queue; None where the engine does not say."""


TurnKind = Literal["act", "summary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One decision of the policy and what came of it.

    ``prompt_ids`` are only the tokens *added* since the previous turn's completion (the whole first prompt for the
    first turn of a segment): a segment's tokens are its turns' ``prompt_ids + completion.token_ids`` in order.
    """

    index: int
    """0-based position in the episode, across segments."""
    kind: TurnKind = "act"
    """A ``summary`` closes a segment: the environment does not see it, and the next segment begins with it."""
    prompt_ids: tuple[int, ...] = ()
    completion: Completion = EMPTY_COMPLETION
    usage: Usage | None = None
    """What an endpoint that gives no token ids counted; then ``prompt_ids`` and the completion's ids are empty."""
    num_thinking_tokens: int = 0
    """How many of the completion's first tokens are thinking, its marks included; all if it was cut while thinking."""
    action: Message
    played: Message | None = None
    """What was done in place of ``action``, an expert's action for one; None if it was the action itself. Later
    prompts hold this one; what was sampled stays what is trained."""
    replies: Observation = ()
    """What the environment answered to what was done."""
    reward_parts: tuple[RewardPart, ...] = ()
    state_key: str | None = None
    """Canonical key of the state the action was taken *in*; the anchor of step-level credit."""
    is_valid: bool = True
    """False if a call was malformed, unknown, refused by its schema or, by the env's word, impossible."""
    is_void: bool = False
    """True if the turn made no call and gave no answer (SimpleTIR's void turn)."""
    hint: str = ""
    """Help that the policy saw at the end of its prompt. ``prompt_ids`` do not have it, so the turn is trained, and
    later turns are sampled, without it."""
    latency: Latency = Latency()

    @property
    def num_sampled_tokens(self) -> int:
        """Number of tokens that the policy sampled: counted, or as the endpoint said."""
        return self.usage.completion_tokens if self.usage is not None else len(self.completion.token_ids)

    @property
    def reward(self) -> float:
        return sum(part.value for part in self.reward_parts)


@dataclass(frozen=True, slots=True)
class Segment:
    """One contiguous context window of an episode: one training row.

    An episode has several only if its context was cut, summarised, or re-rendered by a template that changes old
    messages, or if it asked sub-agents, each of which has a context of its own.
    """

    turns: tuple[Turn, ...]
    agent: str = ""
    """The sub-agent whose context it is; empty for the main agent."""
    invocation: int = -1
    """Which call of a sub-agent in the episode, counted from 0; -1 for the main agent."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """All tokens of the window, shape ``[T]``."""
        return tuple(chain.from_iterable((*turn.prompt_ids, *turn.completion.token_ids) for turn in self.turns))

    @property
    def loss_mask(self) -> tuple[int, ...]:
        """1 exactly on the tokens the policy sampled, shape ``[T]``."""
        ones_and_zeros: list[int] = []
        for turn in self.turns:
            ones_and_zeros += [0] * len(turn.prompt_ids) + [1] * len(turn.completion.token_ids)
        return tuple(ones_and_zeros)


class Status(StrEnum):
    """Ending of an episode.

    The first four are evidence about the policy and are trained on; the last three are failures of the
    infrastructure: no reward, out of the loss and out of every statistic.
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
        """True if the episode says something about the policy."""
        return self not in (Status.ENV_ERROR, Status.TIMEOUT, Status.ABORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode, complete when made."""

    task: Task
    env_id: str
    status: Status
    segments: tuple[Segment, ...]
    seed: int
    """Seed of the policy's sampling in this episode (the start state is fixed by the task)."""
    task_type: str = ""
    """The kind of the task, as the environment tells it; empty if its tasks have no kinds."""
    observation: Observation = ()
    """What the environment said first."""
    success: bool | None = None
    """None if the infrastructure failed: then nobody knows."""
    error: str | None = None
    num_retries: int = 0
    """Attempts before this one in which the infrastructure failed."""
    voids: tuple[str, ...] = ()
    """What was going on whenever the infrastructure failed, over all attempts: ``reset``, ``sampling``, or the kinds of
    the action that the environment was acting on."""
    player: int = 0
    """Whose turns these are in a game of several players, each with a trajectory of its own."""
    parent: int = -1
    """Position among the group's trajectories of the one that this one branched from; -1 if it began at the start."""
    branch_turn: int = 0
    """Turns before this one are copies of the parent's, with their tokens and rewards."""
    num_reflection_tokens: int = 0
    """Tokens that the policy sampled about another episode before it began this one."""
    replayed_step: int | None = None
    """The training step in which it was first trained, if it is trained again; None for a new one."""

    attempts: tuple[Trajectory, ...] = ()
    """Other attempts at the task, in order, by a policy that makes several and lets one count: this one."""
    attempt: int = 0
    """Position of this one among all attempts."""

    @property
    def turns_of_attempts(self) -> tuple[Turn, ...]:
        """Turns of this episode and of all other attempts: what was sampled and waited for."""
        return tuple(chain(self.turns, *(other.turns for other in self.attempts)))

    @property
    def own_turns(self) -> tuple[Turn, ...]:
        """Turns that were played in this trajectory: not copied, and not of an earlier step."""
        return () if self.replayed_step is not None else self.turns[self.branch_turn :]

    @property
    def is_unaided(self) -> bool:
        """True for a new episode that began at the start and got no hint."""
        return self.parent < 0 and self.replayed_step is None and not any(turn.hint for turn in self.turns)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """Turns of all segments in order, length ``K``; those of sub-agents come last."""
        return tuple(turn for segment in self.segments for turn in segment.turns)

    @property
    def reward(self) -> float | None:
        """Undiscounted return of the main agent, or None if the infrastructure failed."""
        if not self.status.is_evidence:
            return None
        return sum(turn.reward for segment in self.segments if not segment.agent for turn in segment.turns)


CutReason = Literal["slow", "surplus", "waiting"]
"""Why a member was cut: it was still playing, it was done just after the group was complete, or it had not begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutMember:
    """A member that was started and that its group, complete without it, did not need: neither data nor a failure.

    Example:
        >>> CutMember(member=8, seed=3, reason="slow", num_turns=4, num_sampled_tokens=31).reason
        'slow'
    """

    member: int
    seed: int
    """Seed of the policy's sampling: with the group's task it says which episode it would have been."""
    reason: CutReason
    num_turns: int
    """Turns it had finished; all of the episode's if the reason is ``surplus``."""
    num_sampled_tokens: int
    """Tokens sampled in these turns: what the cut threw away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryGroup:
    """Episodes of one task from one start state: the unit of group-relative credit.

    Of a game, the trajectories of all players, game by game; credit compares those of the same player.
    """

    ordinal: int
    """Position of the task in the run's task order; each ordinal is trained exactly once."""
    task: Task
    trajectories: tuple[Trajectory, ...]
    cut: tuple[CutMember, ...] = ()
    """Members that were started and not needed; empty unless members are over-provisioned."""
    env_name: str = ""
    """Name of the environment in a run that mixes several; empty elsewhere."""

    @property
    def valid(self) -> tuple[Trajectory, ...]:
        """The members that are evidence about the policy."""
        return tuple(t for t in self.trajectories if t.status.is_evidence)


# -------------------------------------------------------------------------------------------------------- credit


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCredit:
    """Credit of one turn, and its parts, as records and reports hold it; trainers read columns."""

    shaped_reward: float
    return_to_go: float
    advantage: float
    anchor_group: int = -1
    """Index of the anchor group in the batch, -1 if the estimator uses none."""
    anchor_size: int = 0
    gate_open: bool = True
    loss_weight: float = 1.0
    """Weight of the turn in the loss; 0 leaves it out, of the denominators too."""
    token_advantages: tuple[float, ...] = ()
    """One per sampled token where the estimator works on tokens; empty if all of them have ``advantage``."""
    token_keep: tuple[bool, ...] = ()
    """Which sampled tokens train where a selection chooses tokens; empty if all do."""
