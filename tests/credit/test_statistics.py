"""Statistics, and anchors by likeness."""

from __future__ import annotations

from difflib import SequenceMatcher

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from testkit.credit_tables import assert_close, few

from agentgym.credit.anchors import similarity_anchors
from agentgym.credit.statistics import group_statistics


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
        assert_close(found.mean[row], np.mean(members), 1e-9)
        assert_close(found.std[row], np.std(members, ddof=ddof) if len(members) > ddof else 0.0, 1e-9)
