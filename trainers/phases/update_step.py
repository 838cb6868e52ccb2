"""The micro-batches of an update, and the models and settings that compute their losses and gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from agentgym.plugins import imported
from agentgym.trainers.data.batch import Batch, make_batch
from agentgym.trainers.data.columns import read_by_columns
from agentgym.trainers.data.fit import can_share_prefixes, tokens_of_a_call
from agentgym.trainers.data.layout import recomputed
from agentgym.trainers.data.plan import BatchPlan, RowOutline, plan_batches
from agentgym.trainers.data.row import Row
from agentgym.trainers.data.spread import RankBatches, RankRows
from agentgym.trainers.distributed.ranks import Ranks, Share
from agentgym.trainers.distributed.reference import Reference, scored
from agentgym.trainers.distributed.sharding import ranks_of, run_whole
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import BatchLogprobs, UpdateStatistics, update_facts
from agentgym.trainers.losses.loss import LossOutput, gated_loss, policy_loss, token_logprobs, vocabulary_terms
from agentgym.trainers.losses.regularisers import EntropyHistory, entropy_sums, kl
from agentgym.trainers.losses.token_masks import TokenChoice, choose_tokens
from agentgym.trainers.models.compiled import compiled
from agentgym.trainers.models.context import splitting
from agentgym.trainers.models.head_logprobs import VocabularyTerm
from agentgym.trainers.models.precision import computing
from agentgym.trainers.reporting.activity import changed_by_corrections
from agentgym.trainers.types import CausalLM

Batches = Mapping[int, Batch]
"""Micro-batches by their number in the plan, ascending: those that this rank needs."""


def plan_for(model: CausalLM, rows: Sequence[RowOutline], config: LossConfig) -> BatchPlan:
    """Plan the micro-batches of an update; all ranks make the same plan."""
    return plan_batches(
        rows,
        aggregation=config.mean,
        unit=config.unit,
        norm_length=config.norm_length,
        tokens_per_microbatch=config.microbatch_tokens,
        layout="rows" if config.layout == "prefix" and not _can_share_prefixes(model, config) else config.layout,
        num_lanes=num_lanes(ranks_of(model)),
        min_shared_tokens=tokens_of_a_call(model, device_of(model)) if config.layout == "prefix" else 0,
    )


def num_lanes(ranks: Ranks) -> int:
    """Return the number of ranks that compute different micro-batches."""
    return ranks.count if ranks.context is None else ranks.count // ranks.context.size


def batches_for(model: CausalLM, samples: Sequence[Row], config: LossConfig) -> list[Batch]:
    """Return all micro-batches of an update on the model's device."""
    plan, device = plan_for(model, [RowOutline.of(sample) for sample in samples], config), device_of(model)
    return [make_batch(plan, index, dict(enumerate(samples)), device) for index in range(len(plan.batches))]


def device_of(model: CausalLM) -> torch.device:
    """Return the device of the model's weights."""
    return next(model.parameters()).device


def _can_share_prefixes(model: CausalLM, config: LossConfig) -> bool:
    if config.recompute_activations:  # the recomputed layers keep no keys and values
        return False
    # Sharing a prefix takes two forward calls. If another rank makes one, their collectives never match.
    return not isinstance(model, FSDPModule) and can_share_prefixes(model)


