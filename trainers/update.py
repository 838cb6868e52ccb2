"""One training step's optimizer updates: from judged groups to new weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentgym.errors import RunStoppedError
from agentgym.trainers.batch import TrainBatch, build_batches, num_averaged
from agentgym.trainers.layout import can_share_prefixes, recomputed
from agentgym.trainers.loss import (
    MAXIMA,
    SUMMED,
    BatchLogprobs,
    LossOutput,
    policy_loss,
    token_logprobs,
)
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import FrozenTokens, UpdateFacts, update_facts
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.ranks import Ranks
from agentgym.trainers.samples import GroupVerdict, build_samples
from agentgym.trainers.sharding import ranks_of, run_whole, whole
from agentgym.types import TrainingSample


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """What a step's updates leave."""

    metrics: dict[str, float]
    """Means over the trained tokens."""
    history: EntropyHistory
    """EPO's memory, to be handed to the next step."""


def update_policy(
    model: Any,
    optimizer: torch.optim.Optimizer,
    verdicts: Sequence[GroupVerdict],
    config: LossConfig,
    *,
    temperature: float,
    max_grad_norm: float,
    reference: Any = None,
    history: EntropyHistory | None = None,
) -> UpdateResult:
    """Train on the groups that were kept, in ``num_updates`` optimizer steps.

    With one update, the policy before it is the one whose gradient is taken, so its log-probabilities come from the
    same forward pass; with several they are computed before the first.
    Of a model that is cut up over ranks, all train on the same groups, each on its share of the micro-batches.

    Raises:
        RunStoppedError: the loss is not finite.
    """
    history = EntropyHistory() if history is None else history
    ranks = ranks_of(model)
    kept = [verdict for verdict in verdicts if verdict.dropped is None]
    updates = [
        batches_for(model, build_samples(kept[first :: config.num_updates]), config)
        for first in range(min(config.num_updates, len(kept)))
    ]
    step = _Step(model, config, temperature, reference, history)
    shares = [_share(batches, ranks) for batches in updates]
    old = [step.old_logprobs([batch for batch, _ in share], is_only=len(updates) == 1) for share in shares]
    totals = _Totals()
    for batches, share, old_logprobs in zip(updates, shares, old, strict=True):
        facts = step.facts(batches, old_logprobs)
        optimizer.zero_grad()
        for (batch, scale), logprob_old in zip(share, old_logprobs, strict=True):
            entropy, output = step.backward(batch, logprob_old, facts, scale)
            if scale:
                totals.add(batch, entropy, output, scale)
        totals.add_step(_clip_and_step(model, optimizer, max_grad_norm, facts.lr_scale), facts.lr_scale)
    totals = _Totals.of_all(ranks.gathered(totals))
    if not config.regulariser("epo"):  # whose history holds this step already
        step.history = history.after(totals.entropy_of_turn())
    return UpdateResult(metrics=totals.means(), history=step.history)


def _share(batches: list[TrainBatch], ranks: Ranks) -> list[tuple[TrainBatch, int]]:
    """A rank's micro-batches, each with what its loss is multiplied by.

    FSDP takes the mean of the ranks' gradients, and the sum is wanted. All ranks must go through the model equally
    often, so one with fewer micro-batches takes the first once more, times 0.
    """
    mine = [(batch, ranks.count) for batch in ranks.share_of(batches)]
    return mine + [(batches[0], 0)] * (ranks.num_each(len(batches)) - len(mine))


def batches_for(model: Any, samples: Sequence[TrainingSample], config: LossConfig) -> list[TrainBatch]:
    """The micro-batches of an update of a model, where its parameters are."""
    return build_batches(
        samples,
        aggregation=config.mean,
        unit=config.unit,
        norm_length=config.norm_length,
        tokens_per_microbatch=config.tokens_per_microbatch,
        layout="rows" if config.layout == "prefix" and not _can_share_prefixes(model, config) else config.layout,
        device=next(model.parameters()).device,
    )


def _can_share_prefixes(model: Any, config: LossConfig) -> bool:
    if config.recompute_activations:  # which keeps no keys and values
        return False
    # two calls where another rank makes one would have the ranks wait for each other for ever
    return can_share_prefixes(model) and not isinstance(model, FSDPModule)


