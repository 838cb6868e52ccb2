"""Down-sampling: sample many rollouts and train on the most informative ones (GRPO-RoC, PODS, D3S)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from agentgym.credit.component import selection
from agentgym.credit.selections.filters import members
from agentgym.credit.statistics import per_trajectory, token_rows, trajectories
from agentgym.credit.table import Bools, Floats, TurnTable
from agentgym.plugins import Options
from agentgym.settings import Count, PositiveFraction, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class RocOptions(Options):
    """Keys of GRPO-RoC."""

    kind: Literal["roc"] = "roc"
    keep: int = 16
    """Number of rollouts of a group that train. The group size should be about twice as large, and not smaller."""
    min_positive: int = 2
    min_negative: int = 2
    statistics: Literal["kept", "full"] = "kept"

    def check_together(self) -> None:
        is_ok = self.keep >= max(2, self.min_positive, self.min_negative)
        least = max(2, self.min_positive, self.min_negative)
        message = f"keep must be at least {least} (2, min_positive and min_negative), got {self.keep}"
        self.check(is_ok=is_ok, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsOptions(Options):
    """Keys of PODS."""

    kind: Literal["pods"] = "pods"
    keep: Annotated[int, Range(at_least=2)] = 8
    statistics: Literal["kept", "full"] = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class D3sOptions(Options):
    """Keys of D3S."""

    kind: Literal["d3s"] = "d3s"
    sample_share: PositiveFraction = 1.0
    """Share of the batch's trajectories that is kept: those whose advantages vary most."""
    start_share: PositiveFraction = 0.2
    """Share of the tokens that train at step 0; it grows linearly to 1 over ``anneal_steps``."""
    anneal_steps: Count = 200

    def idle(self) -> str:
        return "sample_share and start_share are 1" if self.sample_share == self.start_share == 1 else ""


@selection(
    "roc",
    paper="rStar2-Agent: Agentic Reasoning Technical Report",
    parity="microsoft/rStar@ecbfb94:rstar2_agent/down_sample/roc.py",
    columns=("num_calls", "num_errors", "num_answers"),
)
def roc(table: TurnTable, options: RocOptions = RocOptions()) -> Bools:
    """Keep the cleanest successes of a group and its first failures (GRPO-RoC); return the turns ``[N]`` that train.

    A group has P members with a return above 0 and Z others. Of n = ``keep`` members, ``round(Z n / (P + Z))`` come
    from the others and ``round(P n / (P + Z))`` from the positives (rounding half to even), and at least
    ``min_negative`` and ``min_positive`` if there are as many. Positives with the lowest :func:`roc_penalty` stay; the
    others stay in order of arrival. A group with fewer than ``keep`` members, or with equal returns, is dropped. If
    both numbers are rounded up, one more than ``keep`` stays; the released code raises an error there.

    Statistics are taken over the kept trajectories. Needs the columns ``num_calls`` and ``num_errors``, and reads
    ``num_answers`` if it exists.

    Source: "rStar2-Agent: Agentic Reasoning Technical Report" (``rstar2_agent/down_sample/roc.py``; the paper samples
    positives, the code sorts them).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1], [1], [0], [0]], group_of_trajectory=[0] * 4)
        >>> table = table.with_columns(num_calls=[2, 2, 2, 2], num_errors=[1, 0, 0, 0])
        >>> roc(table, RocOptions(keep=2, min_positive=1, min_negative=1)).tolist()
        [False, True, True, False]
    """
    view = trajectories(table)
    returns = per_trajectory(table, table.reward)
    penalty = roc_penalty(table)
    keep = np.zeros(len(returns), dtype=np.bool_)
    for index in members(view.group):
        if len(index) >= options.keep and np.ptp(returns[index]) > 0:
            keep[index[_roc_of_group(returns[index], penalty[index], options)]] = True
    return keep[view.of_row]


def roc_penalty(table: TurnTable) -> Floats:
    """Return GRPO-RoC's penalty of each trajectory ``[I]``: its share of failed calls plus a format penalty.

    A trajectory without calls counts as half failed (0.5). The format penalty is 1 without an answer, else
    ``min((answers - 1) / turns, 1)``. It reads the column ``num_answers``, and is 0 without that column. Recorded
    episodes have it (:func:`columns.recorded_columns`).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[0, 0], [0, 0]], group_of_trajectory=[0, 0])
        >>> table = table.with_columns(num_calls=[2, 2, 0, 0], num_errors=[1, 0, 0, 0], num_answers=[0, 1, 1, 1])
        >>> roc_penalty(table).tolist()
        [0.25, 1.0]
    """
    table.require("num_calls", "num_errors", by="roc")
    assert table.num_calls is not None and table.num_errors is not None
    calls = per_trajectory(table, table.num_calls)
    penalty = np.where(calls > 0, per_trajectory(table, table.num_errors) / np.maximum(calls, 1), 0.5)
    if table.num_answers is None:
        return penalty
    answers = per_trajectory(table, table.num_answers)
    surplus = np.minimum((answers - 1) / np.maximum(trajectories(table).num_turns, 1), 1.0)
    return np.asarray(penalty + np.where(answers == 0, 1.0, surplus), dtype=np.float64)


