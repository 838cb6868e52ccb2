"""OPMD's baselines: the group's mean return, or the soft maximum of its returns at a temperature.

Online policy mirror descent solves, at every step, for the policy that maximises the return less ``tau`` times the KL
to the policy that sampled. The log of its partition function is the soft maximum. The losses ``opmd`` and
``opmd_squared`` train on the advantages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import dense, group_statistics, per_trajectory, returns_to_go, trajectories
from agentgym.credit.table import Floats, Ints, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class OpmdBaselineOptions(Options):
    """Keys of OPMD's baseline."""

    kind: Literal["opmd"] = "opmd"
    baseline: Literal["mean", "logavgexp"] = "logavgexp"
    """``logavgexp``: ``tau log mean exp(S / tau)``, which is above the mean. ``mean``: as in ``dr_grpo``."""
    tau: Positive = 1.0
    """Temperature of ``logavgexp``: the larger, the nearer to the mean. Set the loss's ``tau`` alike."""


@estimator(
    "opmd",
    paper="Kimi k1.5: Scaling Reinforcement Learning with LLMs",
    parity="shiweijiezero/R3L@d503f6c:trinity/algorithm/advantage_fn/opmd_advantage.py",
    by_authors=False,
    options=OpmdBaselineOptions,
    compares_groups=True,
)
def opmd(table: TurnTable, *, baseline: str = "logavgexp", tau: float = 1.0) -> TurnAdvantages:
    """``A_i = S_i - B`` with ``B = tau log mean exp(S / tau)`` over the group, or its mean.

    A group of one gets nothing; the compared code gives it the baseline 0.

    Args:
        table: the turns of the batch.
        baseline: ``logavgexp`` or ``mean``.
        tau: temperature of ``logavgexp``.

    Source: "Kimi k1.5: Scaling Reinforcement Learning with LLMs", section 2.3.2; "Trinity-RFT: A General-Purpose and
    Unified Framework for Reinforcement Fine-Tuning of Large Language Models", appendix A (``opmd_advantage.py``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0]], group_of_trajectory=[0, 0])
        >>> np.round(opmd(table).advantage, 6).tolist()
        [0.379885, -0.620115]
        >>> opmd(table, baseline="mean").advantage.tolist()
        [0.5, -0.5]
    """
    view = trajectories(table)
    score = per_trajectory(table, table.reward)
    if baseline == "mean":
        level = group_statistics(score, view.group).mean
    else:
        level = _soft_maximum(score, dense(view.group), tau)
    return TurnAdvantages(advantage=(score - level)[view.of_row], return_to_go=returns_to_go(table, 1.0))


def _soft_maximum(score: Floats, codes: Ints, tau: float) -> Floats:
    """Return ``tau log mean exp(score / tau)`` of each trajectory's group ``[I]``; large scores do not overflow."""
    highest = np.full(int(codes.max(initial=-1)) + 1, -np.inf)
    np.maximum.at(highest, codes, score)
    peak = highest[codes]
    total = np.bincount(codes, weights=np.exp((score - peak) / tau))[codes]
    return np.asarray(peak + tau * np.log(total / np.bincount(codes)[codes]), dtype=np.float64)
