"""The optimizer updates of one RL step: from groups with credit to new weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentgym.errors import ConfigError
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.token_scores import TurnScores
from agentgym.trainers.data.batch import TrainBatch, num_averaged
from agentgym.trainers.data.minibatches import OldLogprobs, Rows, plan_minibatches
from agentgym.trainers.data.samples import GroupVerdict, TrainingSample, build_samples
from agentgym.trainers.distributed.ranks import Ranks, Share
from agentgym.trainers.distributed.sharding import ranks_of, reduce_gradients
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import FrozenTokens
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.models.reference import Reference
from agentgym.trainers.phases.optimizer_step import AddGradient, clip_and_step, step_alone
from agentgym.trainers.phases.update_step import UpdateStep, batches_for
from agentgym.trainers.reporting.token_scores import Place, TokenScores, places_of
from agentgym.trainers.reporting.totals import Outcome, UpdateTotals, kl_to_sampling
from agentgym.trainers.scoring.demonstrated import Taught
from agentgym.trainers.types import CausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The metrics of a step's updates, and the state for the next step."""

    metrics: dict[str, float]
    """Metrics, averaged over the trained tokens."""
    history: EntropyHistory
    """EPO's memory for the next step."""
    scores: tuple[TurnScores, ...] = ()
    """Log-probabilities and entropies of the trained tokens, turn by turn; equal on all ranks."""


def update_policy(  # noqa: PLR0913  (the names at the call are the documentation)
    model: CausalLM,
    optimizer: torch.optim.Optimizer,
    verdicts: Sequence[GroupVerdict],
    config: LossConfig,
    *,
    temperature: float,
    max_grad_norm: float,
    reference: Reference | None = None,
    history: EntropyHistory | None = None,
    seed: int = 0,
    add_gradient: AddGradient | None = None,
    taught: Taught | None = None,
) -> UpdateResult:
    """Train on the kept groups: ``num_epochs`` passes, each split into ``num_updates`` optimizer steps.

    In mode ``decoupled`` all ratios compare with the trainer's policy before the first update. With several updates its
    log-probabilities are computed before; with one update they come from the forward pass of the gradient, because the
    weights are the same. In mode ``bypass`` ratios compare with the policy that sampled.

    With ``max_kl``, training stops before the first update whose minibatch shows a larger KL. With a sharded model, all
    ranks train on the same groups, each on its share of the micro-batches.

    Args:
        seed: seed of the shuffles between epochs and of random token masks; equal on all ranks.
        add_gradient: adds another loss to every optimizer step. If no group was kept, one step is made for it alone.
        taught: log-probabilities under the policy that sees a demonstration, if ``self_distill`` needs them.

    Raises:
        RunStoppedError: the loss is not finite.
    """
    history = EntropyHistory() if history is None else history
    ranks = ranks_of(model)
    kept = [verdict for verdict in verdicts if verdict.dropped is None]
    samples = build_samples(kept, taught)
    step = UpdateStep(model, config, temperature, reference, history)
    totals, scores, places = UpdateTotals(), TokenScores(), places_of(kept)
    minibatches = _minibatches(step, samples, plan_minibatches(kept, samples, config, seed), ranks)
    for number, (rows, made, share, old) in enumerate(minibatches):
        frozen = step.frozen_tokens(made, share, old)
        batches = step.credited(rows, anchored(made, share, old, frozen), frozen)
        facts, choices = step.prepare(batches, frozen, derive_seed(seed, "token masks", number))
        optimizer.zero_grad()
        outcomes: list[Outcome] = []
        for at, ((index, scale), logprob_old) in enumerate(zip(share, old, strict=True), start=1):
            choice = choices[index] if choices else None
            reduce_gradients(model, is_last=at == len(share))
            entropy, output = step.backward(batches[index], logprob_old, facts, scale, choice)
            outcomes.append((batches[index], entropy, output, scale))
        totals.kl_old = kl_to_sampling(outcomes)
        if totals.grad_norms and _is_too_far(ranks.gathered(totals.kl_old) if config.max_kl else [], config.max_kl):
            totals.stopped_by_kl = True
            break
        for outcome, logprob_old in zip(outcomes, old, strict=True):
            if outcome[-1] and ranks.counts_rows:
                totals.add(*outcome)
                batch, entropy, output, _ = outcome
                scores.add(rows, places, batch, entropy, step.before_update(output, logprob_old, is_first=not number))
        if add_gradient is not None:
            add_gradient(number)
        totals.add_step(clip_and_step(model, optimizer, max_grad_norm, facts.lr_scale), facts.lr_scale)
    if not samples and add_gradient is not None:
        totals.add_step(step_alone(model, optimizer, max_grad_norm, add_gradient), 1.0)
    totals = UpdateTotals.of_all(ranks.gathered(totals))
    if not config.regulariser("epo"):  # its history already includes this step
        step.history = history.after(totals.entropy_of_turn())
    return UpdateResult(metrics=totals.means(), history=step.history, scores=_of_ranks(scores, ranks))


def _of_ranks(scores: TokenScores, ranks: Ranks) -> tuple[TurnScores, ...]:
    """Gather the scores of all ranks, in order."""
    found = [one for part in ranks.gathered(scores.collected()) for one in part]
    return tuple(sorted(found, key=lambda one: one.key))


Minibatch = tuple[list[TrainingSample], list[TrainBatch], Share, list[Tensor | None]]
"""Rows, all micro-batches, this rank's share of them, and the old log-probabilities of the share."""


