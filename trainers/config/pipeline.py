"""Schedules of rollouts and training, and the number of episodes they keep going."""

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
from agentgym.settings import Natural, check_ranges
from agentgym.trainers.losses.component import LossComponent
from agentgym.trainers.losses.config import LossConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineConfig:
    """Schedule of rollouts and training: who waits for whom, and how many episodes are played at a time."""

    mode: Literal["sync", "periodic", "async"] = "sync"
    """``sync`` plays a step's groups, then trains on them. ``periodic`` takes the gradient of each group as soon as it
    is done, while others are still played, and makes the optimizer's step when all are in: on-policy, as sync is.
    ``async`` plays on while it trains, and takes the groups that are done; episodes go on across new weights, token by
    token with the version each was sampled from."""
    max_staleness: int = 1
    """In async mode, how many versions old the oldest token of a group may be when it is trained."""
    over_provision: Natural = 0
    """Members started beyond ``group.group_size``. A group is complete with its first ``group_size`` valid members; the
    others are stopped and are neither failures nor data. This favours whatever ends soon: the longer an episode, the
    less likely it is trained on. Leave it at 0 where success and duration go together."""
    complete_with: Literal["group_size", "min_valid"] = "group_size"
    """How many valid members complete a group. ``min_valid`` stops the slowest of a group without starting more of
    them, with the same bias."""
    max_in_flight: int | Literal["auto"] = 0
    """Episodes that are played at the same time, older groups first; 0 for as many as ``group.num_envs``. ``auto``
    raises the number while the engine keeps up, holds it while requests wait or the engine's cache is nearly full, and
    lowers it where more brings nothing (:mod:`agentgym.rollout.in_flight`)."""

    def __post_init__(self) -> None:
        if self.max_staleness < 1:
            raise ConfigError(f"pipeline.max_staleness must be at least 1, got {self.max_staleness}; or use mode=sync")
        check_ranges(self, "pipeline.")
        if self.max_in_flight != "auto" and self.max_in_flight < 0:
            raise ConfigError(f"pipeline.max_in_flight must be auto or at least 0, got {self.max_in_flight}")

    @property
    def bound(self) -> int:
        """Versions that rollouts may be ahead of training: 0 unless the mode is async."""
        return self.max_staleness if self.mode == "async" else 0

    @property
    def is_on_policy(self) -> bool:
        """True if every token is trained by the version that sampled it."""
        return self.mode != "async"

    def quorum(self, group: GroupConfig) -> Quorum:
        """Return how many members of a group are started, and how many complete it."""
        num_needed = group.group_size if self.complete_with == "group_size" else group.min_valid
        return Quorum(num_started=group.group_size + self.over_provision, num_needed=num_needed)

    def in_flight(self, group: GroupConfig, health: Callable[[], EngineHealth | None] = lambda: None) -> InFlight:
        """Return the limit that lets episodes begin; never more than there are environments."""
        if self.max_in_flight == "auto":
            return InFlight(group.num_envs, AdaptiveLimit(most=group.num_envs), health=health)
        return InFlight(min(self.max_in_flight or group.num_envs, group.num_envs))


WHOLE_STEP = ("reinforce_pp", "reinforce_pp_baseline", "spo")
"""Estimators that normalise over all groups of a step."""


def refuse_for_periodic(credit: CreditConfig, loss: LossConfig) -> None:
    """Refuse what must see all groups of a step before the first gradient; periodic mode sees them as they come.

    What these checks cannot know (a component that compares groups under some settings) is found by the step itself,
    see :class:`agentgym.trainers.phases.period.Period`.

    Raises:
        ConfigError: naming the component and what to do.
    """
    columns = [name for name in credit.columns() if name not in FROM_GROUPS]
    shrink = [part.kind for part in loss.corrections if getattr(part, "denominator", "all") == "kept"]
    whole = [
        *([credit.estimator] if credit.estimator in WHOLE_STEP else []),
        *([f"columns made by the model ({', '.join(columns)})"] if columns else []),
        *(part.name for part, _ in loss.parts() if _reads_whole_update(part)),
        *([f"denominator='kept' of {', '.join(shrink)}"] if shrink else []),
        *(["loss.num_updates above 1"] if loss.num_updates > 1 else []),
        *(["loss.minibatch=rows"] if loss.minibatch == "rows" else []),
        *(["loss.num_epochs above 1"] if loss.num_epochs > 1 else []),
    ]
    if whole:
        raise ConfigError(
            f"pipeline.mode=periodic takes gradients before all groups of a step are in, and that cannot be with "
            f"{', '.join(whole)}; use mode=sync"
        )


def _reads_whole_update(part: LossComponent) -> bool:
    return part.needs_whole_update or part.averages_over == "tokens" or part.family == "token mask"
