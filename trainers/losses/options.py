"""Settings of the policy losses, the corrections and the regularisers: one frozen class each, told apart by ``kind``.

Nothing here needs torch, so that a command line can read and list it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from agentgym.plugins import Options
from agentgym.settings import Fraction, Natural, Positive, PositiveFraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class SapoOptions(Options):
    """Keys of SAPO: temperatures of the gate."""

    kind: Literal["sapo"] = "sapo"
    tau_positive: Positive = 1.0
    """Where the advantage is above 0."""
    tau_negative: Positive = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MinproOptions(Options):
    """Keys of MinPRO."""

    kind: Literal["minpro"] = "minpro"
    surrogate: Literal["ppo_clip", "cispo"] = "ppo_clip"
    """What is done with the corrected ratio."""
    cap_min_at_1: bool = False
    """Never let the prefix raise a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BapoOptions(Options):
    """Keys of BAPO: bounds of the ratio itself, and how far the search may move them."""

    kind: Literal["bapo"] = "bapo"
    low: float = 0.6
    high: float = 1.2
    low_max: float = 0.8
    high_max: float = 2.0
    step: float = 0.05
    target: float = 1.0
    """Sought share of positive to negative contributions."""

    def check_together(self) -> None:
        message = "needs 0 < low <= low_max <= 1 <= high <= high_max, and a step above 0"
        bounds = 0 < self.low <= self.low_max <= 1 <= self.high <= self.high_max
        self.check(is_ok=bounds and self.step > 0, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceOptions(Options):
    """Keys of REINFORCE."""

    kind: Literal["reinforce"] = "reinforce"
    cap: float = 2.0
    """Cap of the detached ratio that weighs a token's gradient; 0 leaves the ratio out."""


# --------------------------------------------------------------------------------------------------- corrections

Level = Literal["turn", "sequence"]
"""What a product or mean of ratios runs over: a turn's sampled tokens, or those of the row (a context window)."""
Denominator = Literal["kept", "all"]
"""What the loss and its regularisers average over where tokens are rejected: tokens that stay, or all trained ones.

``kept`` needs the whole update before its first gradient.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTisOptions(Options):
    """Truncated importance sampling per token: ``min(rho, cap)``."""

    kind: Literal["token_tis"] = "token_tis"
    cap: Positive = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTisOptions(Options):
    """Truncated importance sampling per sequence: ``min(prod rho, cap)`` on all its tokens."""

    kind: Literal["seq_tis"] = "seq_tis"
    cap: Positive = 2.0
    level: Level = "sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Band(Options):
    low: Fraction = 0.0
    """0 means ``1 / high``."""
    high: Annotated[float, Range(above=1)] = 2.0

    @property
    def band(self) -> tuple[float, float]:
        """Bounds of the ratio pi_old / mu (verl's act on its inverse)."""
        return (self.low or 1 / self.high), self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class IcepopOptions(_Band):
    """Token weights inside a band, 0 outside."""

    kind: Literal["icepop"] = "icepop"
    low: Fraction = 0.5
    high: Annotated[float, Range(above=1)] = 5.0
    denominator: Denominator = "all"
    """As IcePop was published; verl averages over ``kept`` tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMisOptions(_Band):
    """Leaves out sequences whose product of ratios is outside a band."""

    kind: Literal["seq_mis"] = "seq_mis"
    level: Level = "sequence"
    weight: Literal["one", "ratio"] = "one"
    """Of the sequences that stay."""
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricOptions(_Band):
    """Leaves out sequences whose geometric mean of ratios is outside a narrow band."""

    kind: Literal["geometric"] = "geometric"
    low: Fraction = 0.999
    high: Annotated[float, Range(above=1)] = 1.001
    level: Level = "sequence"
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceRejectionOptions(Options):
    """Leaves out tokens or sequences that drifted: k2 = (log rho)^2 / 2 or k3 = rho - 1 - log rho above a threshold."""

    kind: Literal["divergence_rejection"] = "divergence_rejection"
    estimator: Literal["k2", "k3"] = "k3"
    level: Literal["token", "sequence_mean", "sequence_max"] = "token"
    threshold: Positive = 0.1
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class M2poOptions(Options):
    """Leaves out the fewest tokens so that the mean of (log rho)^2 over the rest of the update is below a threshold."""

    kind: Literal["m2po"] = "m2po"
    threshold: Positive = 0.04
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledOptions(Options):
    """Decoupled PPO's weight pi_prox / mu, capped, or left out above the cap."""

    kind: Literal["decoupled"] = "decoupled"
    cap: Positive = 5.0
    level: Literal["token", "turn", "sequence"] = "token"
    """``turn`` and ``sequence`` take the geometric mean."""
    action: Literal["clamp", "mask"] = "mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormaliseOptions(Options):
    """Divides weights by their mean over the update's tokens, or over its sequences for weights of sequences."""

    kind: Literal["batch_normalise"] = "batch_normalise"


@dataclass(frozen=True, slots=True, kw_only=True)
class VcpoOptions(Options):
    """Scales the learning rate by the effective sample size of the sequences' importance weights."""

    kind: Literal["vcpo"] = "vcpo"
    scale: Literal["sqrt", "linear"] = "sqrt"
    base_ratio: PositiveFraction = 1.0
    """Effective share of the batch at which the learning rate is left alone."""
    baseline: Literal["none", "gradient", "proxy"] = "none"
    """Subtract the baseline of least variance from the returns of a group (``credit.estimator=returns``). ``gradient``
    makes a backward pass per trajectory, several times the update's own time. ``proxy`` takes the norm of the gradient
    with respect to the logits, one forward pass (ours)."""


# -------------------------------------------------------------------------------------------------- regularisers


@dataclass(frozen=True, slots=True, kw_only=True)
class KlOptions(Options):
    """A penalty on the divergence from the policy before RL."""

    kind: Literal["kl"] = "kl"
    coef: float = 0.01
    estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"
    """``k3+`` has the value of k3 and the gradient of k2, which is unbiased."""

    off_at_0 = "coef"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions(Options):
    """Learning from a teacher's log-probabilities of what the policy itself sampled."""

    kind: Literal["distill"] = "distill"
    teacher: str = ""
    """The model to learn from, as ``model.path`` names it; it must have the policy's tokenizer."""
    coef: float = 1.0

    off_at_0 = "coef"


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyOptions(Options):
    """A bonus for entropy."""

    kind: Literal["entropy"] = "entropy"
    coef: float = 0.001

    off_at_0 = "coef"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpoOptions(Options):
    """Keys of EPO's smoothed entropy."""

    kind: Literal["epo"] = "epo"
    coef: float = 0.001
    """The paper's lambda."""
    smoothing: float = 1.0
    """Weight of the penalty inside it (the code's c)."""
    alpha: float = 0.1
    low: float = 0.0
    """Entropies below ``low`` times the turn's historical mean are penalised ..."""
    high: float = 2.0
    """... and above ``high`` times it."""
    phase_steps: Natural = 0
    """E of the phase weight beta_e; 0 leaves it at 1."""
    from_turn: Natural = 0
    """Act only in updates that reach this turn (the code: half of the turn limit)."""
    has_gradient: bool = True
    """A hinge with a gradient; False is the released constant, which has none."""

    def check_together(self) -> None:
        self.check(is_ok=0 <= self.low < self.high, message="needs 0 <= low < high")

    off_at_0 = "coef"


@dataclass(frozen=True, slots=True, kw_only=True)
class LldsOptions(Options):
    """Keys of LLDS."""

    kind: Literal["llds"] = "llds"
    coef: float = 0.2
    gate: Literal["turn", "sequence"] = "turn"
    """What has to lose likelihood before its tokens are penalised: a turn, or the tokens of a row together."""
    preserve_only_correct: bool = True
    """Penalise only tokens whose advantage is not below 0."""

    off_at_0 = "coef"


# ---------------------- settings of the token masks, told apart by ``kind``. Like the other options, they need no torch


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
