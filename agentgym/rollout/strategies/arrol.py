"""Episodes that are cancelled while they are played, so that a group keeps about as many successes as failures.

Source: "Prune as You Generate: Online Rollout Pruning for Faster and Better RLVR" (ARRoL). The members of a group pause
after ``after`` turns. A share ``keep`` of the group goes on: those whose expected share of successes is nearest to
``target``. The paper predicts the success of a part by a small trained head. Here the prediction is computed: the mean
probability of the sampled tokens times the share of valid turns, scaled to the success rate of the task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean
from typing import Annotated

from agentgym.plugins import Options
from agentgym.rollout.strategies.component import pruning
from agentgym.settings import Count, Fraction, Range
from agentgym.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrolOptions(Options):
    """Settings of pruning; ``keep`` and ``target`` are the paper's."""

    kind: str = "arrol"
    after: Count = 4
    """Turns after which members pause."""
    keep: Annotated[float, Range(above=0, below=1)] = 0.5
    """Share of the group that is played to its end. Members that end before the pause count, and are always kept."""
    target: Fraction = 0.5
    """Wanted share of successes."""


@pruning(
    "arrol",
    paper="Prune as You Generate: Online Rollout Pruning for Faster and Better RLVR",
    status="experimental",
    limits="success is predicted from probabilities and invalid turns, where the paper trains a head; the pause is "
    "after turns, where it is after 512 tokens. Groups keep what ends early, which biases them towards short episodes",
    test="tests/rollout/test_pruned.py::test_arrol_keeps_the_members_that_balance_the_group",
)
def arrol(
    ended: Sequence[Trajectory],
    running: Sequence[Trajectory],
    rate: float | None,
    group_size: int,
    options: ArrolOptions,
) -> list[int]:
    """Return the indices of the running members that go on.

    Example:
        >>> arrol([], [], None, 8, ArrolOptions())
        []
    """
    num_kept = min(len(running), max(0, round(options.keep * group_size) - len(ended)))
    chances = scaled([promise(one) for one in running], 0.5 if rate is None else rate)
    ranked = sorted(range(len(running)), key=lambda at: (chances[at], at))
    num_won = sum(bool(one.success) for one in ended)
    wanted = options.target * (len(ended) + num_kept)

    def distance(num_low: int) -> float:
        chosen = ranked[:num_low] + ranked[len(ranked) - num_kept + num_low :]
        return abs(num_won + sum(chances[at] for at in chosen) - wanted)

    num_low = min(range(num_kept + 1), key=lambda at: (round(distance(at), 12), abs(2 * at - num_kept)))
    return sorted(ranked[:num_low] + ranked[len(ranked) - num_kept + num_low :])


def promise(episode: Trajectory) -> float:
    """Return the geometric mean of the probabilities of an episode's tokens, times its share of valid turns."""
    logprobs = list(chain.from_iterable(turn.completion.logprobs for turn in episode.turns))
    valid = [turn.is_valid and not turn.is_void for turn in episode.turns]
    return math.exp(fmean(logprobs or (0.0,))) * fmean(valid or (1.0,))


def scaled(promises: Sequence[float], rate: float) -> list[float]:
    """Return chances with the mean ``rate``, as far as none exceeds 1.

    Example:
        >>> scaled([0.25, 0.75], 0.25)
        [0.125, 0.375]
    """
    mean = fmean(promises or (1.0,))
    return [min(1.0, one * rate / mean) if mean else rate for one in promises]
