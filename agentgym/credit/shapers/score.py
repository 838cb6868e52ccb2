"""SCoRe's reward: the second attempt, and in its second stage a bonus for what the second attempt changed.

Stage 1 pays for the last attempt alone, while a KL penalty holds the first attempt where it was (the regulariser
``kl_first``). Stage 2 pays for both, and ``alpha`` times the change from one to the next. A policy that repeats its
first answer gains nothing by it, and one that spoils a right answer loses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, replace_reward, role_reward
from agentgym.credit.statistics import ends_of_trajectories
from agentgym.credit.table import TurnTable
from agentgym.plugins import Options
from agentgym.settings import NonNegative
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions(Options):
    """Keys of SCoRe's reward. Schedules move them from stage 1 (0 and 0) to stage 2 (1 and 10)."""

    kind: Literal["score"] = "score"
    first_weight: NonNegative = 1.0
    """Weight of the attempts before the last one; 0 in stage 1."""
    alpha: NonNegative = 10.0
    """Weight of the change from each attempt to the next; 0 in stage 1."""

    def idle(self) -> str:
        return "alpha is 0 and first_weight 1" if self.alpha == 0 and self.first_weight == 1 else ""


@shaper(
    "score",
    paper="Training Language Models to Self-Correct via Reinforcement Learning",
    status="reproduced",
    columns=("part_values",),
    limits="every turn is one attempt, as in TryAgain-v0 with revise=true",
)
def score(table: TurnTable, options: ScoreOptions = ScoreOptions()) -> Shaped:
    """``r_t + alpha (r_t - r_{t-1})`` per attempt t after the first, ``r_1`` for the first; replaces all rewards.

    ``r_t`` are the process parts of the turn, which pay attempts before the last one, times ``first_weight``, and its
    outcome parts. The bonus is on the turn of the later attempt, and ignores ``first_weight``. Diagnostics:
    ``correction_mean``, the mean of the last attempt's reward minus the first's, and ``first_attempt_mean``.

    Source: "Training Language Models to Self-Correct via Reinforcement Learning", equations 3 and 4 (alpha 10).

    Raises:
        ConfigError: the table has no parts.

    Example (wrong, then right; right, then wrong):
        >>> table = TurnTable.from_lists(rewards=[[0, 0], [0, 0]], group_of_trajectory=[0, 0]).with_parts(
        ...     attempt=("process", [[0, 0], [1, 0]]), outcome=("outcome", [[0, 1], [0, 0]]))
        >>> score(table).table.reward.tolist()
        [0.0, 11.0, 1.0, -10.0]
        >>> score(table, ScoreOptions(first_weight=0, alpha=0)).table.reward.tolist()
        [0.0, 1.0, 0.0, 0.0]
    """
    last, earlier = role_reward(table, RewardRole.OUTCOME), role_reward(table, RewardRole.PROCESS)
    paid = last + earlier
    is_first, is_last = table.turn == 0, ends_of_trajectories(table)
    before = np.where(is_first, paid, np.concatenate([[0.0], paid[:-1]]))
    value = last + options.first_weight * earlier + options.alpha * (paid - before)
    change = paid[is_last] - paid[is_first]
    diagnostics = {
        "correction_mean": float(change.mean()) if len(change) else 0.0,
        "first_attempt_mean": float(paid[is_first].mean()) if len(change) else 0.0,
    }
    return Shaped(table=replace_reward(table, "score", value), diagnostics=diagnostics)