def _minibatches(
    step: UpdateStep, samples: Sequence[TrainingSample], plan: Sequence[Sequence[Rows]], ranks: Ranks
) -> Iterator[Minibatch]:
    """Yield every minibatch of every epoch."""
    if not plan:
        return
    chosen = [[samples[row] for row in rows] for rows in plan[0]]
    made = [batches_for(step.model, rows, step.config) for rows in chosen]
    shares = [step.share_of(batches) for batches in made]
    is_only = len(plan) * len(made) == 1
    old = [step.old_logprobs(batches, share, is_only=is_only) for batches, share in zip(made, shares, strict=True)]
    known = OldLogprobs()
    if len(plan) > 1:
        for rows, batches, share, of_share in zip(plan[0], made, shares, old, strict=True):
            for (index, _), logprob in zip(share, of_share, strict=True):
                assert logprob is not None
                known.add(rows, batches[index], logprob)
        known.share(ranks)
    yield from zip(chosen, made, shares, old, strict=True)
    for epoch in plan[1:]:
        for rows in epoch:
            again = [samples[row] for row in rows]
            batches = batches_for(step.model, again, step.config)
            share = step.share_of(batches)
            yield again, batches, share, [known.of(rows, batches[index]) for index, _ in share]


def anchored(
    batches: Sequence[TrainBatch],
    share: Share,
    old_logprobs: Sequence[Tensor | None],
    frozen: Sequence[FrozenTokens],
) -> list[TrainBatch]:
    """Return the micro-batches with the old policy as sampler of demonstrations (:meth:`TrainBatch.anchored`).

    Args:
        old_logprobs: old log-probabilities of the rank's share.
        frozen: scores of all micro-batches, if a component needs them; else those of other ranks stay as they are.
    """
    known = {index: logprob for (index, _), logprob in zip(share, old_logprobs, strict=True) if logprob is not None}
    known |= {index: tokens.logprob_old for index, tokens in enumerate(frozen)}
    return [batch.anchored(known[at]) if at in known else batch for at, batch in enumerate(batches)]


def _is_too_far(kl_of_ranks: Sequence[tuple[float, int]], max_kl: float | None) -> bool:
    num_tokens = sum(count for _, count in kl_of_ranks)
    return max_kl is not None and num_tokens > 0 and sum(kl for kl, _ in kl_of_ranks) / num_tokens > max_kl


class PartialUpdate:
    """One optimizer step over rows that arrive in parts, all at the weights before the step.

    It requires that no component needs the whole update (``LossConfig.needs_whole_update``) and one update per step.
    The gradient equals that of :func:`update_policy` over all parts at once, up to the order of additions.
    """

    def __init__(
        self,
        model: CausalLM,
        optimizer: torch.optim.Optimizer,
        config: LossConfig,
        *,
        temperature: float,
        max_grad_norm: float,
        reference: Reference | None = None,
        history: EntropyHistory | None = None,
    ) -> None:
        if config.has_several_updates:
            raise ConfigError("PartialUpdate makes one update per step: set loss.num_updates and loss.num_epochs to 1")
        self._history = EntropyHistory() if history is None else history
        self._model, self._optimizer, self._max_grad_norm = model, optimizer, max_grad_norm
        self._ranks = ranks_of(model)
        self._step = UpdateStep(model, config, temperature, reference, self._history)
        self._totals = UpdateTotals()
        self._scores = TokenScores()
        self._divisor = 0
        self._num_batches = 0
        optimizer.zero_grad()

    def add(self, samples: Sequence[TrainingSample], places: Sequence[Place] = ()) -> None:
        """Add a part's gradient; with a sharded model all ranks add the same part, each its share of it.

        Args:
            places: the result of :func:`~agentgym.trainers.reporting.token_scores.places_of`, to store token scores.
        """
        config = self._step.config
        # The weights are normalised over the part, as if it were the whole update.
        batches = batches_for(self._model, samples, config)
        averaged = num_averaged(samples, config.mean, config.unit)
        share = self._step.share_of(batches)
        logprobs = self._step.old_logprobs(batches, share, is_only=True)
        batches = anchored(batches, share, logprobs, [])
        facts, _ = self._step.prepare(batches, [])
        for (index, scale), logprob_old in zip(share, logprobs, strict=True):
            batch, divisor = batches[index], 1 if averaged is None else averaged
            outcome = (batch, *self._step.backward(batch, logprob_old, facts, scale * divisor), scale)
            if scale and self._ranks.counts_rows:
                self._totals.add(*outcome)
                if places:
                    known = self._step.before_update(outcome[2], logprob_old, is_first=True)
                    self._scores.add(samples, places, batch, outcome[1], known)
            far, count = kl_to_sampling([outcome])
            self._totals.kl_old = (self._totals.kl_old[0] + far, self._totals.kl_old[1] + count)
        self._divisor += averaged or 0
        self._num_batches += len(batches)

    def finish(self, add_gradient: AddGradient | None = None) -> UpdateResult:
        """Divide the summed gradient by the update's denominator, and make the step; no step without rows.

        Args:
            add_gradient: adds another loss before the step; then the step is made even without rows.

        Raises:
            RunStoppedError: the gradient is not finite.
        """
        if self._num_batches:
            divisor = self._divisor or 1
            for parameter in self._model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(divisor)
            self._totals.loss /= divisor
        if add_gradient is not None:
            add_gradient(0)
        if self._num_batches or add_gradient is not None:
            self._totals.add_step(clip_and_step(self._model, self._optimizer, self._max_grad_norm, 1.0), 1.0)
        totals = UpdateTotals.of_all(self._ranks.gathered(self._totals))
        history = self._history.after(totals.entropy_of_turn())
        return UpdateResult(metrics=totals.means(), history=history, scores=_of_ranks(self._scores, self._ranks))
