"""STEER: weigh tokens down that are predicted to change the policy's entropy much.

Source: "Stabilizing Token-level Entropy-changE via Reweighting" (STEER; ``verl/trainer/ppo/core_algos.py``,
``compute_token_weights`` and ``compute_policy_loss_with_entropy``). A policy-gradient step on a token of probability p
changes the entropy H at its place by about ``A / p_old * p (1 - p) (log p + H)``. Tokens with a large absolute value
make the entropy collapse or explode, whichever their sign, and get a smaller weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from agentgym.plugins import Options
from agentgym.settings import PositiveFraction, Range
from agentgym.trainers.losses.component import policy_loss

if TYPE_CHECKING:
    from torch import Tensor

LEAST_PEAK = 0.02
"""Largest predicted change below which the exponential weights do not grow steeper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SteerOptions(Options):
    """Keys of STEER."""

    kind: Literal["steer"] = "steer"
    mapping: Literal["exponential", "linear"] = "exponential"
    """Map from a token's predicted change to its weight: ``exp(-k change)``, or a straight line."""
    least: PositiveFraction = 0.8
    """Weight of the token with the largest predicted change."""
    most: Annotated[float, Range(at_least=1)] = 1.2
    """Weight of the token with the smallest, for ``linear``; for ``exponential`` a change of 0 has the weight 1."""


def entropy_change(logprob: Tensor, logprob_old: Tensor, entropy: Tensor, advantage: Tensor) -> Tensor:
    """Return the absolute change of entropy that each token is predicted to cause, up to a factor, ``[M]``."""
    chance = logprob.exp().clamp(1e-8, 1 - 1e-8)
    per_step = chance * (1 - chance) * (chance.log() + entropy)
    return (advantage / logprob_old.exp().clamp(1e-8, 1.0) * per_step).abs()


def prepare_steer(
    logprob: Tensor, logprob_old: Tensor, entropy: Tensor, advantage: Tensor, options: SteerOptions
) -> dict[str, Tensor]:
    """Return the weight of each of the update's tokens, ``[M]``; released code chooses within a micro-batch."""
    change = entropy_change(logprob.detach(), logprob_old, entropy.detach(), advantage)
    if options.mapping == "exponential":
        steepness = -change.new_tensor(options.least).log() / change.max().clamp(min=LEAST_PEAK)
        return {"steered": (-steepness * change).exp().clamp(options.least, 1.0)}
    low, high = change.min(), change.max()
    if not bool(high > low):
        return {"steered": change.new_full(change.shape, (options.least + options.most) / 2)}
    weight = options.most - (change - low) * (options.most - options.least) / (high - low)
    return {"steered": weight.clamp(options.least, options.most)}


@policy_loss(
    "steer",
    paper="Stabilizing Token-level Entropy-changE via Reweighting",
    parity="zz-haooo/STEER@b31df71:verl/trainer/ppo/core_algos.py",
    options=SteerOptions,
    prepare=prepare_steer,
    dual_clip=3.0,
    may_dual_clip=True,
    test="tests/trainers/test_steer.py::test_steer",
    limits="weights compare the tokens of the update, the release's those of a micro-batch",
)
def steer(
    ratio: Tensor, advantage: Tensor, steered: Tensor, low: float, high: float, dual: float
) -> tuple[Tensor, Tensor]:
    """PPO-clip times a weight from ``|A / p_old p (1 - p) (log p + H)|``, the predicted change of entropy."""
    from agentgym.trainers.losses.policy import ppo_clip

    loss, was_clipped = ppo_clip(ratio, advantage, low, high, dual)
    return loss * steered, was_clipped
