"""The optimizer updates of one RL step: from groups with credit to new weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from agentgym.rollout.seeds import derive_seed
from agentgym.rollout.token_scores import TurnScores
from agentgym.trainers.data.samples import FilteredGroup, Scored, build_samples
from agentgym.trainers.data.spread import RankBatches, RankRows, columns_of_step
from agentgym.trainers.distributed.ranks import Share
from agentgym.trainers.distributed.reference import Reference
from agentgym.trainers.distributed.sharding import ranks_of, reduce_gradients
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs
from agentgym.trainers.losses.regularisers import EntropyHistory
from agentgym.trainers.phases.minibatches import OldLogprobs, Rows, plan_minibatches
from agentgym.trainers.phases.optimizer_step import AddGradient, clip_and_step, step_alone
from agentgym.trainers.phases.update_step import Batches, UpdateStep
from agentgym.trainers.reporting.token_scores import TokenScores, TurnRef, places_of
from agentgym.trainers.reporting.totals import Outcome, UpdateTotals, kl_to_sampling
from agentgym.trainers.types import CausalLM


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateResult:
    """The metrics of a step's updates, and the state for the next step."""

    metrics: dict[str, float]
    """Metrics, averaged over the trained tokens."""
    history: EntropyHistory
    """Mean entropies of the turns of all steps, for the next step."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """The memory of the loss's components for the next step."""
    scores: Sequence[TurnScores] = ()
    """Log-probabilities and entropies of the tokens that this rank trained, turn by turn, in order."""


def update_policy(  # noqa: PLR0913  (the names at the call are the documentation)
    model: CausalLM,
    optimizer: torch.optim.Optimizer,
    verdicts: Sequence[FilteredGroup],
    config: LossConfig,
    *,
    temperature: float,
    max_grad_norm: float,
    reference: Reference | None = None,
    history: EntropyHistory | None = None,
    memory: Mapping[str, Any] | None = None,
    seed: int = 0,
    add_gradient: AddGradient | None = None,
    scored: Scored | None = None,
    role: str = "",
    rollouts_are_sharded: bool = False,
) -> UpdateResult:
    """Train on a role's turns of the kept groups: ``num_epochs`` passes, each of ``num_updates`` optimizer steps.

    In mode ``decoupled`` all ratios compare with the trainer's policy before the first update. With several updates its
    log-probabilities are computed before; with one update they come from the forward pass of the gradient, because the
    weights are the same. In mode ``bypass`` ratios compare with the policy that sampled.

    With ``max_kl``, training stops before the first update whose minibatch shows a larger KL. With a sharded model, all
    ranks train on the same groups, each on its share of the micro-batches.

    Args:
        verdicts: verdicts of all groups of the step. On other ranks than its own a group may be an outline.
        seed: seed of the shuffles between epochs and of random token masks; equal on all ranks.
        add_gradient: adds another loss to every optimizer step. If no group was kept, one step is made for it alone.
        memory: the memory of the loss's components after the step before.
        scored: columns of sampled tokens that models computed.
        role: the trained role, as the segments name it; empty for the policy.
        rollouts_are_sharded: each group's tokens are on one rank alone, the outline elsewhere; equal on all ranks.

    Raises:
        RunStoppedError: the loss is not finite.
    """
    history = EntropyHistory() if history is None else history
    ranks = ranks_of(model)
    kept = [verdict for verdict in verdicts if verdict.dropped is None]
    columns = config.columns()
    recorded = columns_of_step(kept, columns, ranks, rollouts_are_sharded=rollouts_are_sharded)
    own = build_samples(kept, columns, recorded, scored, role)
    rows = RankRows.of(own, ranks, is_spread=rollouts_are_sharded)
    plan = plan_minibatches(kept, rows.outlines, config, seed)
    step = UpdateStep(model, config, temperature, reference, history, memory)
    return update_on_rows(
        step,
        optimizer,
        rows,
        plan,
        max_grad_norm=max_grad_norm,
        seed=seed,
        places=places_of(kept),
        add_gradient=add_gradient,
    )


