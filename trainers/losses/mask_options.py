"""Settings of the token masks, told apart by ``kind``. Like the other options, they need no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym.plugins import Options
from agentgym.settings import PositiveFraction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share(Options):
    share: PositiveFraction
    """Of the update's trained tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkingTokensOptions(_Share):
    """Train on the tokens of highest entropy alone."""

    kind: Literal["forking_tokens"] = "forking_tokens"
    share: PositiveFraction = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCovOptions(_Share):
    """Leave out some tokens whose advantage and log-probability go together strongly."""

    kind: Literal["clip_cov"] = "clip_cov"
    share: PositiveFraction = 0.0002
    low: float = 1.0
    """Covariance above which a token may be left out ..."""
    high: float = 5.0
    """... and below which."""

    def check_together(self) -> None:
        self.check(is_ok=self.low < self.high, message=f"needs low < high, got {self.low} and {self.high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCovOptions(_Share):
    """Penalise the change of the tokens whose advantage and log-probability go together most."""

    kind: Literal["kl_cov"] = "kl_cov"
    share: PositiveFraction = 0.0002
    coef: float = 1.0
