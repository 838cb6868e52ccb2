"""TTRL: reward agreement with the answer that most episodes of a group gave, in place of a grader's verdict.

Source: "TTRL: Test-Time Reinforcement Learning" (``verl/verl/utils/reward_score/ttrl/ttt_metrics.py``,
``test_time_train_metrics``). The environment's rewards are used for diagnostics alone, so tasks need no labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, on_last_turn, outcomes, replace_reward
from agentgym.credit.statistics import trajectories
from agentgym.credit.table import TurnTable
from agentgym.plugins import Options
from agentgym.settings import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class MajorityOptions(Options):
    """Keys of TTRL's reward."""

    kind: Literal["majority"] = "majority"
    least_share: Annotated[float, Range(at_least=0, at_most=1)] = 0.0
    """Share of a group that must give the most frequent answer for it to be rewarded. Ours: 0 is the paper's."""


@shaper(
    "majority",
    paper="TTRL: Test-Time Reinforcement Learning",
    status="reproduced",
    columns=("part_values", "answer"),
    limits="answers are compared as texts or calls, where the release compares them as formulas",
    test="tests/credit/test_majority.py::test_majority",
)
def majority(table: TurnTable, options: MajorityOptions = MajorityOptions()) -> Shaped:
    """1 on the last turn of a trajectory whose answer is its group's most frequent one, else 0; replaces all rewards.

    The answer is that of the last turn: its calls, or the last line of its text. Trajectories without an answer have
    no vote and earn 0. Of equally frequent answers the one that occurs first in the group wins, as in the released
    code. Needs the column ``answer``.

    Diagnostics: ``majority_share``, the mean share of a group's trajectories that give its answer, and
    ``majority_agreement``, the share of trajectories whose reward equals the environment's verdict.

    Args:
        table: the turns of the batch.
        options: the share that is needed.

    Raises:
        ConfigError: the column is missing.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1], [0], [0]], group_of_trajectory=[0, 0, 0])
        >>> majority(table.with_columns(answer=[[5], [7], [7]])).table.reward.tolist()
        [0.0, 1.0, 1.0]
    """
    answer = table.column("answer", by="majority")
    view = trajectories(table)
    given = answer[view.last]
    earned, shares = np.zeros(len(given)), []
    for group in np.unique(view.group):
        members = np.flatnonzero(view.group == group)
        votes = given[members]
        votes = votes[votes >= 0]
        found, first, count = np.unique(votes, return_index=True, return_counts=True)
        best = count.max(initial=0)
        shares.append(best / len(members))
        if best and shares[-1] >= options.least_share:
            winner = found[count == best][np.argmin(first[count == best])]
            earned[members] = given[members] == winner
    won = outcomes(table) > 0
    shaped = replace_reward(table, "majority", on_last_turn(table, earned))
    diagnostics = {
        "majority_share": float(np.mean(shares)) if shares else 0.0,
        "majority_agreement": float(np.mean(won == (earned > 0))) if len(earned) else 0.0,
    }
    return Shaped(table=shaped, diagnostics=diagnostics)
