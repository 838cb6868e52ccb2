"""Estimators that keep reward parts apart: GDPO normalises each part, MT-GRPO separates turn rewards and outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.parts import outcomes, role_reward
from agentgym.credit.statistics import ends_of_trajectories, per_trajectory, returns_to_go, trajectories, whiten, zscore
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.errors import ConfigError
from agentgym.plugins import Options
from agentgym.types import RewardRole

EPS = 1e-4
TOKEN_EPS = 1e-6
"""Epsilon of GDPO in the release's verl trainer; its TRL trainer uses :data:`EPS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GdpoOptions(Options):
    """Keys of GDPO."""

    kind: Literal["gdpo"] = "gdpo"
    weights: Mapping[str, float] = field(default_factory=dict)
    """Weight of each reward part by name; the weight of other parts is 1."""
    batch_norm: Literal["trajectory", "token", "off"] = "trajectory"
    """Unit of the normalisation over the batch: trajectories (paper) or sampled tokens (verl); ``off``: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MtGrpoOptions(Options):
    """Keys of MT-GRPO."""

    kind: Literal["mt_grpo"] = "mt_grpo"
    turn_weight: float = 1.0
    """The paper's lambda (``turn_advantage_coef``)."""
    turn_credit: Literal["each", "first"] = "each"
    """``each``: compare the rewards of turns with the same index (our extension). ``first``: credit the first turn with
    the trajectory's sum of turn rewards (the released code). With two turns both are the same."""


@estimator(
    "gdpo",
    paper="Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization",
    parity="NVlabs/GDPO@b080e63:verl-GDPO/verl/trainer/ppo/ray_trainer.py",
    options=GdpoOptions,
    compares_groups=True,
    keeps_parts=True,
    columns=lambda options: ("part_values", *(("num_tokens",) if options.batch_norm == "token" else ())),
)
def gdpo(
    table: TurnTable, *, weights: Mapping[str, float] | None = None, batch_norm: str = "trajectory"
) -> TurnAdvantages:
    """``A_i = BN(sum_j w_j (R_ij - mean_j) / (std_j + eps))``: normalise each reward part j within the group first.

    ``ddof=1``. A part that is NaN or constant in a group contributes 0. BN is one of:

    * ``trajectory``: ``(s - mean) / (std + 1e-4)`` over all trajectories of the batch, with ``eps=1e-4`` (the release's
      TRL trainer);
    * ``token``: verl's whitening over sampled tokens (column ``num_tokens``), with ``eps=1e-6`` (its verl trainer);
    * ``off``: the identity.

    Args:
        table: the turns, with reward parts (``part_values``).
        weights: weights of parts by name; the weight of other parts is 1.
        batch_norm: ``trajectory``, ``token`` or ``off``.

    Raises:
        ConfigError: the table has no parts, or ``weights`` names a part that does not exist.

    Source: "Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization"
    (NVlabs/GDPO).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0]] * 4, group_of_trajectory=[0] * 4)
        >>> table = table.with_parts(right=("outcome", [1, 0, 0, 0]), short=("format", [0, 1, 1, 0]))
        >>> np.round(gdpo(table).advantage, 4).tolist()
        [0.6894, 0.3981, 0.3981, -1.4856]
    """
    part_values = table.column("part_values", by="gdpo")
    weights = {} if weights is None else weights
    if unknown := sorted(set(weights) - set(table.part_names)):
        raise ConfigError(f"gdpo: weights name parts {unknown}; the table has {', '.join(table.part_names)}")
    view = trajectories(table)
    total = np.zeros(len(view.first))
    eps = TOKEN_EPS if batch_norm == "token" else EPS
    # Normalising the sum instead would let the part with the largest variance decide, and equal sums of different
    # parts would get equal advantages. That is the paper's point.
    for name, column in zip(table.part_names, part_values.T, strict=True):
        score = per_trajectory(table, np.nan_to_num(column))
        total += weights.get(name, 1.0) * zscore(score, view.group, eps=eps)
    if batch_norm == "trajectory":
        total = zscore(total, np.zeros_like(view.group), eps=EPS)
    advantage = total[view.of_row]
    if batch_norm == "token":
        table.require("num_tokens", by="gdpo with batch_norm='token'")
        advantage = whiten(advantage, table.num_tokens)
    return TurnAdvantages(advantage=advantage, return_to_go=returns_to_go(table, 1.0))


