"""CAPO: a judge marks every wrong turn, and wrong turns earn less than the outcome of their episode.

Source: "CAPO: Towards Enhancing LLM Reasoning through Generative Credit Assignment". A model reads an episode once and
names all its wrong steps. Several such critiques vote (``judge.grades=all_faults``). The weights are asymmetric: a
wrong turn of a success still earns more than a right turn of a failure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import GroupStatistics, group_statistics, normalised, returns_to_go, trajectory_returns
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class CapoOptions(Options):
    """Keys of CAPO."""

    kind: Literal["capo"] = "capo"
    outcome_weight: NonNegative = 2.0
    """Factor of the episode's return, the paper's W_whole."""
    process_weight: NonNegative = 1.0
    """What a wrong turn loses, the paper's W_process. It found the best results below ``outcome_weight``."""

    off_at_0 = "process_weight"


@estimator(
    "capo",
    paper="CAPO: Towards Enhancing LLM Reasoning through Generative Credit Assignment",
    status="reproduced",
    columns=("is_faulty", "num_tokens"),
    needs_every_fault=True,
    granularity="turn",
    compares_groups=True,
    limits="a step is a turn; the paper's outcome is 0 or 1, here it is the return; the release has no code",
)
def capo(table: TurnTable, options: CapoOptions = CapoOptions(), *, norm: str = "mean_std_norm") -> TurnAdvantages:
    """``A_t = (R_t - mean) / (std + eps)`` with ``R_t = W_whole S_i - W_process`` on wrong turns, without it on others.

    ``S_i`` is the trajectory's undiscounted return. Mean and standard deviation are those of ``R_t`` over all sampled
    tokens of the group. A turn without tokens counts as one. In a group of failures wrong turns get a negative
    advantage and right ones a positive one. Where no turn is marked, this is GRPO with statistics of tokens.

    Args:
        table: the turns of the batch.
        options: the weights.
        norm: ``mean_std_norm``, or ``mean_norm`` to leave the division out.

    Needs the columns ``is_faulty`` and ``num_tokens``.

    Source: "CAPO: Towards Enhancing LLM Reasoning through Generative Credit Assignment" (weights 2 and 1).

    Raises:
        ConfigError: a column is missing.

    Example (a success with a wrong turn, and a failure with one):
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0, 0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(is_faulty=[[True, False], [False, True]], num_tokens=[[2, 2], [2, 2]])
        >>> capo(table, norm="mean_norm").advantage.tolist()  # R is 1, 2, 0, -1
        [0.5, 1.5, -0.5, -1.5]
    """
    table.require("is_faulty", by="capo")
    table.require("num_tokens", by="capo")
    assert table.is_faulty is not None and table.num_tokens is not None
    value = options.outcome_weight * trajectory_returns(table) - options.process_weight * table.is_faulty
    count = np.maximum(table.num_tokens, 1)
    rows = np.repeat(np.arange(len(table)), count)
    of_tokens = group_statistics(value[rows], table.group[rows])
    first = np.cumsum(count) - count
    of_turns = GroupStatistics(of_tokens.mean[first], of_tokens.std[first], of_tokens.count[first])
    return TurnAdvantages(advantage=normalised(value, of_turns, norm), return_to_go=returns_to_go(table, 1.0))