def update_on_rows(
    step: UpdateStep,
    optimizer: torch.optim.Optimizer,
    rows: RankRows,
    plan: Sequence[Sequence[Rows]],
    *,
    max_grad_norm: float,
    seed: int = 0,
    places: Sequence[TurnRef] = (),
    add_gradient: AddGradient | None = None,
) -> UpdateResult:
    """Train on rows, one optimizer step per minibatch.

    Args:
        plan: for each epoch, the rows of each minibatch, by their index.
        places: the turns of which scores of tokens are collected.

    Raises:
        RunStoppedError: the loss is not finite.
    """
    model, config, ranks = step.model, step.config, step.ranks
    totals, scores = UpdateTotals(), TokenScores()
    for number, (of, old, is_in_first_epoch) in enumerate(_minibatches(step, rows, plan)):
        frozen = step.frozen_tokens(of.batches, of.share, old)
        batches = step.credited(of.rows, with_old_policy_as_sampler(of.batches, of.share, old, frozen), frozen)
        facts, choices = step.prepare(of.plan, batches, frozen, derive_seed(seed, "token masks", number))
        optimizer.zero_grad()
        outcomes: list[Outcome] = []
        for at, ((index, scale), logprob_old) in enumerate(zip(of.share, old, strict=True), start=1):
            choice = choices[index] if choices else None
            reduce_gradients(model, is_last=at == len(of.share))
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
                known = step.before_update(output, logprob_old, is_first=not number)
                if places and is_in_first_epoch:  # later ones train the same tokens again, perhaps on another rank
                    scores.add(of.rows, places, batch, entropy, known)
        if add_gradient is not None:
            add_gradient(number)
        totals.add_step(clip_and_step(model, optimizer, max_grad_norm, facts.lr_scale), facts.lr_scale)
    if not rows.outlines and add_gradient is not None:
        totals.add_step(step_alone(model, optimizer, max_grad_norm, add_gradient), 1.0)
    totals = UpdateTotals.of_all(ranks.gathered(totals))
    if not config.tracks_entropy:  # its history already includes this step
        step.history = step.history.after(totals.entropy_of_turn())
    return UpdateResult(metrics=totals.means(), history=step.history, memory=step.memory, scores=scores.collected())


def _minibatches(
    step: UpdateStep, rows: RankRows, plan: Sequence[Sequence[Rows]]
) -> Iterator[tuple[RankBatches, Sequence[Tensor | None], bool]]:
    """Yield every minibatch of every epoch, the old log-probabilities of its share, and True in the first epoch."""
    if not plan:
        return
    first = [step.make_minibatch(rows, some) for some in plan[0]]
    is_only = len(plan) * len(first) == 1
    old = [step.old_logprobs(of.batches, of.share, is_only=is_only) for of in first]
    known = OldLogprobs()
    for of, logprobs in zip(first, old, strict=True) if len(plan) > 1 else ():
        for (index, _), logprob in zip(of.share, logprobs, strict=True):
            assert logprob is not None
            known.add(of.indices, of.batches[index], logprob)
    for of, logprobs in zip(first, old, strict=True):
        yield of, logprobs, True
    for epoch in plan[1:]:
        for some in epoch:
            of = step.make_minibatch(rows, some)
            held = known.fetched(step.ranks, of.wanted)
            yield of, [held.of(some, of.batches[index]) for index, _ in of.share], False


def with_old_policy_as_sampler(
    batches: Batches,
    share: Share,
    old_logprobs: Sequence[Tensor | None],
    frozen: Sequence[BatchLogprobs],
) -> Batches:
    """Return the micro-batches with the old policy as sampler of demonstrations, where it is known.

    Args:
        old_logprobs: old log-probabilities of the rank's share.
        frozen: scores of all micro-batches, if a component needs them; else those of other ranks stay as they are.
    """
    known = {index: logprob for (index, _), logprob in zip(share, old_logprobs, strict=True) if logprob is not None}
    known |= {index: tokens.logprob_old for index, tokens in enumerate(frozen)}
    return {at: batch.with_old_policy_as_sampler(known[at]) if at in known else batch for at, batch in batches.items()}


def _is_too_far(kl_of_ranks: Sequence[tuple[float, int]], max_kl: float | None) -> bool:
    num_tokens = sum(count for _, count in kl_of_ranks)
    return max_kl is not None and num_tokens > 0 and sum(kl for kl, _ in kl_of_ranks) / num_tokens > max_kl
