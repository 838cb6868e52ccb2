"""Tables that several tests of credit share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from agentgym.credit.table import TurnTable

few = settings(max_examples=25, deadline=None)
"""Few examples per property: the formulas are regular, and there are many of them."""

F1_REWARDS = [[0.0, 0.0, 10.0], [0.0, 0.0, 0.0], [0.0, 10.0]]
F1_STATES = [["s0", "s1", "s2"], ["s0", "s1", "s1"], ["s0", "s3"]]


def f1() -> TurnTable:
    """Return the table of GiGPO's and HGPO's worked examples."""
    return TurnTable.from_lists(rewards=F1_REWARDS, states=F1_STATES, group_of_trajectory=[0, 0, 0])


def table_of(rewards: Sequence[Sequence[float]], groups: Sequence[int] | None = None, **columns: Any) -> TurnTable:
    """Return a table of trajectories, by default of one group."""
    of = [0] * len(rewards) if groups is None else groups
    return TurnTable.from_lists(rewards=rewards, group_of_trajectory=of).with_columns(**columns)


def bandits(*returns: float, groups: Sequence[int] | None = None, **columns: Any) -> TurnTable:
    """Return a table of trajectories of one turn each."""
    return table_of([[value] for value in returns], groups, **columns)


def assert_close(actual: Any, expected: Any, atol: float = 1e-5) -> None:
    """Assert equality within the tolerance of the worked examples."""
    assert actual is not None
    np.testing.assert_allclose(actual, expected, atol=atol)


Episode = list[tuple[float, str, int, int]]
"""(reward, state, action, tokens) of each turn."""
Batch = list[tuple[int, Episode]]
"""(group, episode) of each trajectory."""

_turn = st.tuples(st.integers(-3, 3).map(float), st.sampled_from("abc"), st.integers(0, 2), st.integers(1, 4))
episodes = st.lists(_turn, min_size=1, max_size=5)
batches: st.SearchStrategy[Batch] = st.lists(st.tuples(st.integers(0, 2), episodes), min_size=2, max_size=7)


def batch_table(batch: Batch, *, shift: float = 0.0, scale: float = 1.0) -> TurnTable:
    """Return a table with every column that numbers can fill; equal batches give equal tables.

    Args:
        shift: added to each trajectory's last reward.
        scale: factor of all rewards.
    """
    rewards = [
        [scale * (r + (shift if t == len(turns) - 1 else 0.0)) for t, (r, *_) in enumerate(turns)] for _, turns in batch
    ]
    table = TurnTable.from_lists(
        rewards=rewards,
        states=[[s for _, s, *_ in turns] for _, turns in batch],
        group_of_trajectory=[group for group, _ in batch],
    )
    process = [[0.0 if t == len(row) - 1 else r for t, r in enumerate(row)] for row in rewards]
    outcome = [[r if t == len(row) - 1 else 0.0 for t, r in enumerate(row)] for row in rewards]
    rows = [(r, s, a, n) for _, turns in batch for r, s, a, n in turns]
    seed = np.array([hash((r, a, n)) % 1000 / 1000 for r, _, a, n in rows])
    num_tokens = np.array([n for *_, n in rows], dtype=np.int64)
    return table.with_parts(solved=("outcome", outcome), steps=("process", process)).with_columns(
        action=[a for _, _, a, _ in rows],
        answer=[a for _, _, a, _ in rows],
        num_tokens=num_tokens,
        num_calls=[a for _, _, a, _ in rows],
        num_errors=[min(a, 1) for _, _, a, _ in rows],
        is_void=[a == 2 for _, _, a, _ in rows],
        is_patched=[a == 1 for _, _, a, _ in rows],
        is_faulty=[a == 3 for _, _, a, _ in rows],
        is_truncated=[len(turns) == 5 for _, turns in batch for _ in turns],
        group_keys=["x", "y", "z"],
        segment=[t // 2 for _, turns in batch for t in range(len(turns))],
        role=[t % 2 for _, turns in batch for t in range(len(turns))],
        invocation=[t // 2 for _, turns in batch for t in range(len(turns))],
        entropy=seed,
        value=seed - 0.5,
        q_value=seed + 0.25,
        info_gain=[np.nan if t == len(turns) - 1 else r for _, turns in batch for t, (r, *_) in enumerate(turns)],
        token_value=np.repeat(seed, num_tokens),
        token_entropy=np.repeat(seed, num_tokens) + 0.1,
    )
