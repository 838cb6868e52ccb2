"""Regularisers, terms per token ``[N]`` that are added to the policy loss: KL, distillation, entropy, EPO, LLDS."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from agentgym.trainers.losses.options import EpoOptions, KlConvexOptions, KlFirstOptions, LldsOptions
from agentgym.trainers.losses.ratios import clamped, sum_per_unit
from agentgym.trainers.types import StateDict

KlEstimator = Literal["k1", "k2", "k3", "k3+"]


def kl(logprob: Tensor, logprob_ref: Tensor, estimator: KlEstimator = "k3") -> Tensor:
    """Estimate KL(policy || reference) per token as a loss, ``[N]``.

    ``k1 = logp - ref``, ``k2 = (logp - ref)^2 / 2``, ``k3 = exp(d) - d - 1`` with ``d = ref - logp`` clamped to ±20 and
    the result to ±10. ``k1`` and ``k3+`` have the gradient of k2, whose expectation is the gradient of the KL. That of
    ``logp - ref`` is 1 for every token, 0 in expectation, so on its own it would hold the policy nowhere.

    Source: "Approximating KL Divergence" (J. Schulman); the gradients in verl ``kl_penalty``, where our k1 is ``k1+``.

    Example:
        >>> [round(kl(torch.tensor(-1.0), torch.tensor(-1.2), k).item(), 6) for k in ("k1", "k2", "k3", "k3+")]
        [0.2, 0.02, 0.018731, 0.018731]
    """
    match estimator:
        case "k1":
            return _with_gradient_of_k2((logprob - logprob_ref).detach(), logprob, logprob_ref)
        case "k2":
            return (logprob - logprob_ref).square() / 2
        case "k3":
            difference = clamped(logprob_ref - logprob)
            return (difference.exp() - difference - 1).clamp(-10, 10)
        case "k3+":
            # On samples of the policy, the expected gradient of k3 is not that of the KL; that of k2 is.
            return _with_gradient_of_k2(kl(logprob.detach(), logprob_ref, "k3"), logprob, logprob_ref)


def _with_gradient_of_k2(value: Tensor, logprob: Tensor, logprob_ref: Tensor) -> Tensor:
    k2 = kl(logprob, logprob_ref, "k2")
    return k2 - k2.detach() + value


def kl_first(logprob: Tensor, logprob_ref: Tensor, turn_index: Tensor, options: KlFirstOptions) -> Tensor:
    """KL(policy || before RL) per token of the first ``num_turns`` turns of an episode, 0 on the others, ``[N]``.

    Source: "Training Language Models to Self-Correct via Reinforcement Learning", equation 3.

    Example:
        >>> new, base, turn = torch.tensor([-1.0, -1.0]), torch.tensor([-2.0, -2.0]), torch.tensor([0, 1])
        >>> kl_first(new, base, turn, KlFirstOptions(estimator="k1")).tolist()
        [1.0, 0.0]
    """
    return torch.where(turn_index < options.num_turns, kl(logprob, logprob_ref, options.estimator), 0.0)


def kl_convex(logprob: Tensor, logprob_old: Tensor, logprob_ref: Tensor, options: KlConvexOptions) -> Tensor:
    """Experimental: ``b KL(policy || before RL) + (1 - b) KL(policy || old)`` per token, ``[N]``.

    ``b`` is ``base_share``. The old policy is that of the ratio: the trainer's before the step, or with
    ``loss.mode=bypass`` the one that sampled.

    Source: "Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model" (the
    KL-convex policy constraint of ReMix).

    Example:
        >>> new, old, base = torch.tensor(-1.0), torch.tensor(-1.2), torch.tensor(-2.0)
        >>> round(kl_convex(new, old, base, KlConvexOptions(base_share=0.25, estimator="k1")).item(), 6)
        0.4
    """
    of_base, of_old = (kl(logprob, other, options.estimator) for other in (logprob_ref, logprob_old))
    return options.base_share * of_base + (1 - options.base_share) * of_old


def distill(logprob: Tensor, logprob_ref: Tensor) -> Tensor:
    """Reverse KL to a teacher, per token sampled by the policy: the value of k1 with the gradient of k2, ``[N]``.

    Both are unbiased for ``KL(policy || teacher)``. The gradient is a policy gradient in which the advantage of each
    token is ``ref - logp``.

    Source: "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes" (GKD), with reverse KL
    and all data sampled by the student. The paper sums over the vocabulary; here the sampled token is an estimate.

    Example:
        >>> logprob = torch.tensor(-1.0, requires_grad=True)
        >>> loss = distill(logprob, torch.tensor(-1.5))
        >>> round(loss.item(), 6), torch.autograd.grad(loss, logprob)[0].item()
        (0.5, 0.5)
    """
    return kl(logprob, logprob_ref, "k1")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntropyHistory:
    """EPO's memory: for each turn index, the mean over training steps of its mean token entropy.

    As in the released code, it includes the current step, at the weights before the step's first update.

    Example:
        >>> history = EntropyHistory().after({0: 1.0}).after({0: 2.0, 1: 0.5})
        >>> history.num_steps, history.mean(0), history.mean(1), history.mean(7)
        (2, 1.5, 0.5, None)
    """

    num_steps: int = 0
    sums: Mapping[int, tuple[float, int]] = field(default_factory=dict)

    def mean(self, turn: int) -> float | None:
        """Return the turn's historical mean in nats, None for a turn that has not occurred."""
        total, count = self.sums.get(turn, (0.0, 0))
        return total / count if count else None

    def after(self, entropy_of_turn: Mapping[int, float]) -> EntropyHistory:
        """Return the history with one more step."""
        sums = dict(self.sums)
        for turn, entropy in entropy_of_turn.items():
            total, count = sums.get(turn, (0.0, 0))
            sums[turn] = (total + entropy, count + 1)
        return EntropyHistory(num_steps=self.num_steps + 1, sums=sums)

    def after_tokens(self, parts: Sequence[Mapping[int, tuple[float, int]]]) -> EntropyHistory:
        """Return the history with one more step, whose tokens several parts have; without tokens it stays the same.

        Args:
            parts: for each part its :func:`entropy_sums`.

        Example:
            >>> history = EntropyHistory().after_tokens([{0: (1.0, 1), 2: (0.5, 1)}, {0: (3.0, 1)}])
            >>> history.mean(0), history.mean(1), history.mean(2)
            (2.0, None, 0.5)
        """
        turns = sorted({turn for part in parts for turn in part})
        totals = {turn: [part.get(turn, (0.0, 0)) for part in parts] for turn in turns}
        means = {turn: sum(total for total, _ in of) / sum(count for _, count in of) for turn, of in totals.items()}
        return self.after(means) if means else self

    def to_dict(self) -> StateDict:
        """Return plain dicts and numbers, which JSON can represent."""
        return {"num_steps": self.num_steps, "sums": {str(turn): list(pair) for turn, pair in self.sums.items()}}

    @classmethod
    def from_dict(cls, tree: StateDict) -> EntropyHistory:
        """Return the history that :meth:`to_dict` wrote."""
        sums = {int(turn): (float(total), int(count)) for turn, (total, count) in tree.get("sums", {}).items()}
        return cls(num_steps=int(tree.get("num_steps", 0)), sums=sums)


