"""Corrections for the mismatch between the trainer's probabilities (``pi_old``) and the engine's (``mu``).

Both evaluate the same weights, but kernels and precision differ, and in async mode the weights do too. Weights and
masks are functions of ``rho = pi_old / mu``, detached, flat over the ``N`` sampled tokens. A rejected token has weight
0. The option ``denominator`` says if it still counts in the loss's denominators.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agentgym.trainers.data.batch import Batch
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.batch_columns import BatchColumns
from agentgym.trainers.losses.component import CORRECTIONS
from agentgym.trainers.losses.ratios import clamped, first_of_unit, max_per_unit, mean_per_unit, sum_per_unit
from agentgym.trainers.losses.trial import checked_tokens

SMALLEST_MEAN = 1e-8
"""Mean weight below which ``batch_normalise`` leaves the weights alone, as verl does."""


def log_rho(logprob_old: Tensor, logprob_rollout: Tensor) -> Tensor:
    """Return ``log pi_old / mu`` per token, detached."""
    return (logprob_old - logprob_rollout).detach()


def token_tis(log_rho_N: Tensor, options: of.TokenTisOptions) -> Tensor:
    """Token-level truncated importance sampling: ``min(rho, cap)``.

    Source: "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"; verl ``rollout_corr_helper.py``.

    Example:
        >>> rho = torch.tensor([0.3, 0.9, 1.2, 4.0, 6.0])
        >>> [round(x, 4) for x in token_tis(rho.log(), of.TokenTisOptions(cap=2.0)).tolist()]
        [0.3, 0.9, 1.2, 2.0, 2.0]
    """
    return clamped(log_rho_N).exp().clamp(max=options.cap)


def seq_tis(log_rho_N: Tensor, unit: Tensor, options: of.SequenceTisOptions) -> Tensor:
    """Sequence-level truncated importance sampling: ``min(prod rho, cap)`` on every token of the sequence.

    Example:
        >>> log_rho_N = torch.tensor([0.2, 0.3, 0.4])
        >>> seq_tis(log_rho_N, torch.zeros(3, dtype=torch.long), of.SequenceTisOptions(cap=2.0)).tolist()
        [2.0, 2.0, 2.0]
    """
    return clamped(sum_per_unit(log_rho_N, unit)).exp().clamp(max=options.cap)


def icepop(log_rho_N: Tensor, options: of.IcepopOptions) -> Tensor:
    """IcePop: weight ``rho`` inside the band, 0 outside.

    Source: IcePop, a blog post accompanying the Ring-1T report; slime ``--tis-clip-low``, ``--tis-clip``.

    Example:
        >>> rho = torch.tensor([0.3, 0.9, 1.2, 4.0, 6.0])
        >>> [round(x, 4) for x in icepop(rho.log(), of.IcepopOptions(low=0.5, high=5.0)).tolist()]
        [0.0, 0.9, 1.2, 4.0, 0.0]
    """
    rho = clamped(log_rho_N).exp()
    return torch.where(_inside(rho, options.band), rho, 0.0)


def seq_mis(log_rho_N: Tensor, unit: Tensor, options: of.SequenceMisOptions) -> Tensor:
    """Masked importance sampling: weight 0 on sequences whose product of ratios is outside the band.

    Source: verl ``rollout_corr_helper.py`` (its bounds act on ``1 / rho``, these on ``rho``).
    """
    product = sum_per_unit(clamped(log_rho_N), unit).exp()
    weight = product if options.weight == "ratio" else torch.ones_like(product)
    return torch.where(_inside(product, options.band), weight, 0.0)


def geometric(log_rho_N: Tensor, unit: Tensor, options: of.GeometricOptions) -> Tensor:
    """Geometric rejection: weight 0 on sequences whose geometric mean of ratios is outside the band.

    Example:
        >>> log_rho_N, unit = torch.tensor([0.2, 0.3, 0.4]), torch.zeros(3, dtype=torch.long)
        >>> geometric(log_rho_N, unit, of.GeometricOptions(low=0.7, high=1.34)).tolist()
        [0.0, 0.0, 0.0]
    """
    inside = _inside(mean_per_unit(clamped(log_rho_N), unit).exp(), options.band)
    return inside.to(log_rho_N.dtype)


def divergence_rejection(log_rho_N: Tensor, row: Tensor, options: of.DivergenceRejectionOptions) -> Tensor:
    """Weight 0 where k2 or k3 is above the threshold: per token, or by a row's mean or its largest token.

    Source: verl ``rollout_corr_helper.py`` (rejection sampling by K2 and K3).
    """
    log_ratio = clamped(log_rho_N)
    drift = log_ratio.square() / 2 if options.estimator == "k2" else log_ratio.exp() - 1 - log_ratio
    match options.level:
        case "sequence_mean":
            drift = mean_per_unit(drift, row)
        case "sequence_max":
            drift = max_per_unit(drift, row)
        case "token":
            pass
    return (drift <= options.threshold).to(log_rho_N.dtype)


def m2po_mask(log_rho_M: Tensor, options: of.M2poOptions) -> Tensor:
    """Mark the tokens that M2PO keeps, ``[M]``: all except the fewest tokens with the largest squared log-ratios.

    Tokens are rejected, largest first, until the mean square of the rest is below the threshold; one token always
    stays. Among equal squares the first is rejected first, so with ties the result depends on the order of tokens.

    Args:
        log_rho_M: ``[M]`` log ratios of all trained tokens of the update.
        options: the threshold of the second moment.

    Source: second-moment trust policy optimization (AReaL ``areal/trainer/ppo/actor.py``).

    Example:
        >>> squares = torch.tensor([0.5, 0.04, 0.02, 0.01, 0.0])
        >>> m2po_mask(squares.sqrt(), of.M2poOptions(threshold=0.05)).tolist()
        [False, True, True, True, True]
    """
    squares, order = log_rho_M.double().square().sort(descending=True, stable=True)
    counts = torch.arange(len(squares), 0, -1, dtype=squares.dtype, device=squares.device)
    # Element i is the mean square of the tokens that stay if the i largest are rejected.
    suffix_means = squares.flip(0).cumsum(0).flip(0) / counts
    below = (suffix_means < options.threshold).nonzero()
    num_left_out = int(below[0]) if len(below) else max(0, len(squares) - 1)
    is_kept = torch.ones_like(log_rho_M, dtype=torch.bool)
    is_kept[order[:num_left_out]] = False
    return is_kept


def decoupled(log_rho_N: Tensor, unit: Tensor, options: of.DecoupledOptions) -> Tensor:
    """Decoupled PPO's weight ``pi_prox / mu``: clamped at the cap, or 0 above it.

    Args:
        log_rho_N: ``[N]`` log ratios.
        unit: ``[N]`` turn or row of each token, for the geometric mean if ``level`` is not ``token``.
        options: cap, level and action.

    Source: "Batch size-invariance for policy optimization"; AReaL ``areal/utils/functional/functional.py``.

    Example:
        >>> log_rho_N = torch.tensor([0.2, 3.0])
        >>> [round(x, 6) for x in decoupled(log_rho_N, torch.zeros(2), of.DecoupledOptions(cap=5.0)).tolist()]
        [1.221403, 0.0]
    """
    rho = (log_rho_N if options.level == "token" else mean_per_unit(log_rho_N, unit)).exp()
    return rho.clamp(max=options.cap) if options.action == "clamp" else torch.where(rho <= options.cap, rho, 0.0)


def effective_sample_size(log_weight: Tensor) -> float:
    """Return ``(sum w)^2 / sum w^2`` of the sequences' importance weights, between 1 and their number.

    Source: "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs".

    Example:
        >>> round(effective_sample_size(torch.tensor([1.0, 1.0, 1.0, 5.0]).log()), 6)
        2.285714
    """
    # A common factor cancels. With the largest weight at 1, none overflows.
    weight = (log_weight.double() - log_weight.max().double()).exp()
    return float(weight.sum().square() / weight.square().sum())


def vcpo_scale(log_weight: Tensor, options: of.VcpoOptions) -> float:
    """Return VCPO's factor of the learning rate: ``min(1, (ESS / n) / base) ^ (1/2 or 1)``.

    The variance of the gradient grows with n / ESS, so a smaller effective sample size gets a smaller step.

    Args:
        log_weight: ``[n]`` summed log-ratio of each sequence.
        options: base ratio and exponent.

    Source: "Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs" (``staleness_utils.py``).

    Example:
        >>> round(vcpo_scale(torch.tensor([1.0, 1.0, 1.0, 5.0]).log(), of.VcpoOptions()), 6)
        0.755929
    """
    if not len(log_weight):
        return 1.0
    share = min(1.0, effective_sample_size(log_weight) / len(log_weight) / options.base_ratio)
    return float(share**0.5) if options.scale == "sqrt" else share


def prepare_m2po(log_rho_M: Tensor, options: of.M2poOptions) -> dict[str, Tensor]:
    """Return the mask of :func:`m2po_mask`."""
    return {"is_in_m2po": m2po_mask(log_rho_M, options)}


def m2po(is_in_m2po: Tensor) -> Tensor:
    """Return 1 for the tokens that :func:`m2po_mask` keeps of the update, 0 for the others."""
    return is_in_m2po.float()


def prepare_batch_normalise(weighing_weight: Tensor, weighing_unit: Tensor | None) -> dict[str, float]:
    """Return the mean weight of tokens, or of sequences if weights are per sequence; rejected ones do not count."""
    weight = weighing_weight if weighing_unit is None else weighing_weight[first_of_unit(weighing_unit)]
    mean = weight[weight > 0].double().mean().item()
    return {"mean_weight": mean if mean > SMALLEST_MEAN else 1.0}


def batch_normalise(log_rho_N: Tensor, mean_weight: float) -> Tensor:
    """Return ``1 / mean``, so that the product of all corrections' weights has mean 1 over the update."""
    return torch.full_like(log_rho_N, 1 / mean_weight)


