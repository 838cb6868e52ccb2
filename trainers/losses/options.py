"""Settings of policy losses, corrections, regularisers and token masks: one frozen class each, named by ``kind``.

This module does not import torch, so that the command line can list the settings quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from agentgym.plugins import Options
from agentgym.settings import Count, Fraction, Natural, NonNegative, Positive, PositiveFraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class SapoOptions(Options):
    """Keys of SAPO: temperatures of its soft gate."""

    kind: Literal["sapo"] = "sapo"
    tau_positive: Positive = 1.0
    """Temperature at positive advantages; ``tau_negative`` is that of the others."""
    tau_negative: Positive = 1.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MinproOptions(Options):
    """Keys of MinPRO."""

    kind: Literal["minpro"] = "minpro"
    surrogate: Literal["ppo_clip", "cispo"] = "ppo_clip"
    """Policy loss that uses the corrected ratio."""
    cap_min_at_1: bool = False
    """Limit the smallest prefix ratio to 1, so that it never increases a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BapoOptions(Options):
    """Keys of BAPO: initial bounds of the ratio, and the largest values that the search may reach."""

    kind: Literal["bapo"] = "bapo"
    low: float = 0.6
    high: float = 1.2
    low_max: float = 0.8
    high_max: float = 2.0
    step: float = 0.05
    target: float = 1.0
    """Ratio of positive to negative contributions at which the search stops."""

    def check_together(self) -> None:
        message = "needs 0 < low <= low_max <= 1 <= high <= high_max, and a step above 0"
        bounds = 0 < self.low <= self.low_max <= 1 <= self.high <= self.high_max
        self.check(is_ok=bounds and self.step > 0, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuelOptions(Options):
    """Keys of REFUEL."""

    kind: Literal["refuel"] = "refuel"
    eta: Positive = 1.0
    """Divisor of the change of log-probabilities: the larger, the further the policy moves per unit of return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforceOptions(Options):
    """Keys of REINFORCE."""

    kind: Literal["reinforce"] = "reinforce"
    cap: float = 2.0
    """Upper limit of the detached ratio by which a token's gradient is multiplied; 0 leaves the ratio out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPlusOptions(Options):
    """Keys of RL-PLUS."""

    kind: Literal["rl_plus"] = "rl_plus"
    gamma: NonNegative = 0.5
    """Exponent of a demonstrated token's improbability; 0 weighs all such tokens alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpmdOptions(Options):
    """Keys of OPMD without a ratio."""

    kind: Literal["opmd"] = "opmd"
    tau: NonNegative = 1.0
    """Temperature: the gradient is divided by ``1 + tau``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpmdSquaredOptions(Options):
    """Keys of OPMD with a squared log-ratio."""

    kind: Literal["opmd_squared"] = "opmd_squared"
    tau: Positive = 0.1
    """Weight of the squared log-ratio of a sequence to the old policy. The value is ours."""
    level: Literal["turn", "sequence"] = "sequence"
    """A sequence: the sampled tokens of a turn, or those of a row (a context window)."""


# --------------------------------------------------------------------------------------------------- corrections

Level = Literal["turn", "sequence"]
"""Unit of a product or mean of ratios: the sampled tokens of a turn, or those of a row (a context window)."""
Denominator = Literal["kept", "all"]
"""Tokens over which the loss and its regularisers average if some are rejected: the kept ones, or all trained ones.

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
    """Lower bound; 0 means ``1 / high``."""
    high: Annotated[float, Range(above=1)] = 2.0

    @property
    def band(self) -> tuple[float, float]:
        """Bounds of the ratio pi_old / mu; verl's bounds apply to its inverse."""
        return (self.low or 1 / self.high), self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class IcepopOptions(_Band):
    """Keys of IcePop: weight rho inside a band, 0 outside."""

    kind: Literal["icepop"] = "icepop"
    low: Fraction = 0.5
    high: Annotated[float, Range(above=1)] = 5.0
    denominator: Denominator = "all"
    """``all`` as in the published IcePop; verl averages over ``kept`` tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMisOptions(_Band):
    """Keys of masked importance sampling: reject sequences whose product of ratios is outside a band."""

    kind: Literal["seq_mis"] = "seq_mis"
    level: Level = "sequence"
    weight: Literal["one", "ratio"] = "one"
    """Weight of the sequences that stay."""
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class GeometricOptions(_Band):
    """Keys of geometric rejection: reject sequences whose geometric mean of ratios is outside a narrow band."""

    kind: Literal["geometric"] = "geometric"
    low: Fraction = 0.999
    high: Annotated[float, Range(above=1)] = 1.001
    level: Level = "sequence"
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergenceRejectionOptions(Options):
    """Keys of rejection by divergence: k2 = (log rho)^2 / 2 or k3 = rho - 1 - log rho above a threshold."""

    kind: Literal["divergence_rejection"] = "divergence_rejection"
    estimator: Literal["k2", "k3"] = "k3"
    level: Literal["token", "sequence_mean", "sequence_max"] = "token"
    threshold: Positive = 0.1
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class M2poOptions(Options):
    """Keys of M2PO: reject the fewest tokens such that the mean of (log rho)^2 over the rest is below a threshold."""

    kind: Literal["m2po"] = "m2po"
    threshold: Positive = 0.04
    denominator: Denominator = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoupledOptions(Options):
    """Keys of decoupled PPO's weight pi_prox / mu, which is clamped at the cap, or 0 above it."""

    kind: Literal["decoupled"] = "decoupled"
    cap: Positive = 5.0
    level: Literal["token", "turn", "sequence"] = "token"
    """Unit of the ratio; ``turn`` and ``sequence`` take the geometric mean over their tokens."""
    action: Literal["clamp", "mask"] = "mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNormaliseOptions(Options):
    """Options of ``batch_normalise``, which divides weights by their mean over the update's tokens or sequences."""

    kind: Literal["batch_normalise"] = "batch_normalise"


@dataclass(frozen=True, slots=True, kw_only=True)
class VcpoOptions(Options):
    """Keys of VCPO, which scales the learning rate by the effective sample size of the importance weights."""

    kind: Literal["vcpo"] = "vcpo"
    scale: Literal["sqrt", "linear"] = "sqrt"
    base_ratio: PositiveFraction = 1.0
    """Effective sample size, as a share of the batch, from which on the learning rate is not reduced."""
    baseline: Literal["none", "gradient", "proxy"] = "none"
    """Subtract the minimum-variance baseline from the returns of a group (needs ``credit.estimator=returns``).
    ``gradient`` makes a backward pass per trajectory, which takes several times as long as the update. ``proxy`` uses
    the norm of the gradient with respect to the logits, which needs one forward pass (ours)."""

    @property
    def recredits(self) -> bool:
        """True if a baseline is subtracted from the advantages."""
        return self.baseline != "none"

    @property
    def takes_gradients(self) -> bool:
        """True if it takes the gradient of the policy loss of one trajectory at a time."""
        return self.baseline == "gradient"


# -------------------------------------------------------------------------------------------------- regularisers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regulariser(Options):
    off_at_0 = "coef"


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoOptions(_Regulariser):
    """Keys of ECHO."""

    kind: Literal["echo"] = "echo"
    coef: NonNegative = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class KlOptions(_Regulariser):
    """Keys of the KL penalty to the policy before RL."""

    kind: Literal["kl"] = "kl"
    coef: NonNegative = 0.01
    estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"
    """``k3+`` has the value of k3 and the gradient of k2, which is unbiased."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KlFirstOptions(_Regulariser):
    """Keys of the KL penalty to the policy before RL on the first turns alone."""

    kind: Literal["kl_first"] = "kl_first"
    coef: NonNegative = 0.1
    """SCoRe's beta_2."""
    num_turns: Count = 1
    """Turns of an episode, from the first on, that the penalty holds."""
    estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"


@dataclass(frozen=True, slots=True, kw_only=True)
class KlConvexOptions(_Regulariser):
    """Keys of ReMix's KL penalty: to the policy before RL, and to the policy before the step."""

    kind: Literal["kl_convex"] = "kl_convex"
    coef: NonNegative = 0.01
    base_share: Fraction = 0.5
    """Weight of the KL to the policy before RL; the rest weighs the KL to the old policy of the ratio. Ours."""
    estimator: Literal["k1", "k2", "k3", "k3+"] = "k3"
    restart_at: Natural = 0
    """Number of RL steps after which the policy so far takes the place of the one before RL, with a new optimizer; 0
    for never (ReMix's policy reincarnation)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillOptions(_Regulariser):
    """Keys of on-policy distillation: a reverse KL to a teacher on tokens that the policy sampled."""

    kind: Literal["distill"] = "distill"
    teacher: str = ""
    """The teacher, in the form of ``model.path``; it must have the policy's tokenizer."""
    coef: NonNegative = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfDistillOptions(_Regulariser):
    """Keys of self-distillation: a reverse KL to the policy that sees a demonstration in its prompt."""

    kind: Literal["self_distill"] = "self_distill"
    coef: NonNegative = 0.5
    max_chars: Annotated[int, Range(at_least=200)] = 4000
    """Longest transcript of the demonstration in characters; longer ones lose turns in the middle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyOptions(_Regulariser):
    """Keys of the entropy bonus."""

    kind: Literal["entropy"] = "entropy"
    coef: float = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class EpoOptions(_Regulariser):
    """Keys of EPO's smoothed entropy."""

    kind: Literal["epo"] = "epo"
    coef: float = 0.001
    """The paper's lambda."""
    smoothing: float = 1.0
    """Weight of the penalty within the term, c in the released code."""
    alpha: float = 0.1
    low: float = 0.0
    """Entropies below ``low`` times the turn's historical mean are penalised."""
    high: float = 2.0
    """Entropies above ``high`` times the turn's historical mean are penalised."""
    phase_steps: Natural = 0
    """Number of steps E of the phase weight beta_e; 0 keeps the weight at 1."""
    from_turn: Natural = 0
    """Act only in updates that reach this turn; the released code uses half of the turn limit."""
    has_gradient: bool = True
    """True: a hinge with a gradient. False: the constant of the released code, which has no gradient."""

    def check_together(self) -> None:
        self.check(is_ok=0 <= self.low < self.high, message="needs 0 <= low < high")


@dataclass(frozen=True, slots=True, kw_only=True)
class LldsOptions(_Regulariser):
    """Keys of LLDS."""

    kind: Literal["llds"] = "llds"
    coef: NonNegative = 0.2
    gate: Literal["turn", "sequence"] = "turn"
    """Unit whose likelihood must have fallen before its tokens are penalised: a turn, or a row."""
    preserve_only_correct: bool = True
    """Penalise only tokens whose advantage is not below 0."""


# --------------------------------------------------------------------------------------------------- token masks


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share(Options):
    share: PositiveFraction
    """Share of the update's trained tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkingTokensOptions(_Share):
    """Keys of forking tokens: train only on the tokens of highest entropy."""

    kind: Literal["forking_tokens"] = "forking_tokens"
    share: PositiveFraction = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCovOptions(_Share):
    """Keys of Clip-Cov: leave out some tokens with a high covariance of advantage and log-probability."""

    kind: Literal["clip_cov"] = "clip_cov"
    share: PositiveFraction = 0.0002
    low: float = 1.0
    """Covariance above which a token may be left out."""
    high: float = 5.0
    """Covariance below which a token may be left out."""

    def check_together(self) -> None:
        self.check(is_ok=self.low < self.high, message=f"needs low < high, got {self.low} and {self.high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KlCovOptions(_Share):
    """Keys of KL-Cov: penalise the change of the tokens with the highest covariance."""

    kind: Literal["kl_cov"] = "kl_cov"
    share: PositiveFraction = 0.0002
    coef: NonNegative = 1.0
