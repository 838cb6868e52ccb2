"""SPA: replace the reward by a learned estimate of each turn's contribution to the final reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentgym.credit.component import shaper
from agentgym.credit.parts import Shaped, on_last_turn, replace_reward
from agentgym.credit.statistics import ends_of_trajectories, finite_column, per_trajectory
from agentgym.credit.table import TurnTable
from agentgym.plugins import Options
from agentgym.settings import NonNegative


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaOptions(Options):
    """Keys of SPA."""

    kind: Literal["spa"] = "spa"
    grounding: NonNegative = 0.0
    """Reward added for an action that took effect in the environment, and on the last turn. 0.5 in the release; summed
    over turns it rewards length (composition rule 12)."""
    remainder: Literal["last", "dropped"] = "last"
    """Difference between the trajectory's return and the sum of its progress. ``last``: on the last turn, so that the
    rewards sum to the return and a poor estimate cannot make failures better than successes (ours, as in RUDDER).
    ``dropped``: as in the release."""


def progress_loss(table: TurnTable) -> float:
    """Return the mean over trajectories of ``(R - sum_t c_t)^2``, the training loss of the progress estimator.

    Needs the column ``progress``.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1]], group_of_trajectory=[0])
        >>> round(progress_loss(table.with_columns(progress=[0.1, 0.3, 0.2])), 6)
        0.16
    """
    progress = finite_column(table, "progress", by="spa")
    gap = per_trajectory(table, table.reward) - per_trajectory(table, progress)
    return float((np.clip(gap, -1e100, 1e100) ** 2).mean()) if len(gap) else 0.0  # larger squares would overflow


@shaper(
    "spa",
    paper="SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution",
    parity="WangHanLinHenry/SPA-RL-Agent@ed20087:prm/rl_data_org.py",
    columns=("progress", "is_executed"),
    limits="the release has grounding=0.5 and remainder=dropped, which reward length",
)
def spa(table: TurnTable, options: SpaOptions = SpaOptions()) -> Shaped:
    """``r_t = c_t + g_t``: learned progress plus grounding; replaces all rewards.

    ``c_t`` is the column ``progress``. With ``remainder="last"`` the last turn also gets the return minus the sum of
    the progress. ``g_t`` is ``grounding`` on the last turn and on turns whose action was executed
    (column ``is_executed``, or ``is_valid`` without it), else 0. Train the progress estimator again when the policy has
    changed much: the diagnostic ``progress_loss`` is its error on this batch.

    Source: "SPA-RL: Reinforcing LLM Agents via Stepwise Progress Attribution" (``prm/rl_data_org.py``); the remainder:
    "RUDDER: Return Decomposition for Delayed Rewards".

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0, 1]], group_of_trajectory=[0])
        >>> table = table.with_columns(progress=[0.1, 0.3, 0.2], is_executed=[True, False, True])
        >>> np.round(spa(table).table.reward, 6).tolist()
        [0.1, 0.3, 0.6]
        >>> np.round(spa(table, SpaOptions(grounding=0.5, remainder="dropped")).table.reward, 6).tolist()
        [0.6, 0.3, 0.7]
    """
    loss = progress_loss(table)
    assert table.progress is not None
    is_executed = table.is_valid if table.is_executed is None else table.is_executed
    grounding = np.where(is_executed | ends_of_trajectories(table), options.grounding, 0.0)
    value = table.progress + grounding
    if options.remainder == "last":
        value += on_last_turn(table, per_trajectory(table, table.reward) - per_trajectory(table, table.progress))
    return Shaped(table=replace_reward(table, "progress", value), diagnostics={"progress_loss": loss})
