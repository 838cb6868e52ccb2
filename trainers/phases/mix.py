"""SFT beside RL: every optimizer step of RL adds the weighted loss of a batch of demonstrations.

The loss of a batch is the mean over its weighted tokens, whatever the micro-batches and the ranks: each micro-batch is
divided by the weights of the whole batch. Batches are a function of the seed and the step, so a resumed run takes the
same ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext

from agentgym.errors import RunStoppedError
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.batch import rows_of_similar_length
from agentgym.trainers.data.layout import recomputed
from agentgym.trainers.distributed.sharding import ranks_of
from agentgym.trainers.models.precision import computing
from agentgym.trainers.phases.sft import SftBatches, sft_sums
from agentgym.trainers.sft.rows import SftRow
from agentgym.trainers.types import CausalLM, Metrics


class SftMix:
    """The demonstrations of a run's RL steps.

    Args:
        rows: of all demonstrations, at least ``sft.mix.batch_size``.
    """

    def __init__(self, config: TrainConfig, model: CausalLM, rows: Sequence[SftRow]) -> None:
        self._config, self._model = config, model
        self._batches = SftBatches(rows, config.sft.mix.batch_size, config.seed, "sft mix")

    def at_step(self, step: int) -> MixedStep:
        """Return what is added to a 0-based step of RL."""
        config = self._config
        weight = config.sft.mix.weight_at(step, config.num_steps)
        first = step * config.loss.num_updates * config.loss.num_epochs
        return MixedStep(config, self._model, self._batches, first, weight)


class MixedStep:
    """The demonstrations of one step of RL: a batch for each of its optimizer steps.

    Args:
        first: position of the batch of the first optimizer step.
    """

    def __init__(self, config: TrainConfig, model: CausalLM, batches: SftBatches, first: int, weight: float) -> None:
        self._config, self._model, self._batches = config.loss, model, batches
        self._first, self._weight = first, weight
        self._losses: list[float] = []

    def add_gradient(self, number: int) -> None:
        """Add the gradient of the weighted loss to the optimizer step of that number.

        Raises:
            RunStoppedError: the loss is not finite.
        """
        rows = self._batches[self._first + number]
        divisor = float(sum(row.weights[1:].sum(dtype="float64") for row in rows))
        ranks, config = ranks_of(self._model), self._config
        parts = rows_of_similar_length(rows, config.tokens_per_microbatch)
        loss = 0.0
        for index, scale in ranks.share(len(parts)):
            with recomputed(self._model) if config.recompute_activations else nullcontext():
                with computing(config.precision, next(self._model.parameters()).device):
                    mean = sft_sums(self._model, parts[index]).loss / divisor
                (mean * (self._weight * scale)).backward()  # type: ignore[no-untyped-call]
            loss += mean.item() if scale else 0.0
        total = sum(ranks.gathered(loss))
        if not math.isfinite(total):
            raise RunStoppedError(f"the SFT loss beside RL is {total}; lower sft.mix.weight or optimizer.lr")
        self._losses.append(total)

    def metrics(self) -> Metrics:
        """Return the weight and the mean loss over the optimizer steps; no loss if none was made."""
        loss = {"sft/loss": sum(self._losses) / len(self._losses)} if self._losses else {}
        return {"sft/weight": self._weight} | loss
