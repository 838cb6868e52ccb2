"""AsymRE: a baseline below the mean, for episodes that another policy sampled.

Below the mean, good episodes count more than bad ones. "Asymmetric REINFORCE for off-policy Reinforcement Learning:
Balancing positive and negative rewards" shows that off-policy REINFORCE without importance ratios improves the policy
for such a baseline, and collapses for one above the mean of the policy that sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from agentgym.credit.component import estimator
from agentgym.credit.statistics import group_statistics, per_trajectory, returns_to_go, trajectories
from agentgym.credit.table import TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class AsymreOptions(Options):
    """Keys of AsymRE."""

    kind: Literal["asymre"] = "asymre"
    delta: Annotated[float, Range(at_most=0)] = -0.1
    """Distance of the baseline from the group's mean return. At 0 the estimator is ``dr_grpo``."""


@estimator(
    "asymre",
    paper="Asymmetric REINFORCE for off-Policy Reinforcement Learning: Balancing positive and negative rewards",
    parity="shiweijiezero/R3L@d503f6c:trinity/algorithm/advantage_fn/asymre_advantage.py",
    by_authors=False,
    options=AsymreOptions,
    compares_groups=True,
    limits="the loss needs no importance ratio: loss.kind=reinforce with cap 0, loss.mode=bypass, no corrections",
)
def asymre(table: TurnTable, *, delta: float = -0.1) -> TurnAdvantages:
    """``A_i = S_i - (mean + delta)`` with ``delta <= 0``, the same for every turn of the trajectory.

    Groups of equal returns get the advantage ``-delta`` instead of 0, failures too: their own actions become likelier.
    ``zero_variance_filter=return`` leaves them out. The compared code gives a group of one the baseline 0.

    Args:
        table: the turns of the batch.
        delta: distance of the baseline from the group's mean; at most 0.

    Source: "Asymmetric REINFORCE for off-Policy Reinforcement Learning: Balancing positive and negative rewards",
    section 4; Trinity-RFT ``asymre_advantage.py`` (-0.1 by default).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1.0], [0.0], [0.0], [1.0]], group_of_trajectory=[0, 0, 0, 0])
        >>> [round(x, 6) for x in asymre(table).advantage.tolist()]
        [0.6, -0.4, -0.4, 0.6]
    """
    view = trajectories(table)
    score = per_trajectory(table, table.reward)
    advantage = score - (group_statistics(score, view.group).mean + delta)
    return TurnAdvantages(advantage=advantage[view.of_row], return_to_go=returns_to_go(table, 1.0))
