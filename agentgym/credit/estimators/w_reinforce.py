"""W-REINFORCE: penalise failures in full, and reinforce successes with a small weight or not at all.

Source: "The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning" (``verl/trainer/ppo/core_algos.py``,
``compute_psr_nsr_outcome_advantage``). Nothing is compared within a group, so groups whose members agree train too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import returns_to_go, trajectory_returns
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class WReinforceOptions(Options):
    """Keys of W-REINFORCE."""

    kind: Literal["w_reinforce"] = "w_reinforce"
    positive_weight: Fraction = 0.1
    """Weight of successes. 0 is the paper's NSR, which trains on failures alone."""
    negative_weight: Fraction = 1.0
    """Weight of failures. 0, with a ``positive_weight`` of 1, is the paper's PSR."""
    right_from: float = 0.5
    """Return from which on a trajectory is a success. Ours: the release has rewards 0 and 1 alone."""

    def check_together(self) -> None:
        message = "positive_weight and negative_weight are both 0, so nothing would train"
        self.check(is_ok=bool(self.positive_weight or self.negative_weight), message=message)


@estimator(
    "w_reinforce",
    paper="The Surprising Effectiveness of Negative Reinforcement in LLM Reasoning",
    parity="TianHongZXY/RLVR-Decomposed@a5d4e7c:verl/trainer/ppo/core_algos.py",
    test="tests/credit/test_w_reinforce.py::test_w_reinforce",
)
def w_reinforce(table: TurnTable, options: WReinforceOptions = WReinforceOptions()) -> TurnAdvantages:
    """``A_i = positive_weight`` for a success and ``-negative_weight`` for a failure, the same for every turn.

    Args:
        table: the turns of the batch.
        options: the weights, and the return that separates successes from failures.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0]], group_of_trajectory=[0, 0])
        >>> w_reinforce(table).advantage.tolist()
        [0.1, 0.1, -1.0]
    """
    is_success = trajectory_returns(table) >= options.right_from
    advantage = np.where(is_success, options.positive_weight, -options.negative_weight)
    return TurnAdvantages(advantage=advantage, return_to_go=returns_to_go(table, 1.0))
