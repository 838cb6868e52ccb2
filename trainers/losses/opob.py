"""VCPO's minimum-variance baseline (OPOB): a mean of each group's returns, weighted by squared gradient norms.

The policy gradient with off-policy weights ``w_i`` is ``sum_i w_i (R_i - b) / sigma_R grad_i``. Its variance is minimal
for ``b = sum W_i R_i / sum W_i`` with ``W_i = |g_i|^2 w_i^2`` over the group. ``g_i`` is the gradient of a trajectory's
loss at an advantage of 1, summed over its tokens.

Source: "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs" (``staleness_utils.py``,
``megatron_actor.py``). The released code accumulates gradients in a second buffer. Ours first computes the norms and
then the gradient with the new advantages. That needs no buffer, and is equal if no clip acts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.data.row import Row
from agentgym.trainers.distributed.sharding import own_part, parameters_of, ranks_of, run_whole
from agentgym.trainers.kinds import max_logits
from agentgym.trainers.losses.facts import BatchLogprobs
from agentgym.trainers.losses.options import VcpoOptions
from agentgym.trainers.losses.ratios import clamped
from agentgym.trainers.models.head import head_of, trunk_of
from agentgym.trainers.models.head_logprobs import vocabulary_of
from agentgym.trainers.types import CausalLM

EPS = 1e-8


class Recrediting(Protocol):
    """The step whose minibatch gets new advantages."""

    model: CausalLM
    temperature: float

    def make_batches(self, samples: Sequence[Row]) -> list[Batch]:
        """Return the micro-batches of some rows."""
        ...

    def add_gradient(self, batch: Batch, logprob_old: Tensor) -> None:
        """Add the gradient of a micro-batch's policy loss alone."""
        ...


def recredit(
    step: Recrediting,
    samples: Sequence[Row],
    batches: Sequence[Batch],
    frozen: Sequence[BatchLogprobs],
    options: VcpoOptions,
) -> list[Batch]:
    """Return the micro-batches of a minibatch with each group's baseline subtracted from the advantages.

    Args:
        step: the models and settings of the step.
        samples: the rows of the minibatch.
        batches: its micro-batches.
        frozen: scores of the policy that is about to be trained.
        options: the settings of the correction.
    """
    found = TrajectoryIndex.of(samples)
    if options.baseline == "proxy":
        return subtract_opob(found, batches, frozen, proxy_energy(step.model, found, batches, step.temperature))
    old = {
        row: part
        for batch, tokens in zip(batches, frozen, strict=True)
        for row, part in zip(batch.rows, batch.split(tokens.logprob_old), strict=True)
    }

    def backward(rows: list[int], batch: Batch) -> None:
        step.add_gradient(batch, torch.cat([old[rows[index]] for index in batch.rows]))

    energy = gradient_energy(
        step.model, found, lambda rows: step.make_batches([samples[row] for row in rows]), backward
    )
    return subtract_opob(found, batches, frozen, energy)


def opob_baselines(returns: Tensor, log_weight: Tensor, energy: Tensor, group: Tensor) -> Tensor:
    """Return the baseline of each trajectory's group, ``[n]``.

    Args:
        returns: ``[n]`` returns; if they are scaled, the baseline is too.
        log_weight: ``[n]`` log importance weight of each trajectory, not truncated.
        energy: ``[n]`` squared norm of each trajectory's gradient, or a proxy.
        group: ``[n]`` group of each trajectory, counted from 0.

    Example:
        >>> norm, weight = torch.tensor([1.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 1.0, 5.0])
        >>> returns, group = torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.zeros(4, dtype=torch.long)
        >>> round(opob_baselines(returns, weight.log(), norm.square(), group)[0].item(), 6)
        0.064516
    """
    weight = energy * (2 * log_weight).exp()
    zeros = torch.zeros(int(group.max()) + 1 if len(group) else 0, dtype=weight.dtype, device=weight.device)
    total = zeros.index_add(0, group, weight)
    weighted = zeros.index_add(0, group, weight * returns)
    return (weighted / (total + EPS))[group]


