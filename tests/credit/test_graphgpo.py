"""GraphGPO: worked examples, its edges, its distances against brute force, and a run that it changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from testkit.acting import weights_after
from testkit.credit_tables import assert_close

from agentgym.credit.estimators.graphgpo import SUCCESS, GraphgpoOptions, distances, graphgpo, next_states
from agentgym.credit.table import TurnTable

GRAPH = GraphgpoOptions(episode_weight=0.0)


def table(rewards: list[list[float]], states: list[list[int]], ends: list[int], groups: list[int]) -> TurnTable:
    """Return turns whose states are numbers; equal numbers of one group are the same state."""
    made = TurnTable.from_lists(rewards=rewards, states=states, group_of_trajectory=groups)
    code = {}
    for row, (group, state) in enumerate(
        (group, state) for group, of in zip(groups, states, strict=True) for state in of
    ):
        code[group, state] = int(made.anchor[row])
    final = [code.get((group, end), 1000 + end) if end >= 0 else -1 for group, end in zip(groups, ends, strict=True)]
    return made.with_columns(final_anchor=[[end] * len(of) for end, of in zip(final, states, strict=True)])


def test_graphgpo() -> None:
    """a-b-success, a-c-b and a-c-d: from a, b is one turn away from success and c two; d has no way.

    q is 0.1, 1, 0.01, 0.1, 0.01 and 0.001, up to a scale.
    """
    made = table([[0, 1], [0, 0], [0, 0]], [[0, 1], [0, 2], [0, 2]], [9, 1, 3], [0, 0, 0])
    assert distances(made, next_states(made, np.array([True, False, False]))).tolist() == [1, 0, 2, 1, 2, 3]
    assert_close(graphgpo(made, options=GRAPH).advantage, [1.1547, 0, -0.57735, 0.707107, -0.57735, -0.707107], 1e-4)
    both = graphgpo(made).advantage
    assert_close(both, [2.3094, 1.1547, -1.1547, 0.129757, -1.1547, -1.284457], 1e-4)


def test_a_group_without_a_success_has_no_credit_on_the_graph() -> None:
    made = table([[0, 0], [0, 0], [1], [0]], [[0, 1], [0, 2], [0], [0]], [2, 3, 9, 0], [0, 0, 1, 1])
    assert_close(graphgpo(made, options=GRAPH).advantage, [0, 0, 0, 0, 0.707107, -0.707107], 1e-4)


def test_a_loop_is_an_edge_like_any_other() -> None:
    """The second turn stays in state 0, and the third goes on to the success."""
    made = table([[0, 0, 1], [0]], [[0, 0, 1], [0]], [9, 1], [0, 0])
    assert distances(made, next_states(made, np.array([True, False]))).tolist() == [2, 1, 0, 1]
    advantage = graphgpo(made, options=GRAPH).advantage
    assert advantage[0] < 0 < advantage[1] and advantage[1] == advantage[3] and advantage[2] == 0


def test_states_far_from_success_are_compared_as_near_ones() -> None:
    """Their values differ by 1e-29, far below the eps of the division."""
    length = 30
    way = [*range(length)]
    made = table([[*[0] * (length - 1), 1], [0]], [way, [0]], [99, 0], [0, 0])
    advantage = graphgpo(made, options=GRAPH).advantage
    assert_close(advantage[[0, -1]], [0.707107, -0.707107], 1e-4)


def test_an_end_without_a_key_is_a_state_of_its_own() -> None:
    made = table([[1], [0], [0]], [[0], [0], [0]], [-1, -1, -1], [0, 0, 0])
    target = next_states(made, np.array([True, False, False]))
    assert target[0] == SUCCESS and len({*target.tolist()}) == 3


def test_without_final_states_the_ends_of_failures_differ() -> None:
    made = TurnTable.from_lists(
        rewards=[[0, 1], [0], [0]], states=[["a", "b"], ["a"], ["a"]], group_of_trajectory=[0] * 3
    )
    assert_close(graphgpo(made, options=GRAPH).advantage, [1.1547, 0, -0.57735, -0.57735], 1e-4)


@given(
    walks=st.lists(st.lists(st.integers(0, 4), min_size=2, max_size=6), min_size=1, max_size=5),
    won=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_distances_against_brute_force(walks: list[list[int]], won: list[bool]) -> None:
    rewards = [[*[0.0] * (len(walk) - 2), float(won[at])] for at, walk in enumerate(walks)]
    made = table(rewards, [walk[:-1] for walk in walks], [walk[-1] for walk in walks], [0] * len(walks))
    is_won = np.array(won[: len(walks)])
    target = next_states(made, is_won)
    left = {SUCCESS: 0.0} | dict.fromkeys([*made.anchor.tolist(), *target.tolist()], np.inf) | {SUCCESS: 0.0}
    for _ in range(len(left)):  # Bellman and Ford
        for one, other in zip(made.anchor.tolist(), target.tolist(), strict=True):
            left[one] = min(left[one], left[other] + 1)
    furthest = max(value for value in left.values() if value < np.inf)
    expected = [min(left[one], furthest + 1) if is_won.any() else -1 for one in target.tolist()]
    assert distances(made, target).tolist() == expected


def test_it_acts_in_a_run() -> None:
    chosen = "credit.estimator=graphgpo"
    assert weights_after(chosen) != weights_after() and weights_after(chosen) != weights_after("credit.estimator=grpo")
    alone = 'credit.options={"kind": "graphgpo", "episode_weight": 0}'
    assert weights_after(chosen) != weights_after(chosen, alone)
