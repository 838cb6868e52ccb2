"""Anchor groups by similarity of text, and checks of a state key.

An anchor group holds the turns of one group that were taken in the same state (GiGPO). Environments with a state key
need no similarity: turns with equal keys form an anchor group. Similarity is for environments whose only state is a
text.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from agentgym.credit.statistics import group_sizes, trajectories
from agentgym.credit.table import Ints, TurnTable


def similarity_anchors(texts: Sequence[str], group: Ints, threshold: float = 0.95) -> Ints:
    """Cluster the texts of each group greedily and return the cluster of each row, shape ``[N]``.

    A row joins the first cluster of its group whose first member ``rep`` has ``SequenceMatcher(None, text,
    rep).ratio() >= threshold``; otherwise it opens a new cluster. The result depends on the order of the rows. Two
    texts that differ in one digit usually count as equal, so prefer exact state keys where the environment has them.

    Source: verl-agent ``gigpo/core_gigpo.py`` (``enable_similarity``, default threshold 0.95, search script 0.9).

    Example:
        >>> texts = ["You see a mug 1.", "You see a mug 2.", "The drawer is closed."]
        >>> similarity_anchors(texts, np.zeros(3, dtype=np.int64), 0.9).tolist()
        [0, 0, 1]
    """
    clusters: dict[int, list[tuple[SequenceMatcher[str], int]]] = {}
    seen: dict[tuple[int, str], int] = {}
    anchors = np.zeros(len(texts), dtype=np.int64)
    num_clusters = 0
    for row, (text, index) in enumerate(zip(texts, group.tolist(), strict=True)):
        found = seen.get((index, text))
        if found is None:
            found = _first_fit(text, clusters.setdefault(index, []), threshold)
        if found is None:
            found = num_clusters
            num_clusters += 1
            clusters[index].append((SequenceMatcher(None, "", text), found))
        seen[index, text] = found
        anchors[row] = found
    return anchors


def _first_fit(text: str, clusters: Sequence[tuple[SequenceMatcher[str], int]], threshold: float) -> int | None:
    for matcher, cluster in clusters:
        matcher.set_seq1(text)
        # ratio() is quadratic in the length of the text. The two quick ratios are upper bounds of it, so a text that
        # fails one of them cannot pass the real test.
        is_near = matcher.real_quick_ratio() >= threshold and matcher.quick_ratio() >= threshold
        if is_near and matcher.ratio() >= threshold:
            return cluster
    return None


def shared_share(table: TurnTable) -> float:
    """Return the share of turns whose anchor group has two or more members; 0 for an empty table.

    Example:
        >>> table = TurnTable.from_lists(
        ...     rewards=[[0, 1], [0]], states=[["a", "b"], ["a"]], group_of_trajectory=[0, 0])
        >>> round(shared_share(table), 4)
        0.6667
    """
    if not len(table):
        return 0.0
    return float((group_sizes(table.anchor) > 1).mean())


def start_states_agree(table: TurnTable) -> bool:
    """Return False if the members of a group of two or more all start in different states, else True.

    Members of a group share their start state by construction, so False means that the state key is wrong.
    """
    first = trajectories(table).first
    groups = group_sizes(table.group[first])
    anchors = group_sizes(table.anchor[first])
    in_company = groups > 1
    meets = np.zeros(int(table.group.max(initial=-1)) + 1, dtype=np.bool_)
    np.logical_or.at(meets, table.group[first], anchors > 1)
    return bool(meets[table.group[first][in_company]].all())
