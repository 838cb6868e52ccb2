"""SFT beside RL: every optimizer step of RL adds the weighted loss of a batch of demonstrations.

Batches are a function of the seed and the step, so a resumed run takes the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.phases.added_loss import AddedLoss
from agentgym.trainers.phases.sft import SftBatches
from agentgym.trainers.sft.rows import SftRow
from agentgym.trainers.types import CausalLM


class SftMix:
    """The demonstrations of a run's RL steps.

    Args:
        rows: of all demonstrations, at least ``sft.mix.batch_size``.
    """

    def __init__(self, config: TrainConfig, model: CausalLM, rows: Sequence[SftRow]) -> None:
        self._config, self._model = config, model
        self._batches = SftBatches(rows, config.sft.mix.batch_size, config.seed, "sft mix")

    def at_step(self, step: int) -> AddedLoss:
        """Return what is added to a 0-based step of RL: a batch for each of its optimizer steps."""
        config = self._config
        weight = config.sft.mix.weight_at(step, config.num_steps)
        first = step * config.loss.num_updates * config.loss.num_epochs
        return AddedLoss(config.loss, self._model, lambda number: self._batches[first + number], weight, "sft")
