"""Schedules of rollouts and training, and the number of episodes that run at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from agentgym.credit.columns import FROM_GROUPS
from agentgym.credit.compose import CreditConfig
from agentgym.engine import EngineHealth
from agentgym.errors import ConfigError
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.in_flight import AdaptiveLimit, InFlight
from agentgym.rollout.quorum import Quorum
from agentgym.settings import Natural, Settings, check_ranges
from agentgym.trainers.losses.component import LossComponent
from agentgym.trainers.losses.config import LossConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig(Settings):
    """Schedule of rollouts and training: the order in which they run, and the number of concurrent episodes."""

    mode: Literal["sync", "periodic", "async"] = "sync"
    """``sync``: sample all groups of a step, then train on them; on-policy. ``periodic``: compute the gradient of each
    group as soon as it is complete, while others are still sampled, and make the optimizer step after the last group;
    on-policy too. ``async``: sample and train at the same time, and train on the groups that are complete. Episodes
    continue when the weights change, and each token records the version that sampled it."""
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


def refuse_for_periodic(credit: CreditConfig, loss: LossConfig) -> None:
    """Check that no component needs all groups of a step before the first gradient is computed.

    Periodic mode computes gradients while groups are still sampled. Some components compare groups only under certain
    settings, which these checks do not know; the step itself detects them
    (:class:`agentgym.trainers.phases.period.Period`).

    Raises:
        ConfigError: a component needs them; the message names the component and the way out.
    """
    columns = [name for name in credit.columns() if name not in FROM_GROUPS]
    shrink = [part.kind for part in loss.corrections if getattr(part, "denominator", "all") == "kept"]
    whole = [
        *(part.name for part, _ in credit.components() if part.needs_whole_step),
        *([f"columns made by the model ({', '.join(columns)})"] if columns else []),
        *(part.name for part, _ in loss.parts() if _reads_whole_update(part)),
        *(f"column {column.name}" for column in loss.columns() if column.phase == "step"),
        *([f"denominator='kept' of {', '.join(shrink)}"] if shrink else []),
        *(["loss.num_updates above 1"] if loss.num_updates > 1 else []),
        *(["loss.minibatch=rows"] if loss.minibatch == "rows" else []),
        *(["loss.num_epochs above 1"] if loss.num_epochs > 1 else []),
    ]
    if whole:
        raise ConfigError(
            f"pipeline.mode=periodic computes gradients before all groups of a step are complete, which does not work "
            f"with {', '.join(whole)}: set pipeline.mode=sync"
        )


def _reads_whole_update(part: LossComponent) -> bool:
    return part.prepares or bool(part.scores) or part.averages_over == "tokens"
