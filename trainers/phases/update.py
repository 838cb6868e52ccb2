"""The optimizer updates of one RL step: from groups with credit to new weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentgym.errors import ConfigError
from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.token_scores import TurnScores
from agentgym.trainers.data.batch import TrainBatch, build_batches, by_size, num_averaged
from agentgym.trainers.data.fit import can_share_prefixes
from agentgym.trainers.data.layout import recomputed
from agentgym.trainers.data.minibatches import OldLogprobs, Rows, plan_minibatches
from agentgym.trainers.data.samples import GroupVerdict, TrainingSample, build_samples
from agentgym.trainers.distributed.ranks import Ranks, Share
from agentgym.trainers.distributed.sharding import ranks_of, reduce_gradients, run_whole
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import FrozenTokens, UpdateFacts, update_facts
from agentgym.trainers.losses.loss import (
    BatchLogprobs,
    LossOutput,
    gated_loss,
    policy_loss,
    token_logprobs,
)
from agentgym.trainers.losses.opob import Trajectories, gradient_energy, proxy_energy, subtract_opob
from agentgym.trainers.losses.regularisers import EntropyHistory, kl
from agentgym.trainers.losses.token_masks import TokenChoice, choose_tokens
from agentgym.trainers.models.compiled import compiled
from agentgym.trainers.models.precision import computing
from agentgym.trainers.models.reference import Reference, scored
from agentgym.trainers.phases.optimizer_step import AddGradient, clip_and_step, step_alone
from agentgym.trainers.reporting.activity import changed_by_corrections
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
    step = _Step(model, config, temperature, reference, history)
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
            if outcome[-1]:
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
    step: _Step, samples: Sequence[TrainingSample], plan: Sequence[Sequence[Rows]], ranks: Ranks
) -> Iterator[Minibatch]:
    """Yield every minibatch of every epoch."""
    if not plan:
        return
    chosen = [[samples[row] for row in rows] for rows in plan[0]]
    made = [batches_for(step.model, rows, step.config) for rows in chosen]
    shares = [ranks.share(len(batches)) for batches in made]
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
            share = ranks.share(len(batches))
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


def batches_for(model: CausalLM, samples: Sequence[TrainingSample], config: LossConfig) -> list[TrainBatch]:
    """Return the micro-batches of an update on the model's device, sorted by size if several ranks share them."""
    batches = build_batches(
        samples,
        aggregation=config.mean,
        unit=config.unit,
        norm_length=config.norm_length,
        tokens_per_microbatch=config.tokens_per_microbatch,
        layout="rows" if config.layout == "prefix" and not _can_share_prefixes(model, config) else config.layout,
        device=next(model.parameters()).device,
    )
    return batches if ranks_of(model).count == 1 else by_size(batches)


def _can_share_prefixes(model: CausalLM, config: LossConfig) -> bool:
    if config.recompute_activations:  # the recomputed layers keep no keys and values
        return False
    # Sharing a prefix takes two forward calls. If another rank makes one, their collectives never match.
    return not isinstance(model, FSDPModule) and can_share_prefixes(model)


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
        self._step = _Step(model, config, temperature, reference, self._history)
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
        share = self._ranks.share(len(batches))
        logprobs = self._step.old_logprobs(batches, share, is_only=True)
        batches = anchored(batches, share, logprobs, [])
        facts, _ = self._step.prepare(batches, [])
        for (index, scale), logprob_old in zip(share, logprobs, strict=True):
            batch, divisor = batches[index], 1 if averaged is None else averaged
            outcome = (batch, *self._step.backward(batch, logprob_old, facts, scale * divisor), scale)
            if scale:
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


