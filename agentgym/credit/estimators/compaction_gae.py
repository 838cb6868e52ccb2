"""CompactionRL: GAE inside each context window, discounted by the tokens of the windows after it.

Source: "CompactionRL: Reinforcement Learning with Context Compaction for Long-Horizon Agents", equations 13 to 15 as
summarised in public notes. A policy that compacts its context writes summaries, which are trained like its other turns.
Each window is a sample of its own, and the episode's return is the reward at its end. Without a correction a window
that ends with a summary would be as near to the reward as the last one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.statistics import (
    finite_column,
    mean_over_tokens,
    suffix_sums,
    token_rows,
    trajectory_returns,
    whiten,
)
from agentgym.credit.table import Ints, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Fraction, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionGaeOptions(Options):
    """Keys of CompactionRL's advantage."""

    kind: Literal["compaction_gae"] = "compaction_gae"
    gamma: Fraction = 1.0
    """Discount per token."""
    horizon: Positive = 1.5
    """Lambda per token is ``1 - 1 / (horizon l)`` for a trajectory of l sampled tokens, 0 at least."""
    whitened: bool = True


@estimator(
    "compaction_gae",
    paper="CompactionRL: Reinforcement Learning with Context Compaction for Long-Horizon Agents",
    status="experimental",
    columns=("num_tokens", "token_value", "segment"),
    granularity="token",
    limits="reconstructed: gamma, the l of lambda and the critic's target are ours",
    test="tests/credit/test_compaction_gae.py::test_compaction_gae",
)
def compaction_gae(table: TurnTable, *, options: CompactionGaeOptions = CompactionGaeOptions()) -> TurnAdvantages:
    """Experimental (reconstructed): ``A = (gamma lam)^n A^local`` with n tokens in later windows of the trajectory.

    ``A^local`` is GAE over the tokens of one context window, whose last token has the trajectory's return as its
    reward and no value after it. The critic's target is ``A^local + V``. With one window this is GAE over tokens.

    Needs the columns ``num_tokens``, ``token_value`` and ``segment``.

    Raises:
        ConfigError: a column is missing or not finite.

    Example (windows of three tokens and of two):
        >>> table = TurnTable.from_lists(rewards=[[0.0, 1.0]], group_of_trajectory=[0])
        >>> table = table.with_columns(num_tokens=[3, 2], segment=[0, 1], token_value=[0.0] * 5)
        >>> options = CompactionGaeOptions(horizon=0.4, whitened=False)  # lambda is 0.5
        >>> np.round(compaction_gae(table, options=options).token_advantage, 4).tolist()
        [0.0625, 0.125, 0.25, 0.5, 1.0]
    """
    value = finite_column(table, "token_value", by="compaction_gae")
    rows = token_rows(table)
    trajectory, window = table.trajectory[rows], table.column("segment", by="compaction_gae")[rows]
    length = np.bincount(trajectory)[trajectory] if len(trajectory) else np.ones(0)
    decay = options.gamma * np.maximum(1 - 1 / (options.horizon * length), 0.0)
    changes = np.flatnonzero((np.diff(trajectory) != 0) | (np.diff(window) != 0))
    is_last = np.zeros(len(rows), dtype=np.bool_)
    is_last[changes] = True
    is_last[-1:] = True
    reward = np.where(is_last, trajectory_returns(table)[rows], 0.0)
    following = np.where(is_last, 0.0, np.append(value[1:], 0.0)[: len(value)])
    local = suffix_sums(reward + options.gamma * following - value, decay, is_last)
    of_window: Ints = np.cumsum(is_last) - is_last
    end = np.flatnonzero(is_last)[of_window]  # last token of each token's window, and of its trajectory
    final = np.searchsorted(trajectory, trajectory, side="right") - 1
    advantage = local * decay ** (final - end)
    if options.whitened:
        advantage = whiten(advantage)
    target = local + value
    return TurnAdvantages(
        advantage=mean_over_tokens(table, advantage),
        return_to_go=mean_over_tokens(table, target),
        token_advantage=advantage,
        token_return=target,
    )