def prepare_vcpo(logprob: Tensor, logprob_rollout: Tensor, row: Tensor, options: of.VcpoOptions) -> dict[str, float]:
    """Return the factor of the learning rate, from each row's sum of log-ratios between policy and engine."""
    log_weight = sum_per_unit(logprob - logprob_rollout, row)[first_of_unit(row)]
    return {"lr_scale": vcpo_scale(log_weight, options)}


def vcpo(log_rho_N: Tensor) -> Tensor:
    """Return ones: VCPO changes the learning rate instead of the weights, see :func:`vcpo_scale`."""
    return torch.ones_like(log_rho_N)


def weight_of(log_rho_N: Tensor, batch: Batch, options: Any, prepared: Mapping[str, Any] | None = None) -> Tensor:
    """Return the weight of one correction, ``[N]``.

    Args:
        prepared: what the correction's ``prepare`` returned, for the tokens of the micro-batch.
    """
    component = CORRECTIONS[options.kind]
    further = {
        **(prepared or {}),
        "log_rho_N": log_rho_N,
        "unit": batch["turn"] if getattr(options, "level", "") == "turn" else batch.row,
    }
    values = BatchColumns(batch, {"logprob_old": log_rho_N + batch["logprob_rollout"]}, further)
    weight = checked_tokens(component, component.call(**values.arguments(component, options)), len(log_rho_N))
    return weight.to(log_rho_N.dtype)


def _inside(ratio: Tensor, band: tuple[float, float]) -> Tensor:
    return (ratio >= band[0]) & (ratio <= band[1])