def _roc_of_group(returns: Floats, penalty: Floats, options: RocOptions) -> np.ndarray:
    positive, negative = np.flatnonzero(returns > 0), np.flatnonzero(returns <= 0)
    num_negative = round(len(negative) * options.keep / len(returns))
    num_positive = round(len(positive) * options.keep / len(returns))
    least_negative = min(options.min_negative, len(negative))
    least_positive = min(options.min_positive, len(positive))
    if num_negative <= least_negative:
        num_negative, num_positive = least_negative, options.keep - least_negative
    if num_positive <= least_positive:
        num_positive, num_negative = least_positive, options.keep - least_positive
    if num_negative < options.min_negative and num_positive < options.min_positive:
        return np.arange(len(returns))
    cleanest = positive[np.argsort(penalty[positive], kind="stable")]
    return np.append(cleanest[:num_positive], negative[:num_negative])


def most_varied(value: Floats, keep: int) -> Bools:
    """Mark the ``keep`` entries with the largest variance, shape as ``value``.

    Such a subset always consists of some of the lowest and some of the highest entries, so only ``keep + 1`` subsets
    have to be compared.

    Source: "Not All Rollouts are Useful: Down-Sampling Rollouts in LLM RL" (PODS).

    Example:
        >>> most_varied(np.array([1, 1, 0, 0.5, 0.2, 0.9]), 4).tolist()
        [True, True, True, False, True, False]
    """
    mask = np.ones(len(value), dtype=np.bool_)
    if keep >= len(value):
        return mask
    order = np.argsort(value, kind="stable")
    ordered = value[order] - value.mean()
    # With prefix sums the variance of "the k lowest and the keep - k highest" costs O(1) for each k.
    sums, squares = np.append(0.0, np.cumsum(ordered)), np.append(0.0, np.cumsum(ordered**2))
    num_low = np.arange(keep + 1)
    from_top = len(value) - (keep - num_low)
    total = sums[num_low] + sums[-1] - sums[from_top]
    square = squares[num_low] + squares[-1] - squares[from_top]
    variance = square / keep - (total / keep) ** 2
    # The tolerance keeps the choice among equal variances independent of rounding.
    best = int(np.flatnonzero(variance >= variance.max() - 1e-12)[0])
    mask[:] = False
    mask[order[:best]] = True
    descending = np.argsort(-value, kind="stable")  # not order[::-1]: earlier rollouts must win ties at both ends
    mask[descending[~mask[descending]][: keep - best]] = True
    return mask


@selection(
    "pods",
    paper="Not All Rollouts are Useful: Down-Sampling Rollouts in LLM RL",
    parity="YixuanEvenXu/pods@187f43b:trainer/maxvargrpo_trainer.py",
)
def pods(table: TurnTable, options: PodsOptions = PodsOptions()) -> Bools:
    """Keep the ``keep`` members of each group with the largest variance of returns.

    Returns the turns ``[N]`` that train. A group of at most ``keep`` members stays whole. Among subsets of equal
    variance the one with fewer low returns wins, among equal returns the earlier rollout. Statistics are taken over
    the kept trajectories.

    Source: "Not All Rollouts are Useful: Down-Sampling Rollouts in LLM RL".

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1], [1], [0], [0]], group_of_trajectory=[0] * 4)
        >>> pods(table, PodsOptions(keep=2)).tolist()
        [True, False, True, False]
    """
    view = trajectories(table)
    returns = per_trajectory(table, table.reward)
    keep = np.zeros(len(returns), dtype=np.bool_)
    for index in members(view.group):
        keep[index] = most_varied(returns[index], options.keep)
    return keep[view.of_row]


@selection(
    "d3s",
    paper="Learning More with Less (D3S)",
    status="experimental",
    columns=("num_tokens", "token_entropy"),
    is_after=True,
)
def d3s(table: TurnTable, advantage: Floats, step: int, options: D3sOptions = D3sOptions()) -> tuple[Bools, Bools]:
    """Experimental (reconstructed): keep trajectories whose advantages vary most, and their most informative tokens.

    Returns the turns ``[N]`` and the tokens ``[M]`` that train. Trajectories are chosen over the whole batch by the
    variance of their mean advantage. Of their tokens the share ``rho`` with the largest ``|A| H`` trains, where H is
    the token's entropy and ``rho`` grows linearly from ``start_share`` to 1. Needs the columns ``num_tokens`` and
    ``token_entropy``. Statistics are taken over the full group. A token that does not train stays in the context.

    Source: "Learning More with Less" (D3S; shares and annealing are ours).

    Example:
        >>> table = TurnTable.from_lists(rewards=[[1], [0], [0]], group_of_trajectory=[0] * 3)
        >>> table = table.with_columns(num_tokens=[1, 1, 1], token_entropy=[0.1, 1.0, 2.0])
        >>> d3s(table, np.array([1.0, -0.5, 0.2]), 0, D3sOptions(start_share=0.5))[1].tolist()
        [False, True, True]
    """
    table.require("num_tokens", "token_entropy", by="d3s")
    assert table.token_entropy is not None
    view = trajectories(table)
    mean = per_trajectory(table, advantage) / np.maximum(view.num_turns, 1)
    num_kept = int(np.ceil(options.sample_share * len(mean)))
    keep = most_varied(mean, num_kept)[view.of_row]
    rows = token_rows(table)
    entropy = np.where(np.isfinite(table.token_entropy), table.token_entropy, 0.0)
    score = np.where(keep[rows], np.abs(advantage)[rows] * entropy, -1.0)
    rho = min(1.0, options.start_share + (1.0 - options.start_share) * step / options.anneal_steps)
    num_tokens = int(np.ceil(rho * keep[rows].sum()))
    token_keep = np.zeros(len(score), dtype=np.bool_)
    token_keep[np.argsort(-score, kind="stable")[:num_tokens]] = True
    return keep, token_keep
