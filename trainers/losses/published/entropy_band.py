"""SPINE's regulariser: hold the entropy of forking tokens in a band.

Source: "SPINE: Token-Selective Test-Time Reinforcement Learning with Entropy-Band Regularization" (abstract). Without
labels, training on its own majority makes a policy certain too early. SPINE trains forking tokens alone, those of high
entropy (the token mask ``forking_tokens``), and keeps their entropy from falling below a band, where exploration ends,
and from rising above it, where labels are noise. Band and penalty are our choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative, PositiveFraction
from agentgym.trainers.losses.component import regulariser

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyBandOptions(Options):
    """Keys of SPINE's regulariser."""

    off_at_0 = "coef"
    kind: Literal["entropy_band"] = "entropy_band"
    coef: NonNegative = 0.01
    """Weight of a nat outside the band."""
    share: PositiveFraction = 0.2
    """Share of the update's tokens, from the highest entropy on, that count as forking; one at least."""
    low: NonNegative = 0.8
    """Lower end of the band, as a multiple of the forking tokens' mean entropy in the first update."""
    high: NonNegative = 1.2
    """Upper end of the band, as such a multiple."""

    def check_together(self) -> None:
        self.check(is_ok=self.low < self.high, message=f"low must be below high, got {self.low} and {self.high}")


def prepare_entropy_band(
    entropy: Tensor, memory: Mapping[str, Any], options: EntropyBandOptions
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return which tokens fork, ``[M]``, and the ends of the band in nats; the memory is the first mean."""
    import torch

    fixed = entropy.detach()
    chosen = fixed.topk(max(1, round(options.share * len(fixed)))).indices
    first = memory.get("first", float(fixed[chosen].mean()))
    forks = torch.zeros_like(fixed, dtype=torch.bool).index_fill(0, chosen, True)
    return {"forks": forks, "least": options.low * first, "most": options.high * first}, {"first": first}


@regulariser(
    "entropy_band",
    paper="SPINE: Token-Selective Test-Time Reinforcement Learning with Entropy-Band Regularization",
    status="reconstructed",
    options=EntropyBandOptions,
    prepare=prepare_entropy_band,
    test="tests/trainers/test_entropy_band.py::test_entropy_band",
    limits="the band is relative to the first update, and its penalty linear",
)
def entropy_band(entropy: Tensor, forks: Tensor, least: float, most: float) -> Tensor:
    """Nats by which a forking token's entropy is outside the band, 0 on other tokens, ``[N]``."""
    import torch

    return torch.where(forks, (least - entropy).clamp(min=0) + (entropy - most).clamp(min=0), 0.0)
