"""Mixtures of environments: the assignment of a run's groups to environments and positions in their task orders.

The shares of a step's groups follow the environments' weights. Groups are assigned one step at a time, so that shares
may depend on earlier results and all ranks agree on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentgym.settings import PositiveFraction, Settings, check_ranges

WeightsAt = Callable[[int], Sequence[float]]
"""Returns the weight of each environment at a step."""

FAST, SLOW = 0.5, 0.9
"""Decay per step of the fast and the slow moving average of success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureConfig(Settings):
    """The shares of several environments in a run's groups."""

    by: Literal["weight", "progress"] = "weight"
    """``weight``: by the environments' weights alone. ``progress``: weights are multiplied by learning progress, the
    distance between a fast and a slow average of success, so that solved and hopeless environments get fewer groups."""
    floor: PositiveFraction = 0.2
    """With ``progress``, the share of groups that still follows the weights, so that no environment is neglected."""

    def __post_init__(self) -> None:
        check_ranges(self, "mixture.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MixtureState:
    """The state of a :class:`Mixture` in a checkpoint."""

    num_steps: int = 0
    """Steps whose groups are assigned."""
    counts: tuple[int, ...] = ()
    """Number of groups assigned to each environment."""
    debts: tuple[float, ...] = ()
    """Number of groups by which each environment is behind its share."""
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """Environment and position in its task order of each assigned group that has not been trained, by ordinal."""
    fast: tuple[float | None, ...] = ()
    slow: tuple[float | None, ...] = ()
    """Slow averages of success; None before an environment's first group."""


class Mixture:
    """An assignment of a run's groups to environments and positions in their task orders.

    Within a step, environments alternate. With constant shares, the number of groups of each environment never differs
    from its share by more than one group for two environments, and by more than a few for many.

    Source of ``progress``: Matiisen et al., "Teacher-Student Curriculum Learning" (arXiv 1707.00183), which samples
    tasks in proportion to the absolute slope of their learning curve. Here the slope is the difference of two
    exponential averages.

    Args:
        weights_at: the environments' weights at a step; a weight of 0 leaves an environment out.
        state: the state to resume from.

    Example:
        >>> mixture = Mixture(lambda step: (2.0, 1.0), groups_per_step=3)
        >>> [mixture.place(ordinal) for ordinal in range(6)]
        [(0, 0), (1, 0), (0, 1), (0, 2), (1, 1), (0, 3)]
    """

    def __init__(
        self,
        weights_at: WeightsAt,
        *,
        groups_per_step: int,
        config: MixtureConfig = MixtureConfig(),
        state: MixtureState | None = None,
    ) -> None:
        self._weights_at, self._groups_per_step, self._config = weights_at, groups_per_step, config
        count = len(weights_at(0))
        state = state or MixtureState(
            counts=(0,) * count, debts=(0.0,) * count, fast=(None,) * count, slow=(None,) * count
        )
        self._num_steps = state.num_steps
        self._counts, self._debts = list(state.counts), list(state.debts)
        self._places = dict(state.places)
        self._fast, self._slow = list(state.fast), list(state.slow)

    @property
    def state(self) -> MixtureState:
        """The state to save in a checkpoint."""
        return MixtureState(
            num_steps=self._num_steps,
            counts=tuple(self._counts),
            debts=tuple(self._debts),
            places=dict(self._places),
            fast=tuple(self._fast),
            slow=tuple(self._slow),
        )

    def place(self, ordinal: int) -> tuple[int, int]:
        """Return the environment of a group, and the position of its task in that environment's order."""
        while self._num_steps * self._groups_per_step <= ordinal:
            self._assign_step()
        return self._places[ordinal]

    def shares(self, step: int) -> list[float]:
        """Return the share of a step's groups that each environment gets; they sum to 1."""
        weights = self._weights_at(step)
        total = sum(weights)
        by_weight = [weight / total for weight in weights]
        if self._config.by == "weight":
            return by_weight
        progress = [
            # an environment without results counts as learning, or it would never be chosen
            weight * (1.0 if fast is None or slow is None else abs(fast - slow))
            for weight, fast, slow in zip(weights, self._fast, self._slow, strict=True)
        ]
        if not sum(progress):
            return by_weight
        floor = self._config.floor
        return [floor * even + (1 - floor) * own / sum(progress) for even, own in zip(by_weight, progress, strict=True)]

    def observe(self, successes: Iterable[tuple[int, float]]) -> None:
        """Update the averages with the mean success of the groups of one step.

        Args:
            successes: (environment, success) of each group with valid members.
        """
        by_env: dict[int, list[float]] = {}
        for env, success in successes:
            by_env.setdefault(env, []).append(success)
        for env, values in by_env.items():
            mean = sum(values) / len(values)
            self._fast[env] = _moved(self._fast[env], mean, FAST)
            self._slow[env] = _moved(self._slow[env], mean, SLOW)

    def forget(self, ordinals: Iterable[int]) -> None:
        """Forget groups that have been taken for training."""
        for ordinal in ordinals:
            self._places.pop(ordinal, None)

    def _assign_step(self) -> None:
        shares = self.shares(self._num_steps)
        first = self._num_steps * self._groups_per_step
        for ordinal in range(first, first + self._groups_per_step):
            self._debts = [debt + share for debt, share in zip(self._debts, shares, strict=True)]
            env = max(range(len(shares)), key=lambda at: (shares[at] > 0, self._debts[at], -at))
            self._debts[env] -= 1
            self._places[ordinal] = (env, self._counts[env])
            self._counts[env] += 1
        self._num_steps += 1


def _moved(average: float | None, value: float, kept: float) -> float:
    return value if average is None else kept * average + (1 - kept) * value
