"""An additional next-token loss during RL: every optimizer step adds its weighted gradient to that of the policy loss.

The loss is the mean over weighted tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from agentgym.errors import RunStoppedError
from agentgym.render.chat import ChatRenderer
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.outline import GroupMetadata
from agentgym.trainers.data.row import Row
from agentgym.trainers.losses.component import LossComponent
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.trial import checked_rows
from agentgym.trainers.phases.optimizer_step import AddGradient
from agentgym.trainers.phases.sft import add_gradient
from agentgym.trainers.sft.batches import SftBatches
from agentgym.trainers.types import CausalLM, Metrics
from agentgym.types import TrajectoryGroup


class AddedLoss:
    """The additional loss of one RL step.

    Args:
        rows_of: the rows of each optimizer step of the RL step, by number.
        name: prefix of its metrics.
        rollouts_are_sharded: ``rows_of`` returns other rows on each rank; else the same.
    """

    def __init__(
        self,
        config: LossConfig,
        model: CausalLM,
        rows_of: Callable[[int], Sequence[Row]],
        weight: float,
        name: str,
        *,
        rollouts_are_sharded: bool = False,
    ) -> None:
        self._rollouts_are_sharded = rollouts_are_sharded
        self._config, self._model, self._rows_of = config, model, rows_of
        self._weight, self._name = weight, name
        self._losses: list[float] = []

    def add_gradient(self, number: int) -> None:
        """Add the gradient of the weighted loss to the optimizer step with this number.

        Raises:
            RunStoppedError: the loss is not finite.
        """
        sums = add_gradient(
            self._model,
            self._rows_of(number),
            self._config,
            self._weight,
            rollouts_are_sharded=self._rollouts_are_sharded,
        )
        if not sums.weight:
            return
        if not math.isfinite(sums.mean):
            raise RunStoppedError(f"the {self._name} loss beside RL is {sums.mean}; lower its weight or optimizer.lr")
        self._losses.append(sums.mean)

    def metrics(self) -> Metrics:
        """Return the weight, and the mean loss over the optimizer steps if there were any."""
        loss = {f"{self._name}/loss": sum(self._losses) / len(self._losses)} if self._losses else {}
        return {f"{self._name}/weight": self._weight} | loss


def add_all(losses: Sequence[AddedLoss]) -> AddGradient | None:
    """Return a function that adds the gradients of all losses; None if there are none."""

    def add(number: int) -> None:
        for loss in losses:
            loss.add_gradient(number)

    return add if losses else None


# ------------------------ SFT beside RL: every optimizer step of RL adds the weighted loss of a batch of demonstrations
# Batches are a function of the seed and the step, so a resumed run takes the same ones.


class SftMix:
    """The demonstrations that train during RL.

    Args:
        rows: the rows of all demonstrations, at least ``sft.mix.batch_size``.
    """

    def __init__(self, config: TrainConfig, model: CausalLM, rows: Sequence[Row]) -> None:
        self._config, self._model = config, model
        self._batches = SftBatches(rows, config.sft.mix.batch_size, config.seed, "sft mix")

    def at_step(self, step: int) -> AddedLoss:
        """Return the additional loss of a 0-based RL step: a batch for each of its optimizer steps."""
        config = self._config
        weight = config.sft.mix.weight_at(step, config.num_steps)
        first = step * config.loss.num_updates * config.loss.num_epochs
        return AddedLoss(config.loss, self._model, lambda number: self._batches[first + number], weight, "sft")


# ----------------------------------- auxiliary losses: rows that components make from the episodes of the step


def auxiliary_of(
    part: LossComponent,
    options: Any,
    groups: Sequence[TrajectoryGroup],
    config: LossConfig,
    model: CausalLM,
    renderer: ChatRenderer,
    *,
    rollouts_are_sharded: bool = False,
) -> AddedLoss:
    """Return a component's additional loss of a step; each optimizer step uses all of its rows.

    Args:
        rollouts_are_sharded: each rank has the tokens of a part of the groups, and outlines of the others.

    Raises:
        ConfigError: the component raised an error of its own, or returned something else than rows.
    """
    held = [group for group in groups if not isinstance(group, GroupMetadata)]
    episodes = [member for group in held for member in group.valid]
    known = getattr(model.get_input_embeddings(), "num_embeddings", None)
    rows = checked_rows(part, part.invoke({"episodes": episodes, "renderer": renderer}, options), known)
    coef = getattr(options, "coef", 1.0)
    return AddedLoss(config, model, lambda number: rows, coef, part.name, rollouts_are_sharded=rollouts_are_sharded)
