"""GraphGPO: merge a group's episodes into one graph of states, and value a turn by how near it leads to a success.

Source: "Beyond Trajectory-Level Attribution: Graph-Based Credit Assignment for Agentic Reinforcement Learning",
equations as summarised in public notes; the authors' code could not be read. Groups are those of GiGPO: turns taken in
the same state. GiGPO compares their returns, which depend on what the episode did afterwards. Here a turn is valued by
the shortest way that any member of the group has shown from the state it reached to a success.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import estimator
from agentgym.credit.estimators.gigpo import episode_advantage
from agentgym.credit.parts import outcomes
from agentgym.credit.statistics import ends_of_trajectories, returns_to_go, trajectories, zscore
from agentgym.credit.table import Floats, Ints, TurnAdvantages, TurnTable
from agentgym.plugins import Options
from agentgym.settings import NonNegative, Range

SUCCESS = -1
"""Node that the last turn of a success leads to; states have numbers from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphgpoOptions(Options):
    """Keys of GraphGPO."""

    kind: Literal["graphgpo"] = "graphgpo"
    decay: Annotated[float, Range(above=0, below=1)] = 0.1
    """The paper's omega: the value of a state falls by this factor per turn that is missing to a success."""
    episode_weight: NonNegative = 1.0
    """Weight of GRPO's episode advantage; 0 is the paper's variant of the graph alone."""
    graph_weight: NonNegative = 1.0
    """Weight of the advantage on the graph."""
    success_above: float = 0.0
    """A trajectory is a success if its outcome is above this."""

    off_at_0 = "graph_weight"


@estimator(
    "graphgpo",
    paper=("Beyond Trajectory-Level Attribution: Graph-Based Credit Assignment for Agentic Reinforcement Learning"),
    status="experimental",
    columns=("final_anchor", "part_values"),
    granularity="turn",
    compares_groups=True,
    limits="reconstructed: every turn costs 1, and the scale of the value cancels",
    test="tests/credit/test_graphgpo.py::test_graphgpo",
)
def graphgpo(
    table: TurnTable, *, invalid_penalty: float = 0.0, options: GraphgpoOptions = GraphgpoOptions()
) -> TurnAdvantages:
    """Experimental (reconstructed): ``A = episode_weight A^E + graph_weight A^G``, shape ``[N]``.

    ``A^G = (q - mean) / (std + eps)`` over the group's turns that left the same state, with ``q = decay^d``. ``d`` is
    the number of turns from the state that the turn reached to a success, by the shortest way that members of the
    group have shown. States from which none leads there are one turn further than the furthest of the others. Without
    a success in the group, and for a turn that nothing can be compared with, ``A^G`` is 0. ``A^E`` is GRPO's advantage
    over trajectories.

    Args:
        table: the turns of the batch, with ``final_anchor``, the state after each trajectory's last turn. Without that
            column the last states of failures differ from all others.
        invalid_penalty: subtracted from the episode score of an invalid turn, as in GiGPO.
        options: the decay and the weights.

    Example (a success by way of b; the second reaches b from c, the third is lost in d):
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0, 1], [0, 0], [0, 0]], states=[["a", "b"], ["a", "c"], ["a", "c"]],
        ...     group_of_trajectory=[0, 0, 0])
        >>> table = table.with_columns(final_anchor=[[7, 7], [1, 1], [8, 8]])
        >>> options = GraphgpoOptions(episode_weight=0.0)
        >>> np.round(graphgpo(table, options=options).advantage, 3).tolist()
        [1.155, 0.0, -0.577, 0.707, -0.577, -0.707]
    """
    target = next_states(table, outcomes(table) > options.success_above)
    left = distances(table, target)
    known = left >= 0
    # of equal scale in every group: the deviation that a group is divided by would else vanish beside its eps
    nearest = _least_of(np.where(known, left, np.inf), table.anchor)
    value = np.where(known, options.decay ** (left - np.where(known, nearest, 0)), 0.0)
    graph = np.where(known, zscore(value, table.anchor), 0.0)
    advantage = options.graph_weight * graph
    if options.episode_weight:
        advantage += options.episode_weight * episode_advantage(
            table, norm="mean_std_norm", statistics_unit="trajectory", invalid_penalty=invalid_penalty
        )
    return TurnAdvantages(advantage=advantage, return_to_go=returns_to_go(table, 1.0), anchor_group=table.anchor)


def next_states(table: TurnTable, is_success: np.ndarray) -> Ints:
    """Return the state that each turn reached, ``[N]``: of a success's last turn :data:`SUCCESS`.

    The state after a failure's last turn is ``final_anchor``; one without a key is a state of its own.

    Args:
        table: the turns of the batch.
        is_success: ``[I]`` True for trajectories that succeeded.
    """
    final = np.full(len(table), -1) if table.final_anchor is None else table.final_anchor
    is_last = ends_of_trajectories(table)
    highest = max((int(codes.max(initial=0)) for codes in (table.anchor, final)), default=0)
    alone = highest + 1 + np.arange(len(table))
    after = np.where(is_last, np.where(final < 0, alone, final), np.append(table.anchor[1:], 0)[: len(table)])
    return np.where(is_last & is_success[trajectories(table).of_row], SUCCESS, after)


def distances(table: TurnTable, target: Ints) -> Floats:
    """Return the turns that are missing from each turn's target to a success of its group, ``[N]``.

    -1 in a group without a success. A target without a way counts one turn more than the furthest that has one.

    Args:
        table: the turns of the batch.
        target: ``[N]`` state that each turn reached, :data:`SUCCESS` for the goal.
    """
    found = np.full(len(table), -1.0)
    for group in np.unique(table.group):
        rows = np.flatnonzero(table.group == group)
        left = _from_success(table.anchor[rows], target[rows])
        if len(left) > 1:
            beyond = max(left.values()) + 1
            found[rows] = [left.get(one, beyond) for one in target[rows].tolist()]
    return found


def _from_success(source: Ints, target: Ints) -> dict[int, int]:
    """Return the number of turns from each state to a success, for the states that have a way; breadth first."""
    before = defaultdict(set)
    for one, other in zip(source.tolist(), target.tolist(), strict=True):
        before[other].add(one)
    left, waiting = {SUCCESS: 0}, deque([SUCCESS])
    while waiting:
        here = waiting.popleft()
        for state in before[here] - left.keys():
            left[state] = left[here] + 1
            waiting.append(state)
    return left


def _least_of(value: Floats, unit: Ints) -> Floats:
    """Return the smallest value of each row's unit, ``[N]``."""
    codes = np.unique(unit, return_inverse=True)[1]
    least = np.full(int(codes.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, codes, value)
    return least[codes]
