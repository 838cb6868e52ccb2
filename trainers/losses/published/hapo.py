"""HAPO: bounds and advantages that follow each token's entropy.

Source: "From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature" (HAPO;
``verl/trainer/ppo/core_algos.py``, ``compute_entropy_h``, ``ada_clip`` and ``ada_advantage``). A token's level is its
log-entropy beside a quantile of the update's, scaled to -1..1. Certain tokens may fall further and uncertain ones may
rise further, and the advantage of uncertain tokens grows where their ratio has moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import Fraction, NonNegative
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor

LEAST = 1e-8
"""Smallest entropy in nats, and smallest divisor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HapoOptions(Options):
    """Keys of HAPO."""

    kind: Literal["hapo"] = "hapo"
    pivot: Fraction = 0.8
    """Quantile of the entropies that has the level 0."""
    clip_scale: NonNegative = 1.0
    """Growth of the bounds with the level."""
    advantage_scale: Fraction = 1.0
    """Growth of the advantage with the level; above 1, the advantages of certain tokens would change their sign."""
    signed: bool = True
    """True: tokens below the pivot have negative levels, as in the paper. False: theirs are positive too, as the
    release's turn out, so that no lower bound grows."""

    def idle(self) -> str:
        return "" if self.clip_scale or self.advantage_scale else "clip_scale and advantage_scale are 0"


def prepare_hapo(entropy: Tensor, options: HapoOptions) -> dict[str, Tensor]:
    """Return the level of each of the update's tokens, -1 to 1, ``[M]``; the release's is within a micro-batch."""
    import torch

    log_entropy = entropy.detach().clamp_min(LEAST).log()
    at = round(options.pivot * (len(entropy) - 1))
    above = log_entropy - log_entropy.kthvalue(at + 1).values
    above = above / above.square().mean().clamp_min(LEAST).sqrt()
    most, least = above.max().clamp_min(LEAST), above.min().clamp_max(-LEAST)
    return {"level": torch.where(above > 0, above / most, above / (-least if options.signed else least))}


@policy_loss(
    "hapo",
    paper="From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature",
    parity="starriver030515/HAPO@7671dde:verl/trainer/ppo/core_algos.py",
    options=HapoOptions,
    prepare=prepare_hapo,
    clip_low=0.2,
    clip_high=0.2,
    dual_clip=10.0,
    may_dual_clip=True,
    test="tests/trainers/test_hapo.py::test_hapo",
    limits="equal with signed=false; without the paper's temperature by entropy and its advantages over tokens",
)
def hapo(
    ratio: Tensor, advantage: Tensor, level: Tensor, low: float, high: float, dual: float, options: HapoOptions
) -> tuple[Tensor, Tensor]:
    """PPO-clip with bounds and an advantage of each token, which grow with the level of its entropy."""
    import torch

    below, above = 1 - low, high - 1
    fall = below * (1 - options.clip_scale * level.clamp(max=0))
    rise = above * (1 + options.clip_scale * level.clamp(min=0))
    fixed = ratio.detach()
    is_near = (fixed > 1 - fall / 2) & (fixed < 1 + rise / 2)
    # certain tokens change where the ratio has stayed, uncertain ones where it has moved
    is_scaled = torch.where(level > 0, ~is_near, is_near)
    scaled = torch.where(is_scaled, advantage * (1 + options.advantage_scale * level), advantage)
    free, bounded = -scaled * ratio, -scaled * torch.minimum(torch.maximum(ratio, 1 - fall), 1 + rise)
    loss = torch.maximum(free, bounded)
    if dual:
        loss = torch.where(scaled < 0, torch.minimum(-scaled * dual, loss), loss)
    return loss, bounded > free