class UpdateStep:
    """The models and settings that all micro-batches of a training step share."""

    def __init__(
        self,
        model: CausalLM,
        config: LossConfig,
        temperature: float,
        reference: Reference | None,
        history: EntropyHistory,
        memory: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.config, self.temperature = model, config, temperature
        self.reference, self.history, self.ranks = reference, history, ranks_of(model)
        self.memory: Mapping[str, Any] = memory or {}
        """The memory of the loss's components, by family and name."""
        self.width = 1 if self.ranks.context is None else self.ranks.context.size
        self.needs_all = config.needs_whole_update
        self.entropy_has_gradient = "entropy" in read_by_columns(config.columns()) or any(
            part.reads("entropy") for part, _ in config.parts() if part.family in ("loss", "regulariser")
        )
        self.compares_before = config.reads_before("logprob_ref")
        self._measured: list[tuple[Tensor, Tensor]] = []
        """Turn indices and entropies of this rank's tokens that the history does not include yet."""

    def make_minibatch(self, rows: RankRows, indices: Sequence[int]) -> RankBatches:
        """Plan the micro-batches of some rows, and make those of this rank: all if a component sees the whole update.

        Ranks that split rows have the same share. All ranks must call this.
        """
        return RankBatches.of(
            rows,
            plan_for(self.model, [rows.outlines[index] for index in indices], self.config),
            self.ranks,
            device_of(self.model),
            indices=indices,
            width=self.width,
            needs_all=self.needs_all,
        )

    def old_logprobs(self, batches: Batches, share: Share, *, is_only: bool) -> list[Tensor | None]:
        """Return the old log-probabilities per micro-batch of the share; None: the pass with gradient computes them.

        The history of entropies measures the tokens of the share.
        """
        mine = [batches[index] for index, _ in share]
        if self.config.tracks_entropy:
            frozen = [self._frozen(self.model, batch) for batch in mine]
            self._measured += [
                (batches[index]["turn_index"].cpu(), entropy.cpu())  # sums of bincount on a GPU are not reproducible
                for (index, scale), (_, entropy) in zip(share, frozen, strict=True)
                if scale and self.ranks.counts_rows
            ]
            logprobs: list[Tensor | None] = [logprob for logprob, _ in frozen]
            return logprobs if self.config.mode == "decoupled" else [batch["logprob_rollout"] for batch in mine]
        if self.config.mode == "bypass":
            return [batch["logprob_rollout"] for batch in mine]
        if (
            is_only and not self.config.needs_whole_update
        ):  # demonstrations have no other log-probabilities to stand for
            return [
                None if "demonstrated" not in batch.columns else self._frozen(self.model, batch)[0] for batch in mine
            ]
        return [self._frozen(self.model, batch)[0] for batch in mine]

    def before_update(self, output: LossOutput, logprob_old: Tensor | None, *, is_first: bool) -> Tensor | None:
        """Return the log-probabilities under the policy before the step; None if the weights have changed since."""
        if logprob_old is not None and self.config.mode != "bypass":
            return logprob_old
        return output.logprob if is_first else None

    def include_present_step(self) -> None:
        """Add the entropies that all ranks measured in :meth:`old_logprobs` to the history."""
        if not self.config.tracks_entropy:
            return
        mine = [torch.cat(parts) for parts in zip(*self._measured, strict=True)]
        found = self.ranks.gathered(entropy_sums(*mine) if mine else {})
        self.history, self._measured = self.history.after_tokens(found), []

    def prepare(
        self, plan: BatchPlan, made: Batches, frozen: Sequence[BatchLogprobs], seed: int = 0
    ) -> tuple[UpdateStatistics, Sequence[TokenChoice | None]]:
        """Return the facts about the whole update, and each micro-batch's token masks if there are any."""
        self.include_present_step()
        batches = list(made.values())
        facts = replace(  # totals are the plan's, since this rank may have a part of the micro-batches
            update_facts(batches, frozen, self.config, self.memory),
            num_tokens=max(1, plan.num_trained),
            last_turn=plan.last_turn,
        )
        self.memory = facts.memory
        if not frozen or not self.config.token_masks:
            return facts, []
        gated = [
            gated_loss(tokens, batch, self.config, facts)[1] for batch, tokens in zip(batches, frozen, strict=True)
        ]
        shares = [facts.share_of(batch) for batch in batches]
        return facts, choose_tokens(batches, frozen, gated, shares, self.config, seed)

    def credited(self, held: Mapping[int, Row], made: Batches, frozen: Sequence[BatchLogprobs]) -> Batches:
        """Return a minibatch with the advantages of the part of the loss that changes them, if there is one."""
        for part, options in self.config.parts():
            if part.name == self.config.recrediting:
                samples = [held[row] for row in range(len(held))]
                return dict(enumerate(imported(part.recredit)(self, samples, list(made.values()), frozen, options)))
        return made

    def make_batches(self, samples: Sequence[Row]) -> list[Batch]:
        """Return the micro-batches of some rows."""
        return batches_for(self.model, samples, self.config)

    def add_gradient(self, batch: Batch, logprob_old: Tensor) -> None:
        """Add the gradient of a micro-batch's policy loss alone, without token masks and regularisers."""
        config = replace(self.config, regularisers=(), token_masks=())
        alone = UpdateStep(self.model, config, self.temperature, None, self.history)
        alone.backward(batch, logprob_old, UpdateStatistics())

    def frozen_tokens(
        self, batches: Batches, share: Share, old_logprobs: Sequence[Tensor | None]
    ) -> list[BatchLogprobs]:
        """Score the tokens of all micro-batches before the update; empty if no component needs the scores.

        This is a separate forward pass. Each rank computes its share and receives the scores of all.
        """
        if not self.config.needs_whole_update:
            return []
        mine = []
        for (index, _), logprob_old in zip(share, old_logprobs, strict=True):
            assert logprob_old is not None
            with torch.no_grad():
                logprob, entropy, terms = self._with_terms(batches[index])
            of_reference = self._of_reference(batches[index]) if self.compares_before else None
            mine.append(
                BatchLogprobs(
                    logprob=logprob, logprob_old=logprob_old, entropy=entropy, logprob_ref=of_reference, terms=terms
                )
            )
        if self.ranks.count == 1 or not batches:
            return mine
        device = batches[0].row.device
        found = self.ranks.joined([tokens.to("cpu") for tokens in mine], len(batches), width=self.width)
        return [tokens.to(device) for tokens in found]

    def backward(
        self,
        batch: Batch,
        logprob_old: Tensor | None,
        facts: UpdateStatistics,
        scale: int = 1,
        choice: TokenChoice | None = None,
    ) -> tuple[Tensor, LossOutput]:
        """Add the gradient of a micro-batch's loss times ``scale``; return its entropies and the loss."""
        recomputing = recomputed(self.model) if self.config.recompute_activations else nullcontext()
        with recomputing, splitting(self.model, self.ranks.context):
            entropy, output = self._loss(batch, logprob_old, facts, choice)
            scaled = replace(output, loss=output.loss * scale)
            scaled.loss.backward()  # type: ignore[no-untyped-call]
        return entropy, scaled

    def _loss(
        self, batch: Batch, logprob_old: Tensor | None, facts: UpdateStatistics, choice: TokenChoice | None
    ) -> tuple[Tensor, LossOutput]:
        logprob, entropy, terms = self._with_terms(batch)
        scores = BatchLogprobs(
            logprob=logprob,
            logprob_old=logprob.detach() if logprob_old is None else logprob_old,
            entropy=entropy,
            logprob_ref=self._of_reference(batch),
            choice=choice,
            terms=terms,
        )
        output = policy_loss(scores, batch, self.config, facts, self.history)
        output.sums.update(changed_by_corrections(scores.logprob_old, batch, self.config, facts))
        output.sums["kl_old"] = kl(logprob.detach(), batch["logprob_rollout"]).sum().item()
        return entropy.detach(), output

    def _of_reference(self, batch: Batch) -> Tensor | None:
        if self.reference is None:
            return None
        with scored(self.reference) as model:
            return self._frozen(model, batch)[0]

    def _with_terms(self, batch: Batch) -> tuple[Tensor, Tensor, Mapping[tuple[str, str], Tensor]]:
        """Return log-probabilities, entropies, and what the components read of the whole vocabulary."""
        vocabulary = vocabulary_terms(batch, self.config)
        logprob, entropy, *terms = self._logprobs(
            self.model, batch, entropy_has_gradient=self.entropy_has_gradient, terms=tuple(vocabulary.values())
        )
        return logprob, entropy, dict(zip(vocabulary, terms, strict=True))

    def _frozen(self, model: CausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            logprob, entropy = self._logprobs(model, batch)
        return logprob, entropy

    def _logprobs(
        self,
        model: CausalLM,
        batch: Batch,
        *,
        entropy_has_gradient: bool = False,
        terms: Sequence[VocabularyTerm] = (),
    ) -> tuple[Tensor, ...]:
        compiling = compiled(model) if self.config.compile else nullcontext()
        precise = computing(self.config.precision, batch.target.device)
        with precise, compiling, splitting(model, self.ranks.context):
            return run_whole(
                model,
                lambda model: token_logprobs(
                    model, batch, self.temperature, entropy_has_gradient=entropy_has_gradient, terms=terms
                ),
            )
