"""Modulators that use the policy's entropy: EMPG per turn, AEPO per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import modulator
from agentgym.credit.parts import Modulated
from agentgym.credit.statistics import FLAT, ends_of_trajectories, mean_over_tokens, token_rows
from agentgym.credit.table import Floats, TurnTable
from agentgym.plugins import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class EmpgOptions(Options):
    """Keys of EMPG."""

    kind: Literal["empg"] = "empg"
    k: float = 1.0
    """Strength with which confident turns are amplified and uncertain ones damped."""
    k_future: float = 1.0
    """The paper's k', in the bonus for leading to a confident turn."""
    zeta: float = 0.05
    """Weight of that bonus (0.05 in the port, 0.1 in the paper's listing)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AepoOptions(Options):
    """Keys of AEPO's advantage."""

    kind: Literal["aepo_advantage"] = "aepo_advantage"
    scale: float = 0.2
    off_at_0 = "scale"


@modulator(
    "empg",
    paper="Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents",
    status="reproduced",
    columns=("entropy",),
    granularity="turn",
)
def empg(table: TurnTable, advantage: Floats, options: EmpgOptions = EmpgOptions()) -> Modulated:
    """``A g(H_t) + zeta f(H_{t+1})``, minus its mean over all turns of the batch.

    H is the turn's entropy, min-max scaled over all turns of the batch. ``g = exp(-k H) / mean exp(-k H)``;
    ``f = exp(-k' H_{t+1})``, and 0 on a trajectory's last turn. Needs the column ``entropy``, in nats. It is the
    entropy of the sampling policy, so no gradient flows through it. A value that is not finite is replaced by the mean
    of the others.

    Source: "Harnessing Uncertainty: Entropy-Modulated Policy Gradients for Long-Horizon LLM Agents", the formulas and
    not the listing (ARLArena's port).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0, 0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(entropy=[[0.2, 1.0], [0.6, 0.4]])
        >>> np.round(empg(table, np.array([1.0, 1.0, -1.0, -1.0])).advantage, 6).tolist()
        [1.463248, 0.526479, -0.850252, -1.139475]
    """
    table.require("entropy", by="empg")
    assert table.entropy is not None
    if not len(table):
        return Modulated(advantage=advantage)
    entropy = _finite(table.entropy)
    low, high = float(entropy.min()), float(entropy.max())
    scaled = (entropy - low) / (high - low + 1e-8)
    # Dividing by the mean keeps the average gain at 1, so that EMPG moves credit between turns and does not add any.
    confidence = np.exp(-options.k * scaled)
    gain = confidence / (confidence.mean() + 1e-8)
    ahead = np.exp(-options.k_future * np.append(scaled[1:], 0.0))
    future = np.where(ends_of_trajectories(table), 0.0, ahead)
    modulated = advantage * gain + options.zeta * future
    return Modulated(advantage=modulated - modulated.mean())


@modulator(
    "aepo_advantage",
    paper="Agentic Entropy-Balanced Policy Optimization",
    parity="multi-agent-deep-research/ARPO@81e3a5d:AEPO/verl_aepo_entropy/verl/trainer/ppo/core_algos.py",
    columns=("num_tokens", "token_entropy"),
    granularity="token",
)
def aepo_advantage(
    table: TurnTable,
    advantage: Floats,
    token_advantage: Floats | None = None,
    options: AepoOptions = AepoOptions(),
) -> Modulated:
    """``A (1 + scale z(H))`` per token, with z over all sampled tokens of the batch.

    ``z = (H - mean) / std`` with ``ddof=1``; it is 0 if all tokens have the same entropy. Needs the columns
    ``num_tokens`` and ``token_entropy``. An entropy that is not finite is replaced by the mean of the others. The
    released code takes mean and deviation over a micro-batch.

    Args:
        table: the turns of the batch, N turns with M sampled tokens.
        advantage: the advantage of each turn, ``[N]``.
        token_advantage: the estimator's advantage of each token, ``[M]``; by default that of its turn.
        options: the strength of the modulation.

    Source: "Agentic Entropy-Balanced Policy Optimization" (``verl/trainer/ppo/core_algos.py``,
    ``compute_policy_loss_entropy_balanced_clipping``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1]], group_of_trajectory=[0])
        >>> table = table.with_columns(num_tokens=[4], token_entropy=[0.1, 0.2, 1.5, 0.2])
        >>> np.round(aepo_advantage(table, np.array([1.0])).token_advantage, 6).tolist()
        [0.880299, 0.910224, 1.299253, 0.910224]
    """
    table.require("num_tokens", "token_entropy", by="aepo_advantage")
    assert table.token_entropy is not None
    entropy = _finite(table.token_entropy)
    of_token = advantage[token_rows(table)] if token_advantage is None else token_advantage
    std = float(entropy.std(ddof=1)) if len(entropy) > 1 else 0.0
    score = (entropy - entropy.mean()) / std if std >= FLAT else np.zeros_like(entropy)
    modulated = of_token * (1.0 + options.scale * score)
    return Modulated(advantage=mean_over_tokens(table, modulated), token_advantage=modulated)


def _finite(entropy: Floats) -> Floats:
    """Replace entropies that are not finite by the mean of the others."""
    is_finite = np.isfinite(entropy)
    return (
        entropy
        if is_finite.all()
        else np.where(is_finite, entropy, entropy[is_finite].mean() if is_finite.any() else 0.0)
    )
