"""Penalties for invalid calls and for overlong trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, add_reward, on_last_turn
from agentgym.credit.statistics import per_trajectory
from agentgym.credit.table import TurnTable
from agentgym.plugins import Options
from agentgym.settings import NonNegative
from agentgym.types import RewardRole


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidCallOptions(Options):
    """Keys of the invalid-call penalty."""

    kind: Literal["invalid_call"] = "invalid_call"
    penalty: NonNegative = 0.01
    """verl-agent's 0.01 of search, where a success pays 1. Its ALFWorld and WebShop scripts have 0.1, and pay 10."""

    off_at_0 = "penalty"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongOptions(Options):
    """Keys of DAPO's overlong penalty."""

    kind: Literal["overlong_penalty"] = "overlong_penalty"
    max_tokens: int = 20480
    """Largest number of sampled tokens of a whole trajectory, the paper's L."""
    buffer_tokens: int = 4096
    """Number of tokens below ``max_tokens`` over which the penalty grows from 0 to ``factor``, the paper's B."""
    factor: NonNegative = 0.5
    """Half of the range of outcomes 0 and 1, so that an overlong success is better than a failure. DAPO has 1 for its
    outcomes -1 and 1."""
    beyond: Literal["held", "growing"] = "held"
    """Penalty of lengths above ``max_tokens``: ``factor``, as in the paper, or ever larger, as in verl's formula, whose
    responses cannot be longer."""

    def check_together(self) -> None:
        is_ok = 0 < self.buffer_tokens <= self.max_tokens
        message = f"buffer_tokens must be above 0 and at most max_tokens={self.max_tokens}, got {self.buffer_tokens}"
        self.check(is_ok=is_ok, message=message)

    off_at_0 = "factor"


@shaper(
    "invalid_call",
    paper="Group-in-Group Policy Optimization for LLM Agent Training (code)",
    status="reproduced",
)
def invalid_call(table: TurnTable, options: InvalidCallOptions = InvalidCallOptions()) -> Shaped:
    """``r_t - penalty`` on invalid turns.

    As a reward, the penalty also lowers the returns of earlier turns. GiGPO and HGPO subtract their own penalty after
    discounting, from the invalid turn alone. With these estimators this shaper only sets the size of that penalty.

    Source: verl-agent ``ray_trainer.py`` (``apply_invalid_action_penalty``, 0.1 in the ALFWorld and WebShop scripts,
    0.01 for search).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1]], is_valid=[[False, True]], group_of_trajectory=[0])
        >>> invalid_call(table).table.reward.tolist()
        [-0.01, 1.0]
    """
    value = np.where(table.is_valid, 0.0, -options.penalty)
    rate = float((~table.is_valid).mean()) if len(table) else 0.0
    return Shaped(
        table=add_reward(table, "invalid_call", RewardRole.COST, value), diagnostics={"invalid_call_rate": rate}
    )


@shaper(
    "overlong_penalty",
    paper="DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
    parity="verl-project/verl@1dda039:verl/workers/reward_manager/dapo.py",
    columns=("num_tokens",),
    limits="defaults for outcomes 0 and 1; DAPO has -1 and 1, and factor=1",
)
def overlong_penalty(table: TurnTable, options: OverlongOptions = OverlongOptions()) -> Shaped:
    """``min(-(len - (L - B)) / B * f, 0)`` on the last turn, where ``len`` counts the trajectory's sampled tokens.

    L is ``max_tokens``, B ``buffer_tokens`` and f ``factor``. Beyond L it is -f, or grows with ``beyond="growing"``.

    Needs the column ``num_tokens``.

    Source: "DAPO: An Open-Source LLM Reinforcement Learning System at Scale" (verl ``recipe/dapo``).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0], [0], [0]], group_of_trajectory=[0, 0, 0])
        >>> options = OverlongOptions(max_tokens=100, buffer_tokens=20)
        >>> overlong_penalty(table.with_columns(num_tokens=[85, 95, 60]), options).table.reward.tolist()
        [-0.125, -0.375, 0.0]
    """
    num_tokens = table.column("num_tokens", by="overlong_penalty")
    over = per_trajectory(table, num_tokens) - (options.max_tokens - options.buffer_tokens)
    share = np.maximum(over / options.buffer_tokens, 0.0)
    penalty = -options.factor * (np.minimum(share, 1.0) if options.beyond == "held" else share) + 0.0  # no -0.0
    rate = float((penalty < 0).mean()) if len(penalty) else 0.0
    shaped = add_reward(table, "overlong", RewardRole.COST, on_last_turn(table, penalty))
    return Shaped(table=shaped, diagnostics={"overlong_rate": rate})
