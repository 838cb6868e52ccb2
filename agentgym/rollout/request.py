"""The request to play one episode, which every layer of a rollout takes.

Playing an episode, layer by layer::

    GroupStream.take    start the groups of the next training steps, in the order of their ordinals
    GroupPlayer.play    make one request per group member, and repeat it if the infrastructure fails
    InFlight.slot       wait until another episode may start
    Pool.play           lend an environment: of this process (EnvPool) or of a Ray worker (RayPool)
    play_task           play one episode, or a game with one episode per player
    run_episode         reset, then decide and step until the episode ends
    Agent.decide        render the prompt, sample a completion and parse it

Trajectories travel back up. ``on_turn`` reports each turn before its episode ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from agentgym.env.env import Env, Snapshot
from agentgym.errors import ConfigError
from agentgym.rollout.agent import MakeAgent
from agentgym.rollout.branch import Branch
from agentgym.types import Task, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Time limits, after which an environment counts as hung."""

    reset_timeout_s: float = 120.0
    step_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.reset_timeout_s <= 0 or self.step_timeout_s <= 0:
            raise ConfigError("reset_timeout_s and step_timeout_s must be above 0")

    def of(self, env: Env) -> EpisodeLimits:
        """Return the limits for an environment: one that limits its own steps gets the time for that.

        Else its policy could use up the time, and the episode would count as a failure of the infrastructure.
        """
        return replace(self, step_timeout_s=max(self.step_timeout_s, env.longest_step_s))


def ignore_turn(turn: Turn) -> None:
    """Do nothing with a turn: the default of ``on_turn``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """One task to play, by whom, with which seed and within which limits."""

    task: Task
    make_agent: MakeAgent
    """Makes the agents of the policy: one per episode, player and sub-agent."""
    opponent: MakeAgent | None = None
    """Plays every seat of a game but one, which the seed draws; None if the policy plays them all."""
    ordinal: int = 0
    """Position of the task in the run's task order."""
    member: int = 0
    """Position of the episode in its group."""
    seed: int = 0
    """Seed of the policy's sampling."""
    limits: EpisodeLimits = EpisodeLimits()
    max_turns: int | None = None
    """Most turns, beside the environment's own limit; None for that alone."""
    branch: Branch | None = None
    """The turns that the episode copies; None if it begins at the start of its task."""
    num_hints: int = 0
    """Turns, from the first that is played, whose prompts end with what the environment's oracle would do."""
    advice: str = ""
    """A hint in words, for the first turn that is played."""
    num_retries: int = 0
    """Earlier attempts, all failed."""
    on_snapshot: Callable[[int, Snapshot], None] | None = None
    """Called before each turn with its index and a native snapshot, where the environment has them."""
    on_turn: Callable[[Turn], None] = ignore_turn
    """Called after each turn."""

    @property
    def num_copied(self) -> int:
        """Turns that the episode copies."""
        return 0 if self.branch is None else len(self.branch.turns)
