"""DPH-RL: hold the policy near the start policy by a mass-covering divergence on that policy's own samples.

Source: "The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in Reinforcement Learning with
Verifiable Reward" (``verl/trainer/ppo/core_algos.py``, ``js_low_var`` and ``kl_penalty``, and ``dp_actor.py``). The
usual KL to the start policy is measured on samples of the trained one, which does not miss what it has forgotten.
Samples of the start policy do: the replay ``start_samples`` keeps them, and the token mask ``dph_samples`` leaves their
policy loss out, as the release does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentgym.plugins import Options
from agentgym.settings import NonNegative
from agentgym.trainers.losses.component import regulariser, token_mask

if TYPE_CHECKING:
    from torch import Tensor

PAPER = "The Choice of Divergence: A Neglected Key to Mitigating Diversity Collapse in RLVR (DPH-RL)"


@dataclass(frozen=True, slots=True, kw_only=True)
class DphOptions(Options):
    """Keys of DPH-RL's divergence."""

    off_at_0 = "coef"
    kind: Literal["dph"] = "dph"
    coef: NonNegative = 0.05
    """Weight of the divergence; the release's scripts have 0.01 to 0.05 for forward_kl and 0.05 to 0.2 for js."""
    divergence: Literal["forward_kl", "js"] = "forward_kl"
    """``forward_kl``: KL(start || policy). ``js``: the Jensen-Shannon divergence by its generator, twice its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DphSamplesOptions(Options):
    """Keys of the mask; it has none."""

    kind: Literal["dph_samples"] = "dph_samples"


def stored(replayed: Tensor, policy_version: Tensor) -> Tensor:
    """Return True for tokens of replayed trajectories that the start policy sampled, ``[M]``."""
    return (replayed > 0) & (policy_version == 0)


@regulariser(
    "dph",
    paper=PAPER,
    parity="seamoke/DPH-RL@139a9b2:verl/trainer/ppo/core_algos.py",
    options=DphOptions,
    test="tests/trainers/test_dph.py::test_dph",
    limits="needs the replay start_samples; its mean is over all tokens of an update, the release's over stored ones",
)
def dph(logprob: Tensor, logprob_ref: Tensor, replayed: Tensor, policy_version: Tensor, options: DphOptions) -> Tensor:
    """Return ``f(pi / pi_start)`` on stored samples of the start policy, 0 on other tokens, ``[N]``.

    ``f(u) = u - 1 - log u`` for the forward KL, and ``u log u - (u + 1) log((u + 1) / 2)`` for JS. The log-ratio is
    limited to ±20 and the forward KL to 10.
    """
    import torch

    from agentgym.trainers.losses.ratios import clamped
    from agentgym.trainers.losses.regularisers import kl

    if options.divergence == "forward_kl":
        value = kl(logprob_ref, logprob)
    else:
        log_ratio = clamped(logprob - logprob_ref)
        ratio = log_ratio.exp()
        value = ratio * log_ratio - (ratio + 1) * ((ratio + 1) / 2).log()
    return torch.where(stored(replayed, policy_version), value, 0.0)


@token_mask(
    "dph_samples",
    paper=PAPER,
    status="reproduced",
    options=DphSamplesOptions,
    effect="leave_out",
    test="tests/trainers/test_dph.py::test_stored_samples_have_no_policy_loss",
)
def dph_samples(replayed: Tensor, policy_version: Tensor) -> Tensor:
    """Mark the tokens of stored samples of the start policy, which :func:`dph` alone trains, ``[M]``."""
    return stored(replayed, policy_version)
