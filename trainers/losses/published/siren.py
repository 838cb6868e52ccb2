"""SIREN: hold the entropy of the likeliest tokens, at the answers' most uncertain places, at its first level.

Source: "Rethinking Entropy Regularization in Large Reasoning Models" (SIREN; ``verl/workers/actor/dp_actor.py``,
``efficient_top_p_sampling`` and ``mask_by_quantile``). An entropy bonus over the whole vocabulary and all places
raises noise. SIREN takes the entropy over the top-p tokens, at the places of each row above a quantile of it, and
draws the mean over rows to the mean of the first update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, PositiveFraction, Range
from agentgym.trainers.losses.component import regulariser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SirenOptions(Options):
    """Keys of SIREN."""

    off_at_0 = "coef"
    kind: Literal["siren"] = "siren"
    coef: NonNegative = 0.005
    """Weight of the squared distance from the first level."""
    top_p: PositiveFraction = 0.8
    """The entropy is that of the likeliest tokens before their probabilities sum to this."""
    most_tokens: Annotated[int, Range(at_least=2)] = 10_000
    """Largest number of these tokens; one alone has no entropy."""
    quantile: Annotated[float, Range(at_least=0, below=1)] = 0.8
    """Places of a row at or below this quantile of its entropies have no term."""


def top_p_entropy(log_distribution: Tensor, options: SirenOptions) -> Tensor:
    """Return the entropy in nats over the likeliest tokens, renormalised, ``[n]``; 0 if one token reaches ``top_p``.

    As in the release, the token at which the sum reaches ``top_p`` is left out.
    """
    import torch

    chance = log_distribution.exp()
    largest = chance.topk(min(options.most_tokens, chance.shape[-1]), dim=-1).values
    is_kept = largest.detach().cumsum(-1) < options.top_p
    kept = torch.where(is_kept, largest, 0.0)
    share = kept / (kept.sum(-1, keepdim=True) + 1e-12)
    return -(share * (share + 1e-12).log()).sum(-1)


def prepare_siren(
    measured: Tensor, row: Tensor, memory: Mapping[str, Any], options: SirenOptions
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return each place's weight in the mean over rows, the mean's distance from the first level, and that level."""
    import torch

    weight = torch.zeros_like(measured)
    num_rows = int(row.max()) + 1
    for one in range(num_rows):
        mine = (row == one).nonzero()[:, 0]
        entropies = measured[mine]
        peak = mine[entropies > torch.quantile(entropies.float(), options.quantile)]
        weight[peak] = 1 / (len(peak) * num_rows) if len(peak) else 0.0
    mean = float((weight * measured).sum())
    first = memory.get("first", mean)
    return {"weight": weight * len(measured), "distance": mean - first}, {"first": first}


@regulariser(
    "siren",
    paper="Rethinking Entropy Regularization in Large Reasoning Models",
    parity="Linn3a/siren@fa59a8d:verl/verl/workers/actor/dp_actor.py",
    options=SirenOptions,
    measure=top_p_entropy,
    prepare=prepare_siren,
    averages_over="tokens",
    test="tests/trainers/test_siren.py::test_siren",
    limits="the first level is that of the first update, the release's that of the first step",
)
def siren(measured: Tensor, weight: Tensor, distance: float) -> Tensor:
    """Squared distance of the mean top-p entropy of each row's peaks from its first level."""
    return distance**2 + 2 * distance * weight * (measured - measured.detach())
