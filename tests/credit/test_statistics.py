"""Statistics, anchors by likeness, and the time they take."""

from __future__ import annotations

import time
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np
from credit_tables import close, few
from hypothesis import given
from hypothesis import strategies as st

from agentgym.credit.anchors import similarity_anchors
from agentgym.credit.gigpo import gigpo
from agentgym.credit.hgpo import hgpo
from agentgym.credit.statistics import group_statistics
from agentgym.credit.table import TurnTable


@few
@given(st.lists(st.sampled_from(["mug 1", "mug 2", "mug 11", "a long text", "a long test", ""]), max_size=8))
def test_similarity_clusters(texts: list[str]) -> None:
    representatives: list[str] = []
    expected = []
    for text in texts:
        near = [i for i, rep in enumerate(representatives) if SequenceMatcher(None, text, rep).ratio() >= 0.8]
        if not near:
            representatives.append(text)
            near = [len(representatives) - 1]
        expected.append(near[0])
    group = np.zeros(len(texts), dtype=np.int64)
    assert similarity_anchors(texts, group, 0.8).tolist() == expected


@few
@given(st.lists(st.tuples(st.integers(-(10**9), 10**9), st.integers(-5, 5)), max_size=12), st.integers(0, 1))
def test_group_statistics(rows: list[tuple[int, int]], ddof: int) -> None:
    group = np.array([g for g, _ in rows], dtype=np.int64)
    value = np.array([v for _, v in rows], dtype=np.float64)
    found = group_statistics(value, group, ddof=ddof)
    for row, (g, _) in enumerate(rows):
        members = [float(v) for h, v in rows if h == g]
        assert found.count[row] == len(members)
        close(found.mean[row], np.mean(members), 1e-9)
        close(found.std[row], np.std(members, ddof=ddof) if len(members) > ddof else 0.0, 1e-9)


def test_time_is_linear_in_turns() -> None:
    """Twice the turns must not cost four times: measured generously, since machines are busy."""
    seconds = []
    for num_turns in (100, 200, 400):
        rewards = [[0.0] * num_turns for _ in range(50)]
        states = [[t % 17 for t in range(num_turns)] for _ in range(50)]
        table = TurnTable.from_lists(rewards=rewards, states=states, group_of_trajectory=[0] * 50)
        times = []
        for _ in range(5):
            began = time.perf_counter()
            gigpo(table)
            hgpo(table)
            times.append(time.perf_counter() - began)
        seconds.append(min(times))
    assert all(later < 3.5 * earlier for earlier, later in pairwise(seconds))