@dataclass(frozen=True, slots=True)
class TrajectoryIndex:
    """The trajectories of a minibatch that have trained tokens."""

    numbers: list[int]
    """Numbers of the trajectories, as in samples."""
    rows: list[list[int]]
    """Indices of each trajectory's samples in the minibatch."""
    group: list[int]
    """Ordinal of each trajectory's group."""

    @classmethod
    def of(cls, samples: Sequence[Row]) -> TrajectoryIndex:
        """Find the trajectories of a minibatch's samples."""
        rows: dict[int, list[int]] = {}
        for index, sample in enumerate(samples):
            if len(sample.in_batch):
                rows.setdefault(sample.trajectory, []).append(index)
        return cls(list(rows), list(rows.values()), [samples[some[0]].ordinal for some in rows.values()])

    def of_tokens(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Return the index of each token's trajectory, one tensor ``[N]`` per micro-batch."""
        place = {number: index for index, number in enumerate(self.numbers)}
        return [
            torch.tensor([place.get(number, -1) for number in batch["trajectory"].tolist()], device=batch.row.device)
            for batch in batches
        ]


def gradient_energy(
    model: CausalLM,
    found: TrajectoryIndex,
    make_batches: Callable[[list[int]], Sequence[Batch]],
    backward: Callable[[list[int], Batch], None],
) -> Tensor:
    """Return the squared norm of each trajectory's gradient at an advantage of 1, ``[n]``.

    This needs a forward and a backward pass for each trajectory, in addition to those of the update. Short episodes
    cannot share micro-batches, so it takes several times as long as the update. It clears the gradients.

    With a sharded model every rank processes every trajectory, because FSDP reduces gradients over ranks. Each rank
    then squares its own shards, and the sums are added.

    Args:
        model: the policy.
        found: the trajectories of the minibatch.
        make_batches: returns the micro-batches of some rows of the minibatch.
        backward: adds the gradient of the policy loss of a micro-batch of those rows.
    """
    trained = [parameter for parameter in parameters_of(model) if parameter.requires_grad]
    energies = []
    for rows in found.rows:
        model.zero_grad()
        for batch in make_batches(rows):
            ones = torch.ones_like(batch["advantage"])
            backward(rows, batch.with_columns(advantage=ones, loss_weight=ones))
        gradients = [own_part(p.grad) for p in trained if p.grad is not None]
        energies.append(sum(float(gradient.double().square().sum()) for gradient in gradients))
    model.zero_grad()
    ranks = ranks_of(model)
    parts = ranks.gathered(torch.tensor(energies, dtype=torch.float64))
    return torch.stack(parts[: ranks.config.num_shards(ranks.count)]).sum(0)  # other ranks have copies of these shards


@torch.no_grad()
def proxy_energy(model: CausalLM, found: TrajectoryIndex, batches: Sequence[Batch], temperature: float) -> Tensor:
    """Return ``sum_k (1 - 2 pi_k + sum_v pi_v^2)`` over each trajectory's tokens, ``[n]``.

    This is the squared norm of the gradient of the log-probabilities with respect to the logits, summed over tokens.
    It needs one forward pass, of which each rank computes its share.

    Source: verl ``compute_optimal_token_baseline_advantage``, which sums it up to each token.
    """
    energy = torch.zeros(len(found.numbers), dtype=torch.float64)
    ranks, of_tokens = ranks_of(model), found.of_tokens(batches)

    def add(whole: CausalLM) -> None:
        head = head_of(whole)
        step = max(1, max_logits(is_gpu=model.device.type == "cuda") // vocabulary_of(head))
        for place, scale in ranks.share(len(batches)):
            batch = batches[place]
            states = batch.states(trunk_of(whole))
            pieces = zip(*(torch.split(part, step) for part in (states, batch.target, of_tokens[place])), strict=True)
            for some, target, index in pieces if scale else ():
                probability = (head(some).float() / temperature).softmax(-1)
                of_target = probability.gather(-1, target[:, None])[:, 0]
                # The gradient of log pi_k in the logits is onehot(k) - pi; this is its squared norm.
                norm = 1 - 2 * of_target + probability.square().sum(-1)
                energy.index_add_(0, index.cpu(), norm.double().cpu())

    run_whole(model, add)
    return torch.stack(ranks.gathered(energy)).sum(0)


def subtract_opob(
    found: TrajectoryIndex, batches: Sequence[Batch], frozen: Sequence[BatchLogprobs], energy: Tensor
) -> list[Batch]:
    """Return a minibatch's micro-batches with each group's baseline subtracted from the advantages.

    Args:
        found: the trajectories of the minibatch.
        batches: micro-batches in which all tokens of a trajectory have its return as advantage.
        frozen: scores of the policy that is about to be trained.
        energy: ``[n]`` squared gradient norm of each trajectory.
    """
    if not found.numbers:
        return list(batches)
    at = found.of_tokens(batches)
    of_token, advantage = torch.cat(at), torch.cat([batch["advantage"] for batch in batches]).double()
    log_ratio = torch.cat([f.logprob - b["logprob_rollout"] for f, b in zip(frozen, batches, strict=True)]).double()
    zeros = torch.zeros(len(found.numbers), dtype=torch.float64, device=log_ratio.device)
    returns = zeros.index_copy(0, of_token, advantage)
    group = torch.unique(torch.tensor(found.group), return_inverse=True)[1].to(log_ratio.device)
    log_weight = clamped(zeros.index_add(0, of_token, log_ratio))
    baseline = opob_baselines(returns, log_weight, energy.to(log_ratio.device), group)
    return [
        batch.with_columns(advantage=batch["advantage"] - baseline[index].to(batch["advantage"]))
        for batch, index in zip(batches, at, strict=True)
    ]