@estimator(
    "mt_grpo",
    paper="Reinforcing Multi-Turn Reasoning in LLM Agents via Turn-Level Credit Assignment",
    parity="SiliangZeng/Multi-Turn-RL-Agent@7dbdd08:verifiers/trainers/mt_grpo_env_trainer.py",
    options=MtGrpoOptions,
    limits="the paper has two turns; with more, turn_credit=first is the released code and each is ours",
    compares_groups=True,
    keeps_parts=True,
    granularity="turn",
    columns=("part_values",),
)
def mt_grpo(table: TurnTable, *, turn_weight: float = 1.0, turn_credit: str = "each") -> TurnAdvantages:
    """``A_t = A^O + turn_weight A^T_t`` on turns before the last, ``A^O`` on the last turn, the answer.

    ``A^O`` is the z-score of the trajectory's outcome within its group. ``A^T_t`` is the z-score of the turn's other
    reward parts among all members of the group at index t (``ddof=1``, ``eps=1e-4``); a member without a turn t counts
    as 0. A trajectory of one turn used no tool and gets the z-score of its whole reward. The paper has two turns; the
    extension to more turns is ours.

    Args:
        table: the turns, with reward parts (``part_values``).
        turn_weight: the paper's lambda.
        turn_credit: ``each`` compares turns of the same index. ``first`` gives the first turn the z-score of the sum
            of all turn rewards and the other turns nothing, as the released code does with several calls.

    Source: ``verifiers/trainers/mt_grpo_env_trainer.py``, estimator "aae".

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0], [0, 0], [0]], group_of_trajectory=[0] * 3)
        >>> table = table.with_parts(
        ...     used_tool=("process", [[0.5, 0], [0.3, 0], [0]]), right=("outcome", [[0, 1], [0, 0], [0]]))
        >>> np.round(mt_grpo(table).advantage, 4).tolist()
        [2.0813, 1.1545, -0.4448, -0.5773, -0.7558]
    """
    view = trajectories(table)
    outcome = zscore(outcomes(table), view.group, eps=EPS)
    of_turn = table.reward - role_reward(table, RewardRole.OUTCOME)
    own = _sum_on_first_turn(table, of_turn) if turn_credit == "first" else _by_turn_index(table, of_turn)
    own = np.where(ends_of_trajectories(table), 0.0, own)
    whole = zscore(per_trajectory(table, table.reward), view.group, eps=EPS)
    advantage = np.where(view.num_turns[view.of_row] == 1, whole[view.of_row], outcome[view.of_row] + turn_weight * own)
    return TurnAdvantages(advantage=advantage, return_to_go=returns_to_go(table, 1.0))


def _sum_on_first_turn(table: TurnTable, value: Floats) -> Floats:
    view = trajectories(table)
    score = zscore(per_trajectory(table, value), view.group, eps=EPS)
    return np.where(table.turn == 0, score[view.of_row], 0.0)


def _by_turn_index(table: TurnTable, value: Floats) -> Floats:
    """Return the z-score of each turn's value among the values of all members of its group at the same index."""
    view = trajectories(table)
    result = np.zeros(len(table))
    for index in range(int(table.turn.max(initial=-1)) + 1):
        rows = np.flatnonzero(table.turn == index)
        # Members whose episode is over stay in the comparison with 0, as in the release.
        at_index = np.zeros(len(view.first))
        at_index[view.of_row[rows]] = value[rows]
        result[rows] = zscore(at_index, view.group, eps=EPS)[view.of_row[rows]]
    return result
