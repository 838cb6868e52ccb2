"""The request for one episode, which every layer of a rollout takes.

The layers that run an episode::

    GroupStream.take    start the groups of the next training steps, in the order of their ordinals
    Group.run           let a program start, pause and branch the episodes of a group
    GroupPlayer.play    make one request per group member, and repeat it if the infrastructure fails
    InFlight.slot       wait until another episode may start
    Pool.play           lend an environment: of this process (EnvPool) or of a Ray worker (RayPool)
    play_task           play one episode, or a game with one episode per player
    run_episode         reset, then decide and step until the episode ends
    Agent.decide        render the prompt, sample a completion and parse it

Trajectories travel back up. ``on_turn`` reports each turn before its episode ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from agentgym.env.env import Env, Snapshot
from agentgym.errors import ConfigError
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.branch import Branch
from agentgym.rollout.roles import Cast
from agentgym.settings import Count, Settings, check_ranges
from agentgym.types import Observation, Task, ToolSpec, Turn

WriteHint = Callable[[Sequence[ToolSpec], Observation, Sequence[Turn]], Awaitable[str]]
"""A function from an episode's tools, first observation and turns so far to a hint; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits(Settings):
    """Time limits, after which an environment counts as hung, and a limit for environments that have none."""

    reset_timeout_s: float = 120.0
    step_timeout_s: float = 60.0
    max_turns: Count = 1000
    """Turns after which an episode is truncated if its environment has no limit of turns."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.reset_timeout_s <= 0 or self.step_timeout_s <= 0:
            raise ConfigError("reset_timeout_s and step_timeout_s must be above 0")

    def of(self, env: Env) -> EpisodeLimits:
        """Return the limits for an environment, extended by the environment's own limit of a step.

        Otherwise a policy could use up the time, and the episode would count as an infrastructure failure.
        """
        return replace(self, step_timeout_s=max(self.step_timeout_s, env.longest_step_s))


def ignore_turn(turn: Turn) -> None:
    """Do nothing with a turn: the default of ``on_turn``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """The task of an episode, with its agents, seed and limits."""

    task: Task
    make_agent: MakeAgent
    """Maker of the policy's agents: one per episode, player and sub-agent."""
    roles: Cast = field(default_factory=dict)
    """Roles that play sub-agents or players; the policy plays the others."""
    ordinal: int = 0
    """Position of the task in the run's task order."""
    member: int = 0
    """Index of the episode in its group."""
    seed: int = 0
    """Seed of the policy's sampling."""
    limits: EpisodeLimits = EpisodeLimits()
    max_turns: int | None = None
    """Most turns, in addition to the environment's limit; None for no further limit."""
    branch: Branch | None = None
    """Turns that the episode copies; None if it begins at the start of its task."""
    pause_after: int | None = None
    """Number of turns after which the episode stops, to be played on later; None to play it to its end."""
    num_hints: int = 0
    """Number of turns, from the first own one, whose prompts end with a hint."""
    write_hint: WriteHint | None = None
    """Writer of hints; None for the oracle's next action. Its failures must not raise: the turn goes without a hint."""
    hint: str = ""
    """Text of the hints, the same for every turn; empty to ask ``write_hint`` or the oracle."""
    write_feedback: WriteHint | None = None
    """Writer of comments on turns that earned nothing, in place of hints: on the first ``num_hints`` of them."""
    advice: str = ""
    """Advice for the first own turn, as text."""
    num_retries: int = 0
    """Number of earlier attempts, all of which failed."""
    on_snapshot: Callable[[int, Snapshot], None] | None = None
    """Called before each turn with its index and a native snapshot, if the environment has them."""
    on_turn: Callable[[Turn], None] = ignore_turn
    """Called after each turn."""

    @property
    def num_copied(self) -> int:
        """Turns that the episode copies."""
        return 0 if self.branch is None else len(self.branch.turns)
