"""REINFORCE++, which needs no groups: token-level return-to-go, whitened over the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import (
    ends_of_trajectories,
    mean_over_tokens,
    returns_to_go,
    suffix_sums,
    whiten,
)
from agentgym.credit.table import Floats, TurnAdvantages, TurnTable
from agentgym.errors import ConfigError
from agentgym.plugins import Options
from agentgym.settings import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePpOptions(Options):
    """Keys of REINFORCE++."""

    kind: Literal["reinforce_pp"] = "reinforce_pp"
    gamma: Fraction = 1.0
    """Discount per *token*."""


@estimator(
    "reinforce_pp",
    paper="REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models",
    parity="verl-project/verl@1dda039:verl/trainer/ppo/core_algos.py",
    by_authors=False,
    options=ReinforcePpOptions,
    columns=("num_tokens",),
    granularity="token",
)
def reinforce_pp(table: TurnTable, *, gamma: float = 1.0) -> TurnAdvantages:
    """``A_k = whiten(G_k)`` with ``G_k = r_k + gamma * G_{k+1}`` over the trajectory's sampled tokens.

    A turn's reward is placed on its last sampled token. Needs the column ``num_tokens``, with at least one token in
    each turn.

    Source: "REINFORCE++: An Efficient RLHF Algorithm with Robustness to Both Prompt and Reward Models"; verl
    ``compute_reinforce_plus_plus_outcome_advantage``.

    Raises:
        ConfigError: a turn has no token, or the batch has exactly one.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0]], group_of_trajectory=[0, 1])
        >>> credited = reinforce_pp(table.with_columns(num_tokens=[2, 3]))
        >>> np.round(credited.token_advantage, 6).tolist()
        [1.095445, 1.095445, -0.730297, -0.730297, -0.730297]
    """
    returns = suffix_sums(token_rewards(table, by="reinforce_pp"), gamma, ends_of_token_runs(table))
    advantage = whiten(returns)
    return TurnAdvantages(
        advantage=mean_over_tokens(table, advantage),
        return_to_go=returns_to_go(table, 1.0),
        token_advantage=advantage,
        token_return=returns,
    )


def token_rewards(table: TurnTable, *, by: str) -> Floats:
    """Place each turn's reward on its last sampled token, with 0 on the others, shape ``[M]``.

    Args:
        table: the turns, with the column ``num_tokens``.
        by: the name of the estimator, for the error.

    Raises:
        ConfigError: the column is missing, or a turn has no tokens, so that its reward would be lost.
    """
    num_tokens = table.column("num_tokens", by=by)
    if len(table) and int(num_tokens.min()) < 1:
        raise ConfigError(
            f"{by} works on tokens, and row {int(num_tokens.argmin())} of the table has none: leave out turns "
            "without sampled tokens, or use an estimator per turn"
        )
    ends = np.cumsum(num_tokens)
    rewards = np.zeros(int(ends[-1]) if len(ends) else 0)
    rewards[ends - 1] = table.reward
    return rewards


def ends_of_token_runs(table: TurnTable) -> np.ndarray:
    """Mark each trajectory's last sampled token, shape ``[M]``."""
    assert table.num_tokens is not None
    ends = np.cumsum(table.num_tokens)
    is_last = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.bool_)
    is_last[ends[ends_of_trajectories(table)] - 1] = True
    return is_last
