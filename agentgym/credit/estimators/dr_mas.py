"""Dr. MAS: compare the turns of each agent with the turns of the same agent.

Source: "Dr. MAS: Stable Reinforcement Learning for Multi-Agent LLM Systems", agent-wise normalisation. Agents that act
at different rates in good and in bad episodes see different distributions of the team's return. One mean and deviation
for all of them gives the gradient of some agents a large norm.
"""

from __future__ import annotations

from agentgym.credit.component import estimator
from agentgym.credit.statistics import group_statistics, normalised, returns_to_go, trajectories, trajectory_returns
from agentgym.credit.table import TurnAdvantages, TurnTable


@estimator(
    "dr_mas",
    paper="Dr. MAS: Stable Reinforcement Learning for Multi-Agent LLM Systems",
    parity="langfengQ/DrMAS@19c632b:verl/trainer/ppo/core_algos.py",
    compares_groups=True,
    granularity="turn",
    tells_agents=True,
    columns=("role",),
    test="tests/credit/test_estimators.py::test_dr_mas",
)
def dr_mas(table: TurnTable, *, norm: str = "mean_std_norm", gamma: float = 1.0) -> TurnAdvantages:
    """``A = (S_i - mean) / (std + eps)`` with mean and deviation over the turns of one agent in a group.

    ``S_i`` is the trajectory's undiscounted return, rewards of all agents included. Each turn is a sample, so an
    episode with many turns of an agent counts more in that agent's mean. Turns without a comparable one, or with equal
    returns, get 0. Needs the column ``role``.

    Args:
        table: the turns of the batch.
        norm: ``mean_std_norm``, or ``mean_norm`` to leave the division out.
        gamma: discount of the reported ``return_to_go``; it does not enter the advantage.

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 1], [0, 0, 0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(role=[0, 1, 0, 1, 1])
        >>> np.round(dr_mas(table).advantage, 4).tolist()
        [0.7071, 1.1547, -0.7071, -0.5773, -0.5773]
    """
    table.require("role", by="dr_mas")
    assert table.role is not None
    view = trajectories(table)
    score = trajectory_returns(table)[view.first][view.of_row]
    num_roles = int(table.role.max(initial=0)) + 1
    advantage = normalised(score, group_statistics(score, table.group * num_roles + table.role), norm)
    return TurnAdvantages(advantage=advantage, return_to_go=returns_to_go(table, gamma))
