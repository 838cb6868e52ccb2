"""UI-S1: score turns by an expert's actions, and stop credit at turns where the expert's action replaced the policy's.

Source: "UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning", and its released code
(X-PLUG/MobileAgent, ``UI-S1/uis1/core_uis1.py``). This module keeps the conventions of the code: ``ddof=1``,
``eps=1e-6``, statistics over turn rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.estimators.gigpo import score_alone
from agentgym.credit.inputs import codes_of
from agentgym.credit.statistics import (
    ends_of_trajectories,
    group_statistics,
    normalised,
    suffix_sums,
    trajectory_returns,
)
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class UiS1Options(Options):
    """Keys of UI-S1 beside ``step_weight``, which it shares with GiGPO."""

    kind: Literal["ui_s1"] = "ui_s1"
    norm: Literal["mean_norm", "mean_std_norm"] = "mean_norm"
    """``mean_std_norm`` divides both parts by their group's standard deviation."""
    gamma: Fraction = 0.5
    """Discount per turn of the returns that are compared among turns of the same index."""
    episode_weight: NonNegative = 1.0
    """Weight of the comparison with all turns of the group."""
    episode_score: Literal["turn", "trajectory"] = "turn"
    """Score of that comparison: the turn's own reward (the released code, whose rows have no other score) or the
    episode's return (the paper's equation)."""


@estimator(
    "ui_s1",
    paper="UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning",
    parity="X-PLUG/MobileAgent@11cea57:UI-S1/uis1/core_uis1.py",
    compares_groups=True,
    granularity="turn",
    columns=("is_patched",),
)
def ui_s1(table: TurnTable, options: UiS1Options = UiS1Options(), *, step_weight: float = 1.0) -> TurnAdvantages:
    """``A = episode_weight * (score - mean over the group's turns) + step_weight * (G_t - mean over turns t)``.

    A turn is patched if the environment played the expert's action in place of the policy's. A turn that is not patched
    has ``G_t = r_t + gamma * G_{t+1}``. A patched turn has ``G_t = r_t``, and the turn before it has ``r_{t-1}``: the
    policy gets no credit for the consequences of the expert's action. In a group of one turn the episode part is the
    turn's score. The step part is 0 if no other member of the group reached the index t. Needs the column
    ``is_patched``.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1, 1, 0.2, 1]], group_of_trajectory=[0])
        >>> table = table.with_columns(is_patched=[[False, False, True, False]])
        >>> ui_s1(table).return_to_go.tolist()
        [1.5, 1.0, 0.2, 1.0]
    """
    table.require("is_patched", by="ui_s1")
    score = table.reward if options.episode_score == "turn" else trajectory_returns(table)
    in_group = group_statistics(score, table.group)
    episode = np.where(in_group.count == 1, score_alone(score, options.norm), normalised(score, in_group, options.norm))
    step_return = patched_returns(table, options.gamma)
    step_of = codes_of(list(zip(table.group.tolist(), table.turn.tolist(), strict=True)))
    at_step = group_statistics(step_return, step_of)
    return TurnAdvantages(
        advantage=options.episode_weight * episode + step_weight * normalised(step_return, at_step, options.norm),
        return_to_go=step_return,
        anchor_group=step_of,
        anchor_size=at_step.count,
    )


def patched_returns(table: TurnTable, gamma: float) -> Floats:
    """Return discounted returns that stop at patched turns, shape ``[N]``.

    The caller must have checked that the table has the column ``is_patched``.
    """
    assert table.is_patched is not None
    # A run of turns ends before a patched turn, and a patched turn is a run by itself: the states after it follow from
    # the expert's action, so later rewards say nothing about the policy's.
    is_before_patch = np.append(table.is_patched[1:], False)[: len(table)]
    return suffix_sums(table.reward, gamma, ends_of_trajectories(table) | table.is_patched | is_before_patch)
