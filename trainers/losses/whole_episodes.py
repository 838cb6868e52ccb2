"""Sums over the episodes of a group for losses that compare whole episodes. All tensors are flat over ``M`` tokens.

A value of an episode is that of each of its tokens. So a sum over episodes is a sum over tokens, each divided by the
number of tokens of its episode.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.trainers.losses.ratios import max_per_unit, sum_per_unit


@dataclass(frozen=True, slots=True)
class Episodes:
    """The episodes and groups of an update's tokens.

    Args:
        trajectory, group: ``[M]`` numbers of each token's episode and of its group.

    Example:
        >>> episodes = Episodes(torch.tensor([0, 0, 1]), torch.tensor([7, 7, 7]))
        >>> episodes.total(torch.tensor([1.0, 2.0, 4.0])).tolist()
        [3.0, 3.0, 4.0]
        >>> episodes.over_group(torch.tensor([3.0, 3.0, 4.0])).tolist(), float(episodes.num_groups)
        ([7.0, 7.0, 7.0], 1.0)
    """

    trajectory: Tensor
    group: Tensor

    def __post_init__(self) -> None:
        for name in ("trajectory", "group"):
            object.__setattr__(self, name, torch.unique(getattr(self, name), return_inverse=True)[1])

    @property
    def num_tokens(self) -> Tensor:
        """``[M]`` number of tokens of each token's episode."""
        return torch.bincount(self.trajectory)[self.trajectory]

    @property
    def num_episodes(self) -> int:
        """Number of episodes of the update."""
        return int(self.trajectory.max()) + 1

    @property
    def num_groups(self) -> int:
        """Number of groups of the update."""
        return int(self.group.max()) + 1

    def total(self, value: Tensor) -> Tensor:
        """Return the sum of a value over each token's episode, ``[M]``."""
        return sum_per_unit(value, self.trajectory)

    def over_group(self, value: Tensor) -> Tensor:
        """Return the sum of a value of episodes over the episodes of each token's group, ``[M]``."""
        return sum_per_unit(value / self.num_tokens, self.group)

    def largest_of_group(self, value: Tensor) -> Tensor:
        """Return the largest value in each token's group, ``[M]``."""
        return max_per_unit(value, self.group)


def undone(value: Tensor, loss_weight: Tensor) -> Tensor:
    """Divide by the weight that the loss multiplies by, ``[M]``; 0 for tokens without weight, which do not train."""
    return torch.where(loss_weight > 0, value / loss_weight.clamp(min=torch.finfo(loss_weight.dtype).tiny), 0.0)