class _Step:
    """The models and settings that all micro-batches of a training step share."""

    def __init__(
        self,
        model: CausalLM,
        config: LossConfig,
        temperature: float,
        reference: Reference | None,
        history: EntropyHistory,
    ) -> None:
        self.model, self.config, self.temperature = model, config, temperature
        self.reference, self.history, self.ranks = reference, history, ranks_of(model)
        self.entropy_has_gradient = any(part.kind in ("entropy", "epo") for part in config.regularisers)
        self._measured: list[tuple[Tensor, Tensor]] = []
        """Turn indices and entropies of tokens that EPO's history does not include yet."""

    def old_logprobs(self, batches: Sequence[TrainBatch], share: Share, *, is_only: bool) -> list[Tensor | None]:
        """Return the old log-probabilities per micro-batch of the share; None: the pass with gradient computes them."""
        mine = [batches[index] for index, _ in share]
        if self.config.regulariser("epo"):
            frozen = [self._frozen(self.model, batch) for batch in mine]
            entropies = self.ranks.joined([entropy.cpu() for _, entropy in frozen], len(batches))
            self._measured += [(batch.turn_index.cpu(), of) for batch, of in zip(batches, entropies, strict=True)]
            logprobs: list[Tensor | None] = [logprob for logprob, _ in frozen]
            return logprobs if self.config.mode == "decoupled" else [batch.rollout_logprob for batch in mine]
        if self.config.mode == "bypass":
            return [batch.rollout_logprob for batch in mine]
        if (
            is_only and not self.config.needs_whole_update
        ):  # demonstrations have no other log-probabilities to stand for
            return [None if batch.demonstrated is None else self._frozen(self.model, batch)[0] for batch in mine]
        return [self._frozen(self.model, batch)[0] for batch in mine]

    def before_update(self, output: LossOutput, logprob_old: Tensor | None, *, is_first: bool) -> Tensor | None:
        """Return the log-probabilities under the policy before the step; None if the weights have changed since."""
        if logprob_old is not None and self.config.mode != "bypass":
            return logprob_old
        return output.logprob if is_first else None

    def include_present_step(self) -> None:
        """Add the entropies measured by :meth:`old_logprobs` to EPO's history."""
        if self._measured:
            turn_index, entropy = (torch.cat(parts) for parts in zip(*self._measured, strict=True))
            self.history, self._measured = self.history.after_tokens(turn_index, entropy), []

    def prepare(
        self, batches: Sequence[TrainBatch], frozen: Sequence[FrozenTokens], seed: int = 0
    ) -> tuple[UpdateFacts, Sequence[TokenChoice | None]]:
        """Return the facts about the whole update, and each micro-batch's token masks if there are any."""
        self.include_present_step()
        facts = update_facts(batches, frozen, self.config)
        if not frozen or not self.config.token_masks:
            return facts, []
        gated = [
            gated_loss(
                BatchLogprobs(logprob=tokens.logprob, logprob_old=tokens.logprob_old, entropy=tokens.entropy),
                batch,
                self.config,
                facts,
            )[1]
            for batch, tokens in zip(batches, frozen, strict=True)
        ]
        shares = [facts.share_of(batch) for batch in batches]
        return facts, choose_tokens(batches, frozen, gated, shares, self.config, seed)

    def credited(
        self, samples: Sequence[TrainingSample], batches: list[TrainBatch], frozen: Sequence[FrozenTokens]
    ) -> list[TrainBatch]:
        """Subtract VCPO's baseline from a minibatch's advantages, if it is configured."""
        if not self.config.has_opob:
            return batches
        found = Trajectories.of(samples)
        if self.config.correction("vcpo").baseline == "proxy":
            energy = proxy_energy(self.model, found, batches, self.temperature)
        else:
            energy = self._gradient_energy(samples, found, batches, frozen)
        return subtract_opob(found, batches, frozen, energy)

    def _gradient_energy(
        self,
        samples: Sequence[TrainingSample],
        found: Trajectories,
        batches: Sequence[TrainBatch],
        frozen: Sequence[FrozenTokens],
    ) -> Tensor:
        known = OldLogprobs()
        for batch, tokens in zip(batches, frozen, strict=True):
            known.add(list(range(len(samples))), batch, tokens.logprob_old)
        config = replace(self.config, regularisers=(), token_masks=())
        alone = _Step(self.model, config, self.temperature, None, self.history)

        def make(rows: Rows) -> list[TrainBatch]:
            return batches_for(self.model, [samples[row] for row in rows], config)

        def backward(rows: Rows, batch: TrainBatch) -> None:
            alone.backward(batch, known.of(rows, batch), UpdateFacts())

        return gradient_energy(self.model, found, make, backward)

    def frozen_tokens(
        self, batches: Sequence[TrainBatch], share: Share, old_logprobs: Sequence[Tensor | None]
    ) -> list[FrozenTokens]:
        """Score the tokens of all micro-batches before the update; empty if no component needs the scores.

        This is a separate forward pass. Each rank computes its share and receives the scores of all.
        """
        if not self.config.needs_whole_update:
            return []
        mine = []
        for (index, _), logprob_old in zip(share, old_logprobs, strict=True):
            assert logprob_old is not None
            logprob, entropy = self._frozen(self.model, batches[index])
            mine.append(FrozenTokens(logprob=logprob, logprob_old=logprob_old, entropy=entropy))
        if self.ranks.count == 1 or not batches:
            return mine
        device = batches[0].row.device
        return [tokens.to(device) for tokens in self.ranks.joined([tokens.to("cpu") for tokens in mine], len(batches))]

    def backward(
        self,
        batch: TrainBatch,
        logprob_old: Tensor | None,
        facts: UpdateFacts,
        scale: int = 1,
        choice: TokenChoice | None = None,
    ) -> tuple[Tensor, LossOutput]:
        """Add the gradient of a micro-batch's loss times ``scale``; return its entropies and the loss."""
        with recomputed(self.model) if self.config.recompute_activations else nullcontext():
            entropy, output = self._loss(batch, logprob_old, facts, choice)
            scaled = replace(output, loss=output.loss * scale)
            scaled.loss.backward()  # type: ignore[no-untyped-call]
        return entropy, scaled

    def _loss(
        self, batch: TrainBatch, logprob_old: Tensor | None, facts: UpdateFacts, choice: TokenChoice | None
    ) -> tuple[Tensor, LossOutput]:
        logprob, entropy = self._logprobs(self.model, batch, entropy_has_gradient=self.entropy_has_gradient)
        scores = BatchLogprobs(
            logprob=logprob,
            logprob_old=logprob.detach() if logprob_old is None else logprob_old,
            entropy=entropy,
            logprob_ref=None if self.reference is None else self._of_reference(self.reference, batch),
            choice=choice,
        )
        output = policy_loss(scores, batch, self.config, facts, self.history)
        output.sums.update(changed_by_corrections(scores.logprob_old, batch, self.config, facts))
        output.sums["kl_old"] = kl(logprob.detach(), batch.rollout_logprob).sum().item()
        return entropy.detach(), output

    def _of_reference(self, reference: Reference, batch: TrainBatch) -> Tensor:
        with scored(reference) as model:
            return self._frozen(model, batch)[0]

    def _frozen(self, model: CausalLM, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return self._logprobs(model, batch)

    def _logprobs(
        self, model: CausalLM, batch: TrainBatch, *, entropy_has_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        compiling = compiled(model) if self.config.compile else nullcontext()
        with computing(self.config.precision, batch.target.device), compiling:
            return run_whole(
                model,
                lambda model: token_logprobs(model, batch, self.temperature, entropy_has_gradient=entropy_has_gradient),
            )