def entropy_sums(turn_index: Tensor, entropy: Tensor) -> dict[int, tuple[float, int]]:
    """Return for each turn index the sum of its tokens' entropies and their number.

    Args:
        turn_index: turn of each token in its episode, ``[M]``.
        entropy: entropy of each token in nats, ``[M]``.

    Example:
        >>> entropy_sums(torch.tensor([0, 0, 2]), torch.tensor([1.0, 3.0, 0.5]))
        {0: (4.0, 2), 2: (0.5, 1)}
    """
    counts = torch.bincount(turn_index).tolist()
    sums = torch.bincount(turn_index, weights=entropy.double()).tolist()
    return {turn: (total, count) for turn, (total, count) in enumerate(zip(sums, counts, strict=True)) if count}


def self_distill(logprob: Tensor, logprob_teacher: Tensor) -> Tensor:
    """Experimental: the reverse KL to the policy that sees a demonstration, as :func:`distill`; 0 without a teacher.

    Args:
        logprob: ``[N]``.
        logprob_teacher: ``[N]``, NaN for tokens of episodes that had no demonstration.

    Source: "Self-Distillation Enables Continual Learning".

    Example:
        >>> self_distill(torch.tensor([-1.0, -1.0]), torch.tensor([-0.5, float("nan")])).tolist()
        [-0.5, 0.0]
    """
    known = ~logprob_teacher.isnan()
    return torch.where(known, distill(logprob, torch.where(known, logprob_teacher, logprob.detach())), 0.0)


def entropy_bonus(entropy: Tensor) -> Tensor:
    """Return the entropies themselves; the loss subtracts their average.

    Source: "Asynchronous Methods for Deep Reinforcement Learning".
    """
    return entropy


def epo_phase(step: int, phase_steps: int) -> float:
    """Return EPO's weight beta of the smoothing penalty at ``step`` of ``phase_steps``, counted from 0.

    As in the released code, the weight has a jump at the middle. Steps after the last have the weight of the last.

    Example:
        >>> [round(epo_phase(step, 150), 6) for step in (0, 37, 75, 76, 100, 150, 200)]
        [1.0, 0.874563, 0.827067, 0.768632, 0.294304, 0.03983, 0.03983]
    """
    if not phase_steps:
        return 1.0
    step, half = max(0, min(step, phase_steps)), phase_steps // 2
    if step <= half:
        return 1 - 0.2 * (1 - math.exp(-2 * step / half)) if half else 1.0
    return 0.8 * math.exp(-3 * (step - half) / (phase_steps - half))