class PartialUpdate:
    """One optimizer step over rows that come in parts, all at the weights before it.

    For settings that need nothing of the whole update (``LossConfig.needs_whole_update``) and take one update per step.
    The gradient is that of :func:`update_policy` over all parts at once, up to the order of additions.
    """

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer,
        config: LossConfig,
        *,
        temperature: float,
        max_grad_norm: float,
        reference: Any = None,
        history: EntropyHistory | None = None,
    ) -> None:
        self._history = EntropyHistory() if history is None else history
        self._model, self._optimizer, self._max_grad_norm = model, optimizer, max_grad_norm
        self._step = _Step(model, config, temperature, reference, self._history)
        self._totals = _Totals()
        self._divisor = 0
        self._num_batches = 0
        optimizer.zero_grad()

    def add(self, samples: Sequence[TrainingSample]) -> None:
        """Add a part's gradient."""
        config = self._step.config
        batches = batches_for(self._model, samples, config)  # weighed as if the part were the whole update
        averaged = num_averaged(samples, config.mean, config.unit)
        logprobs = self._step.old_logprobs(batches, is_only=True)
        facts = self._step.facts(batches, logprobs)
        for batch, logprob_old in zip(batches, logprobs, strict=True):
            scale = 1 if averaged is None else averaged
            self._totals.add(batch, *self._step.backward(batch, logprob_old, facts, scale), 1)
        self._divisor += averaged or 0
        self._num_batches += len(batches)

    def finish(self) -> UpdateResult:
        """Divide the summed gradient by what the whole averages over, and make the step; none if there were no rows.

        Raises:
            RunStoppedError: the gradient is not finite.
        """
        if self._num_batches:
            divisor = self._divisor or 1
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(divisor)
            self._totals.loss /= divisor
            self._totals.add_step(_clip_and_step(self._model, self._optimizer, self._max_grad_norm, 1.0), 1.0)
        return UpdateResult(metrics=self._totals.means(), history=self._history.after(self._totals.entropy_of_turn()))


def _clip_and_step(model: Any, optimizer: torch.optim.Optimizer, max_grad_norm: float, lr_scale: float) -> float:
    """Step on the gradients that are there; gives their norm before clipping."""
    norm: float = whole(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)).item()
    if not math.isfinite(norm):
        raise RunStoppedError(f"the gradient's norm is {norm}; lower optimizer.lr or look at the latest rollouts")
    _step_scaled(optimizer, lr_scale)
    return norm


