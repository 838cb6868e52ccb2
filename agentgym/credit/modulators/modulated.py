"""What a modulator gives."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.credit.table import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Modulated:
    """New advantages, and weights in the loss where the modulator sets any."""

    advantage: Floats
    """``[N]``"""
    token_advantage: Floats | None = None
    """``[M]`` if the modulator works per token; ``advantage`` is then the mean over the turn's tokens."""
    loss_weight: Floats | None = None
    """``[N]`` factor of the turn's weight in the loss; None means 1 everywhere."""
