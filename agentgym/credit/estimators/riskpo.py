"""RiskPO: bundle the answers to several tasks, and train bundles by a measure of risk in place of the mean.

Source: "RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training"
(``verl/trainer/ppo/core_algos.py``, ``compute_grpo_bundle_rvar_outcome_advantage_quantile_tracking``, and the quantile
tracking of ``ray_trainer.py``). The k-th members of several groups form a bundle. Its score is the sum of their
returns, so that groups whose members are all right or all wrong differ from others, too. Scores above the upper
quantile earn no more than it; with the mixed measure, scores below the lower one count more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import FLAT, group_statistics, per_trajectory, returns_to_go, trajectories
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Count, NonNegative, Range

EPS = 1e-6
Level = Annotated[float, Range(above=0, below=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskpoOptions(Options):
    """Keys of RiskPO."""

    kind: Literal["riskpo"] = "riskpo"
    bundle_size: Count = 5
    """Number of groups that a bundle takes a member of; the last bundles of a batch may have fewer."""
    low: Level = 0.2
    """Level of the lower quantile."""
    high: Level = 0.9
    """Level of the upper quantile. Released scripts have 0.8 and 0.9. Successes rarer than ``1 - high`` earn little."""
    tail_weight: NonNegative = 1.5
    """Weight of the scores below the lower quantile beside those between both, the paper's omega; 0 leaves them out."""
    quantiles: Literal["tracked", "bundle", "both"] = "tracked"
    """Quantiles of the scores of all batches so far, of the bundle's own, or the mean of both."""
    tracking_rate: NonNegative = 0.1
    """Step of the tracked quantiles, in units of the score."""
    baseline: Literal["mean", "none", "natural"] = "mean"
    """Subtracted from the measure: its mean over the bundles of the same groups (ours), nothing, or its largest value,
    as in the release. With the last, no advantage is above 0."""
    normalise: bool = True
    """Divide by the standard deviation of the bundle's scores; where they are equal, nothing is divided."""

    def check_together(self) -> None:
        self.check(is_ok=self.low < self.high, message=f"low must be below high, got {self.low} and {self.high}")


@estimator(
    "riskpo",
    paper="RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training",
    parity="RTkenny/RiskPO@65ec40c:verl/trainer/ppo/core_algos.py",
    compares_groups=True,
    limits="the mean is subtracted, since under the release's baseline=natural no advantage is above 0; quantiles are "
    "tracked from the first batch in which they differ, the release's from the first",
    test="tests/credit/test_riskpo.py::test_riskpo",
)
def riskpo(
    table: TurnTable, memory: Mapping[str, float], options: RiskpoOptions = RiskpoOptions()
) -> tuple[TurnAdvantages, Mapping[str, float]]:
    """``A = (w CVaR + RVaR) / (w + 1) - baseline`` of a bundle's score s, for each of its members.

    ``RVaR = (min(max(s, q_low), q_high) - q_low) / (high - low)`` and ``CVaR = min(s - q_low, 0) / low``. The quantiles
    are those of the bundles' scores, tracked in ``memory`` over batches: ``q <- q + rate (level - share below q)``. The
    k-th bundle of some groups has the k-th member of each. A group with fewer members begins again with its first, and
    a member's advantage is the mean over its bundles.

    Args:
        table: the turns of the batch; groups are bundled in their order.
        memory: the tracked quantiles ``low`` and ``high``, empty up to the first batch in which they differ.
        options: levels, weight and baseline.

    Example (two groups of two; the bundles have the scores 2 and 0):
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [1.0], [0.0]], group_of_trajectory=[0, 0, 1, 1])
        >>> credited, tracked = riskpo(table, {}, RiskpoOptions(normalise=False))
        >>> np.round(credited.advantage, 4).tolist()
        [1.0, -1.0, 1.0, -1.0]
        >>> {name: round(value, 6) for name, value in tracked.items()}
        {'low': 0.4, 'high': 1.8}
    """
    view = trajectories(table)
    returns = per_trajectory(table, table.reward)
    levels = {"low": options.low, "high": options.high}
    bundles = list(_bundles(view.group, options.bundle_size))
    scores = [returns[members].sum(axis=1) for members in bundles]
    measured = [_measure(score, memory, options) for score in scores]
    if options.baseline == "mean":
        measured = [value - value.mean() for value in measured]
    total, count = np.zeros(len(returns)), np.zeros(len(returns))
    for members, score, value in zip(bundles, scores, measured, strict=True):
        std = group_statistics(score, np.zeros(len(score), dtype=np.int64)).std[0]
        np.add.at(total, members, (value / (std + EPS) if options.normalise and std >= FLAT else value)[:, None])
        np.add.at(count, members, 1.0)
    advantage = total / np.maximum(count, 1.0)
    credited = TurnAdvantages(advantage=advantage[view.of_row], return_to_go=returns_to_go(table, 1.0))
    every = np.concatenate(scores) if scores else np.zeros(0)
    if not len(every):
        return credited, memory
    if not memory:
        began = {name: float(np.quantile(every, level)) for name, level in levels.items()}
        # from equal quantiles, as of a batch that fails throughout, they move apart by less than the step a batch, and
        # until they have, no success earns anything
        return credited, began if began["low"] < began["high"] else memory
    moved = {
        name: memory[name] + options.tracking_rate * (level - float((every < memory[name]).mean()))
        for name, level in levels.items()
    }
    return credited, moved


def _bundles(group: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the bundles of each ``size`` groups, ``[K, size]`` trajectories."""
    groups = np.unique(group)
    for at in range(0, len(groups), size):
        members = [np.flatnonzero(group == one) for one in groups[at : at + size]]
        longest = max(map(len, members))
        yield np.stack([np.resize(one, longest) for one in members], axis=1)


def _measure(score: Floats, tracked: Mapping[str, float], options: RiskpoOptions) -> Floats:
    """Return the measure of risk of each bundle of some groups, ``[K]``; ``baseline=natural`` is subtracted here."""
    low, high = np.quantile(score, options.low), np.quantile(score, options.high)
    if tracked and options.quantiles != "bundle":
        share = 1.0 if options.quantiles == "tracked" else 0.5
        low, high = (share * tracked[name] + (1 - share) * own for name, own in (("low", low), ("high", high)))
    between = np.maximum(score - low, 0) - np.maximum(score - high, 0)
    if options.baseline == "natural":
        between += low - high
    between /= options.high - options.low + EPS
    below = np.minimum(score - low, 0) / (options.low + EPS)
    return np.asarray((options.tail_weight * below + between) / (options.tail_weight + 1), dtype=np.float64)
