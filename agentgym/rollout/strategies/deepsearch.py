"""Tree search over turns: the most promising state of the whole tree is played on again.

Source: "DeepSearch: Overcome the Bottleneck of Reinforcement Learning with Verifiable Rewards via Monte Carlo Tree
Search" (``deepsearch/utils/mcts.py``). The states of a group's episodes form a tree. Every episode adds its outcome, 1
or -1, to the states on its way. The state with the largest score gets more continuations, if it has fewer than
``width``. The score adds the value of the state before, its own value, the surprise of the turn that led to it, and its
depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

from agentgym.plugins import Options
from agentgym.rollout.branch import START, Start
from agentgym.rollout.strategies.component import branching
from agentgym.settings import Fraction, NonNegative, Range
from agentgym.types import Trajectory

Node = tuple[int, int]
"""The episode that sampled the turn before a state, and the number of turns before it; (-1, 0) is the start."""
ROOT: Node = (-1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSearchOptions(Options):
    """Settings of the search; the weights of the score are the release's."""

    kind: str = "deepsearch"
    initial: Annotated[float, Range(above=0, below=1)] = 0.25
    """Share of the group that begins at the start of the task."""
    width: Annotated[int, Range(at_least=2)] = 3
    """Largest number of continuations of a state."""
    parent_weight: NonNegative = 0.4
    """Weight of ``tanh`` of the mean value of the state before."""
    own_weight: NonNegative = 0.0
    """Weight of ``tanh`` of the mean value of the state itself."""
    surprise_weight: float = 0.4
    """Weight of the mean surprise, in nats, of the turn that led to the state."""
    depth_weight: NonNegative = 0.01
    """Weight of ``sqrt(depth / largest depth)``."""
    least_share: Fraction = 0.1
    """Smallest share of an outcome that a state gets; the states near the end get nearly all of it."""


@dataclass(slots=True)
class Value:
    """Visits and value of a state."""

    num_visits: int = 0
    value: float = 0.0

    def add(self, share: float) -> None:
        """Add a share of an outcome. A success replaces failures, and failures do not count after a success."""
        self.num_visits += 1
        if self.value * share >= 0:
            self.value += share
        elif share > 0:
            self.value = share

    @property
    def mean(self) -> float:
        """Value per visit; 0 for a state that was not visited."""
        return self.value / self.num_visits if self.num_visits else 0.0


@branching(
    "deepsearch",
    paper="DeepSearch: Overcome the Bottleneck of Reinforcement Learning with Verifiable Rewards via Monte Carlo Tree "
    "Search",
    status="experimental",
    limits="every continuation is played to its end, where the release expands step by step; all episodes count in the "
    "values, where it keeps one of each expansion. Values choose states and are no reward: credit comes from "
    "shared_prefix or salt. There is no cache of solved tasks",
    test="tests/rollout/test_trees.py::test_deepsearch_plays_on_from_the_state_with_the_best_score",
)
def deepsearch(played: Sequence[Trajectory], num_left: int, group_size: int, options: DeepSearchOptions) -> list[Start]:
    """Return the continuations of the best state of the tree, or starts at the beginning if no state is left.

    Example:
        >>> deepsearch((), 8, 8, DeepSearchOptions()) == [START, START]
        True
    """
    if not played:
        return [START] * min(num_left, max(1, round(options.initial * group_size)))
    values, continued = values_of(played, options.least_share), continuations(played)
    scores = {node: score(node, played, values, options) for node, num in continued.items() if num < options.width}
    if not scores:
        return [START] * num_left
    best = max(scores, key=lambda node: (scores[node], node))
    return [Start(parent=best[0], turn=best[1])] * min(num_left, options.width - continued[best])


def path_of(played: Sequence[Trajectory], at: int) -> list[Node]:
    """Return the states in which an episode took its turns, from the start on."""
    nodes = [ROOT]
    for turn in range(1, len(played[at].turns)):
        owner = at
        while turn <= played[owner].branch_turn:  # the turn before the state was copied
            owner = played[owner].parent
        nodes.append((owner, turn))
    return nodes


def values_of(played: Sequence[Trajectory], least_share: float) -> dict[Node, Value]:
    """Return the values of all states: each episode adds its outcome, times the share of its way that is behind."""
    values: dict[Node, Value] = {}
    for at, one in enumerate(played):
        if one.status.is_evidence:
            for depth, node in enumerate(path_of(played, at)):
                share = max((depth + 1) / (len(one.turns) + 1), least_share)
                values.setdefault(node, Value()).add(share if one.success else -share)
    return values


def continuations(played: Sequence[Trajectory]) -> dict[Node, int]:
    """Return the number of turns that were sampled in each state but the first."""
    found: dict[Node, int] = {}
    for at, one in enumerate(played):
        if one.status.is_evidence:
            for turn, node in enumerate(path_of(played, at)):
                if turn > 0 and turn >= one.branch_turn:
                    found[node] = found.get(node, 0) + 1
    return found


def score(node: Node, played: Sequence[Trajectory], values: dict[Node, Value], options: DeepSearchOptions) -> float:
    """Return the priority of a state: a weighted sum of values, surprise and depth."""
    owner, depth = node
    before = path_of(played, owner)[depth - 1]
    largest = max(len(one.turns) for one in played)
    surprise = -fmean(played[owner].turns[depth - 1].completion.logprobs or (0.0,))
    return (
        options.parent_weight * math.tanh(values[before].mean)
        + options.own_weight * math.tanh(values[node].mean)
        + options.surprise_weight * surprise
        + options.depth_weight * math.sqrt(depth / largest)
    )