def epo_penalty(entropy: Tensor, historical: Tensor, options: EpoOptions) -> Tensor:
    """EPO's penalty per token for entropies outside the band around the turn's historical entropy h, ``[N]``.

    With ``has_gradient`` it is the hinge ``alpha (relu(H - high h) + relu(low h - H))``. Without, it is the released
    code's constant ``alpha`` outside the band, which has no gradient. Without a history it is 0.

    Args:
        entropy: entropy H of each token in nats, ``[N]``.
        historical: mean entropy of the token's turn over training steps ``[N]``, NaN without a history.
        options: the band and alpha.

    Example:
        >>> entropy, historical = torch.tensor([0.5, 1.0, 2.5, 1.9]), torch.ones(4)
        >>> [round(x, 4) for x in epo_penalty(entropy, historical, EpoOptions(has_gradient=False)).tolist()]
        [0.0, 0.0, 0.1, 0.0]
        >>> [round(x, 4) for x in epo_penalty(entropy, historical, EpoOptions()).tolist()]
        [0.0, 0.0, 0.05, 0.0]
    """
    known = ~historical.isnan()
    level = historical.nan_to_num()
    if options.has_gradient:
        out = torch.relu(entropy - options.high * level) + torch.relu(options.low * level - entropy)
    else:
        out = ((entropy >= options.high * level) | (entropy <= options.low * level)).to(entropy.dtype)
    return options.alpha * torch.where(known, out, 0.0)


def epo(entropy: Tensor, historical: Tensor, options: EpoOptions, phase: float = 1.0) -> Tensor:
    """EPO's term per token: ``-lambda (H - beta c penalty)``, ``[N]``.

    Source: "EPO: Entropy-regularized Policy Optimization for LLM Agents Reinforcement Learning"
    (``verl/workers/actor/dp_actor.py``).

    Example:
        >>> term = epo(torch.tensor([0.5, 1.0, 2.5, 1.9]), torch.ones(4), EpoOptions(has_gradient=False))
        >>> round(term.mean().item(), 5)
        -0.00145
    """
    return -options.coef * (entropy - phase * options.smoothing * epo_penalty(entropy, historical, options))


def llds(
    logprob: Tensor, logprob_old: Tensor, advantage: Tensor, row: Tensor, turn: Tensor, options: LldsOptions
) -> Tensor:
    """Return LLDS's term per token, ``relu(d)`` with ``d = logp_old - logp``, before division and coefficient, ``[N]``.

    A token counts if its advantage is at least 0 and ``sum d > 0`` over such tokens of its turn, or of its row: only
    where the likelihood of good tokens has fallen. In the first update of a step d is 0, so LLDS needs at least two.

    Source: "On GRPO Collapse in Search-R1: The Lazy Likelihood-Displacement Death Spiral"
    (``verl/workers/actor/dp_actor.py``; the released script gates by turn).

    Example:
        >>> old = torch.tensor([-1.0, -0.5, -2.0, -1.0, -1.0, -1.0])
        >>> new = torch.tensor([-1.2, -0.4, -2.3, -0.5, -1.2, -1.0])
        >>> row, turn = torch.tensor([0, 0, 0, 1, 1, 1]), torch.tensor([0, 0, 1, 2, 3, 3])
        >>> [round(x, 1) for x in llds(new, old, torch.ones(6), row, turn, LldsOptions(gate="sequence")).tolist()]
        [0.2, 0.0, 0.3, 0.0, 0.0, 0.0]
        >>> [round(x, 1) for x in llds(new, old, torch.ones(6), row, turn, LldsOptions()).tolist()]
        [0.2, 0.0, 0.3, 0.0, 0.2, 0.0]
    """
    fall = logprob_old - logprob
    is_kept = advantage >= 0 if options.preserve_only_correct else torch.ones_like(advantage, dtype=torch.bool)
    # With advantages per token, a change of sign within a turn starts a new unit, as in the released code.
    unit = row if options.gate == "sequence" else torch.unique_consecutive(2 * turn + is_kept, return_inverse=True)[1]
    fell = sum_per_unit(torch.where(is_kept, fall.detach(), 0.0), unit) > 0
    # maximum() and not relu(): at d = 0 it has half the gradient, as in the released code.
    return torch.where(fell & is_kept, torch.maximum(fall, torch.zeros_like(fall)), 0.0)