class _Step:
    """The models and settings that all micro-batches of a training step share."""

    def __init__(
        self, model: Any, config: LossConfig, temperature: float, reference: Any, history: EntropyHistory
    ) -> None:
        self.model, self.config, self.temperature = model, config, temperature
        self.reference, self.history = reference, history
        self.entropy_has_gradient = any(part.kind in ("entropy", "epo") for part in config.regularisers)
        self._measured: list[tuple[Tensor, Tensor]] = []
        """Turn indices and entropies of tokens that EPO's history lacks."""

    def old_logprobs(self, batches: Sequence[TrainBatch], *, is_only: bool) -> list[Tensor | None]:
        """Per micro-batch what the ratio compares with; None where the pass with the gradient will say."""
        if self.config.regulariser("epo"):
            frozen = [self._frozen(self.model, batch) for batch in batches]
            self._measured += [(batch.turn_index, entropy) for batch, (_, entropy) in zip(batches, frozen, strict=True)]
            logprobs: list[Tensor | None] = [logprob for logprob, _ in frozen]
            return logprobs if self.config.mode == "decoupled" else [batch.rollout_logprob for batch in batches]
        if self.config.mode == "bypass":
            return [batch.rollout_logprob for batch in batches]
        if is_only and not self.config.needs_whole_update:
            return [None] * len(batches)
        return [self._frozen(self.model, batch)[0] for batch in batches]

    def include_present_step(self) -> None:
        """Add the entropies that :meth:`old_logprobs` measured to EPO's history."""
        if self._measured:
            turn_index, entropy = (torch.cat(parts) for parts in zip(*self._measured, strict=True))
            self.history, self._measured = self.history.after_tokens(turn_index, entropy), []

    def facts(self, batches: Sequence[TrainBatch], old_logprobs: Sequence[Tensor | None]) -> UpdateFacts:
        """What has to be known about the whole update, in a pass of its own where it is needed."""
        self.include_present_step()
        if not self.config.needs_whole_update:
            return update_facts(batches, (), self.config)
        frozen = []
        for batch, logprob_old in zip(batches, old_logprobs, strict=True):
            assert logprob_old is not None
            logprob, entropy = self._frozen(self.model, batch)
            frozen.append(FrozenTokens(logprob=logprob, logprob_old=logprob_old, entropy=entropy))
        return update_facts(batches, frozen, self.config)

    def backward(
        self, batch: TrainBatch, logprob_old: Tensor | None, facts: UpdateFacts, scale: int = 1
    ) -> tuple[Tensor, LossOutput]:
        """Add the gradient of a micro-batch's loss times ``scale``; gives its entropies and that loss."""
        with recomputed(self.model) if self.config.recompute_activations else nullcontext():
            entropy, output = self._loss(batch, logprob_old, facts)
            scaled = replace(output, loss=output.loss * scale)
            scaled.loss.backward()  # type: ignore[no-untyped-call]
        return entropy, scaled

    def _loss(self, batch: TrainBatch, logprob_old: Tensor | None, facts: UpdateFacts) -> tuple[Tensor, LossOutput]:
        logprob, entropy = self._logprobs(self.model, batch, entropy_has_gradient=self.entropy_has_gradient)
        scores = BatchLogprobs(
            logprob=logprob,
            logprob_old=logprob.detach() if logprob_old is None else logprob_old,
            entropy=entropy,
            logprob_ref=None if self.reference is None else self._frozen(self.reference, batch)[0],
        )
        return entropy.detach(), policy_loss(scores, batch, self.config, facts, self.history)

    def _frozen(self, model: Any, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return self._logprobs(model, batch)

    def _logprobs(self, model: Any, batch: TrainBatch, *, entropy_has_gradient: bool = False) -> tuple[Tensor, Tensor]:
        with torch.autocast(batch.target.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16"):
            return run_whole(
                model,
                lambda model: token_logprobs(model, batch, self.temperature, entropy_has_gradient=entropy_has_gradient),
            )


def _step_scaled(optimizer: torch.optim.Optimizer, scale: float) -> None:
    """An optimizer step with every learning rate scaled, for this step alone."""
    rates = [group["lr"] for group in optimizer.param_groups]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * scale
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


class _Totals:
    """Sums over an update's micro-batches; a step that trained no token has them all at 0."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.num_tokens = 0
        self.sums = dict.fromkeys(SUMMED, 0.0)
        self.maxima = dict.fromkeys(MAXIMA, 0.0)
        self.grad_norms: list[float] = []
        self.lr_scales: list[float] = []
        self.turn_entropy: dict[int, tuple[float, int]] = {}

    @classmethod
    def of_all(cls, parts: Sequence[_Totals]) -> _Totals:
        """The sums over the ranks' shares."""
        whole = parts[0]
        for part in parts[1:]:
            whole.loss += part.loss
            whole.num_tokens += part.num_tokens
            whole.sums = {name: whole.sums.get(name, 0.0) + part.sums.get(name, 0.0) for name in whole.sums | part.sums}
            whole.maxima = {name: max(value, part.maxima[name]) for name, value in whole.maxima.items()}
            for turn, (total, count) in part.turn_entropy.items():
                before, seen = whole.turn_entropy.get(turn, (0.0, 0))
                whole.turn_entropy[turn] = (before + total, seen + count)
        return whole

    def add(self, batch: TrainBatch, entropy: Tensor, output: LossOutput, scale: int) -> None:
        """Add a micro-batch whose loss was multiplied by ``scale``."""
        self.loss += output.loss.item() / scale
        self.num_tokens += batch.num_tokens
        for name, value in output.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in output.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), value)
        counts = torch.bincount(batch.turn_index).tolist()
        sums = torch.bincount(batch.turn_index, weights=entropy.double()).tolist()
        for turn, (total, count) in enumerate(zip(sums, counts, strict=True)):
            if count:
                before, seen = self.turn_entropy.get(turn, (0.0, 0))
                self.turn_entropy[turn] = (before + total, seen + count)

    def add_step(self, grad_norm: float, lr_scale: float) -> None:
        self.grad_norms.append(grad_norm)
        self.lr_scales.append(lr_scale)

    def entropy_of_turn(self) -> dict[int, float]:
        return {turn: total / count for turn, (total, count) in self.turn_entropy.items()}

    def means(self) -> dict[str, float]:
        num_updates = max(1, len(self.grad_norms))
        return {
            "loss": self.loss / num_updates,
            "grad_norm": sum(self.grad_norms) / num_updates,
            "trained_tokens": float(self.num_tokens),
            **{name: value / max(1, self.num_tokens) for name, value in self.sums.items()},
            **self.maxima,
            **({"lr_scale": sum(self.lr_scales) / num_updates} if min(self.lr_scales, default=1.0) < 1 else {}),
        }
