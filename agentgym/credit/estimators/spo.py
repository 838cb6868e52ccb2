"""SPO: one rollout per task, with a running estimate of the task's success rate as its baseline.

Source: "Single-stream Policy Optimization" and its code (verl-recipe ``spo/spo_ray_trainer.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import group_statistics, per_trajectory, returns_to_go, trajectories, whiten, zscore
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.errors import ConfigError
from agentgym.plugins import Options

Tracker = Mapping[str, tuple[float, float]]
"""Per task, (alpha, beta) of a Beta distribution over its success rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoOptions(Options):
    """Keys of SPO."""

    kind: Literal["spo"] = "spo"
    rho_min: float = 0.875
    rho_max: float = 0.96
    half_drift: float = 0.06
    """Drift of the policy at which the weight of earlier observations halves, in mean |difference of log-probs|."""
    whitening: Literal["trajectory", "token"] = "trajectory"
    """Unit of the normalisation over the batch. Advantages normalised by ``trajectory`` do not have mean 0 under a
    token-mean loss; those normalised by ``token`` (column ``num_tokens``) do."""

    def check_together(self) -> None:
        is_ok = 0 < self.rho_min <= self.rho_max < 1
        message = f"0 < rho_min <= rho_max < 1 must hold, got rho_min={self.rho_min} and rho_max={self.rho_max}"
        self.check(is_ok=is_ok, message=message)


def spo_prior(num_samples: int, num_successes: int, rho_min: float = 0.875) -> tuple[float, float]:
    """Return (alpha, beta) of a task from samples drawn before training, worth ``1 / (1 - rho_min)`` observations.

    Without samples both are 0.5, the Jeffreys prior.

    Example:
        >>> [round(x, 6) for x in spo_prior(8, 3)]
        [3.111111, 4.888889]
    """
    if num_samples == 0:
        return 0.5, 0.5
    worth = 1.0 / (1.0 - rho_min)
    alpha = worth * (num_successes + 0.5) / (num_samples + 1)
    return alpha, worth - alpha


@estimator(
    "spo",
    optional_columns=("drift",),
    paper="Single-stream Policy Optimization",
    parity="verl-project/verl-recipe@48ea0a7:spo/spo_ray_trainer.py",
    columns=lambda options: ("group_keys", *(("num_tokens",) if options.whitening == "token" else ())),
)
def spo(table: TurnTable, memory: Tracker, options: SpoOptions = SpoOptions()) -> tuple[TurnAdvantages, Tracker]:
    """``A_i = z(r_i - v)`` over the batch, where v is the task's success rate in ``memory`` *before* this batch.

    The memory is updated afterwards: ``alpha <- rho alpha + sum r`` and ``beta <- rho beta + sum (1 - r)`` with
    ``rho = clip(2^(-D / 0.06), 0.875, 0.96)``. D is the mean of the column ``drift`` over the task's rollouts; it is 0
    without the column and where it is not finite. Several rollouts of one task in a batch share v and rho. A new task
    starts at ``spo_prior(0, 0)``.

    Needs the column ``group_keys``, and returns in [0, 1].

    Raises:
        ConfigError: the column is missing, or a return is outside [0, 1].

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0]], group_of_trajectory=[0])
        >>> _, tracker = spo(table.with_columns(group_keys=["t"], drift=[0.03]), {"t": spo_prior(8, 3)})
        >>> [round(x, 6) for x in tracker["t"]]
        [3.722222, 4.277778]
    """
    group_keys = table.column("group_keys", by="spo")
    view = trajectories(table)
    reward = per_trajectory(table, table.reward)
    if len(reward) and not (reward.min() >= 0 and reward.max() <= 1):
        raise ConfigError(
            f"spo tracks success rates, so returns must lie in [0, 1], got {reward.min():g} to {reward.max():g}; "
            "leave shapers out or scale the rewards"
        )
    keys = [group_keys[group] for group in view.group.tolist()]
    rates = {key: alpha / (alpha + beta) for key in keys for alpha, beta in [memory.get(key, (0.5, 0.5))]}
    centred = reward - np.array([rates[key] for key in keys])
    if options.whitening == "token":
        table.require("num_tokens", by="spo with whitening='token'")
        advantage = whiten(centred[view.of_row], table.num_tokens)
    else:
        advantage = zscore(centred, np.zeros_like(view.group), eps=1e-8)[view.of_row]
    credited = TurnAdvantages(advantage=advantage, return_to_go=returns_to_go(table, 1.0))
    return credited, _visited(table, memory, options, dict(zip(view.group.tolist(), keys, strict=True)))


def _visited(table: TurnTable, tracker: Tracker, options: SpoOptions, keys: Mapping[int, str]) -> Tracker:
    view = trajectories(table)
    reward = per_trajectory(table, table.reward)
    drift = np.zeros(len(table)) if table.drift is None else np.where(np.isfinite(table.drift), table.drift, 0.0)
    # Forgetting follows the policy: the more it has changed since the last visit, the less old outcomes tell.
    of_group = group_statistics(drift[view.first], view.group).mean
    updated = dict(tracker)
    for group, key in keys.items():
        rows = view.group == group
        mean_drift = float(of_group[rows][0]) if key in tracker else 0.0
        rho = float(np.clip(2.0 ** (-mean_drift / options.half_drift), options.rho_min, options.rho_max))
        alpha, beta = updated.get(key, (0.5, 0.5))
        successes, trials = float(reward[rows].sum()), int(rows.sum())
        updated[key] = (rho * alpha + successes, rho * beta + trials - successes)
    return updated
