"""SPO: one rollout per task, with a running estimate of the task's success rate as its baseline; and RAE.

Source: "Single-stream Policy Optimization" and its code (verl-recipe ``spo/spo_ray_trainer.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import group_statistics, per_trajectory, returns_to_go, trajectories, whiten, zscore
from agentgym.credit.table import Ints, TurnAdvantages, TurnTable
from agentgym.errors import ConfigError
from agentgym.plugins import Options
from agentgym.settings import Fraction, Range

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


# ------------------------- RAE: role-conditioned advantages for self-play, each minus the running mean of its role
# Source: "SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn Reinforcement Learning"
# (``train_spiral.py``, ``spiral/utils.py``).


@dataclass(frozen=True, slots=True, kw_only=True)
class RaeOptions(Options):
    """Keys of RAE."""

    kind: Literal["rae"] = "rae"
    decay: Annotated[float, Range(at_least=0, below=1)] = 0.95
    gamma: Fraction = 1.0
    """Discount per turn of the same player: n of its turns before its last turn the advantage is ``A * gamma ** n``."""
    baseline_of: Literal["role", "task_role"] = "role"
    """One baseline per role (for a single game), or per task and role (column ``group_keys``)."""
    skip_zero: bool = True
    """Give turns of advantage 0 a ``loss_weight`` of 0, so that they do not enter the loss's denominator."""


@estimator(
    "rae",
    paper="SPIRAL: Self-Play on Zero-Sum Games Incentivizes Reasoning via Multi-Agent Multi-Turn RL",
    parity="spiral-rl/spiral@a02d0ed:train_spiral.py",
    granularity="turn",
    limits="one game per run",
    columns=lambda options: ("role", *(("group_keys",) if options.baseline_of == "task_role" else ())),
)
def rae(
    table: TurnTable, memory: Mapping[str, float], options: RaeOptions = RaeOptions()
) -> tuple[TurnAdvantages, Mapping[str, float]]:
    """``A = R - b`` with the role's baseline b *before* the game, then ``b <- decay b + (1 - decay) R``.

    R is the sum of a role's rewards in its trajectory; a trajectory may contain the turns of one role or of all. Games
    update b one after the other, so the order of the table matters. The advantages are not normalised. Needs the
    column ``role``.

    Example (three games, one trajectory per player):
        >>> table = TurnTable.from_lists(rewards=[[1], [-1], [1], [-1], [-1], [1]], group_of_trajectory=[0] * 6)
        >>> credited, baselines = rae(table.with_columns(role=[0, 1, 0, 1, 0, 1]), {})
        >>> np.round(credited.advantage, 4).tolist(), round(baselines["0"], 6)
        ([1.0, -1.0, 0.95, -0.95, -1.0975, 1.0975], 0.042625)
    """
    table.require("role", by="rae")
    if options.baseline_of == "task_role":
        table.require("group_keys", by="rae with baseline_of='task_role'")
    assert table.role is not None
    num_roles = int(table.role.max(initial=0)) + 1
    units, unit_of_row = np.unique(table.trajectory * num_roles + table.role, return_inverse=True)
    unit_of_row = unit_of_row.reshape(-1)
    returns = np.bincount(unit_of_row, weights=table.reward, minlength=len(units))
    group_of_unit = np.zeros(len(units), dtype=np.int64)
    group_of_unit[unit_of_row] = table.group
    updated = dict(memory)
    advantage = np.zeros(len(units))
    for index, unit in enumerate(units.tolist()):
        key = str(unit % num_roles)
        if options.baseline_of == "task_role" and table.group_keys is not None:
            key = f"{table.group_keys[int(group_of_unit[index])]}|{key}"
        before = updated.get(key, 0.0)
        advantage[index] = returns[index] - before
        updated[key] = options.decay * before + (1.0 - options.decay) * float(returns[index])
    of_row = advantage[unit_of_row] * options.gamma ** turns_from_end(unit_of_row)
    weight = np.where(of_row == 0, 0.0, 1.0) if options.skip_zero else None
    credited = TurnAdvantages(advantage=of_row, return_to_go=returns_to_go(table, 1.0), loss_weight=weight)
    return credited, updated


def turns_from_end(unit: Ints) -> Ints:
    """Return for each row the number of later rows of the same unit, shape ``[N]``.

    Example:
        >>> turns_from_end(np.array([0, 1, 0, 1, 0])).tolist()
        [2, 1, 1, 0, 0]
    """
    order = np.argsort(unit, kind="stable")
    count = np.bincount(unit) if len(unit) else np.zeros(0, dtype=np.int64)
    ends = np.cumsum(count)
    result = np.empty(len(unit), dtype=np.int64)
    result[order] = ends[unit[order]] - 1 - np.arange(len(unit))
    return result
