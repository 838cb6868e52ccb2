"""Schedules of rollouts and training, and the number of episodes that run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentgym.engine import EngineHealth
from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.in_flight import AdaptiveLimit, InFlight
from agentgym.rollout.quorum import Quorum
from agentgym.settings import Natural, Settings, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig(Settings):
    """Schedule of rollouts and training: the order in which they run, and the number of concurrent episodes."""

    mode: Literal["sync", "async"] = "sync"
    """``sync``: sample all groups of a step, then train on them; on-policy. ``async``: sample and train at
    the same time, and train on the groups that are complete. Episodes continue when the weights change, and each token
    records the version that sampled it."""
    max_staleness: int = 1
    """Largest age of a group's oldest token when it is trained, in versions of the weights; async mode only."""
    over_provision: Natural = 0
    """Number of members started beyond ``group.group_size``. The first ``group_size`` valid members complete a group;
    the others are cancelled and count neither as failures nor as data. This biases training towards short episodes.
    Leave it at 0 if success depends on the length of an episode."""
    complete_with: Literal["group_size", "min_valid"] = "group_size"
    """Number of valid members that complete a group. ``min_valid`` cancels the slowest members without starting extra
    ones, with the same bias."""
    max_in_flight: int | Literal["auto"] = 0
    """Number of concurrent episodes, older groups first; 0 means ``group.num_envs``. ``auto`` raises the number while
    throughput grows, keeps it while requests wait or the engine's cache is nearly full, and lowers it if more episodes
    do not raise throughput (:mod:`agentgym.rollout.in_flight`)."""

    def __post_init__(self) -> None:
        if self.max_staleness < 1:
            raise ConfigError(
                f"pipeline.max_staleness must be at least 1, got {self.max_staleness}; for on-policy training set "
                "pipeline.mode=sync"
            )
        check_ranges(self, "pipeline.")
        if self.max_in_flight != "auto" and self.max_in_flight < 0:
            raise ConfigError(f"pipeline.max_in_flight must be auto or at least 0, got {self.max_in_flight}")

    @property
    def bound(self) -> int:
        """Largest number of versions by which sampled tokens may be older than the trained weights; 0 on-policy."""
        return self.max_staleness if self.mode == "async" else 0

    @property
    def is_on_policy(self) -> bool:
        """True if the weights that are updated are those that sampled the tokens."""
        return self.mode != "async"

    def quorum(self, group: GroupConfig) -> Quorum:
        """Return the number of members of a group that start, and the number that completes it."""
        num_needed = group.group_size if self.complete_with == "group_size" else group.min_valid
        return Quorum(num_started=group.group_size + self.over_provision, num_needed=num_needed)

    def in_flight(self, group: GroupConfig, health: Callable[[], EngineHealth | None] = lambda: None) -> InFlight:
        """Return the limit of concurrent episodes, at most ``group.num_envs``.

        Args:
            group: the settings of groups.
            health: returns the engine's load, which ``auto`` follows.
        """
        if self.max_in_flight == "auto":
            return InFlight(group.num_envs, AdaptiveLimit(most=group.num_envs), health=health)
        return InFlight(min(self.max_in_flight or group.num_envs, group.num_envs))
