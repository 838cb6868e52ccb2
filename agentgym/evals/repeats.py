"""Statistics of repeated episodes per task: pass@k, pass^k, best of k, and majority votes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random
from statistics import fmean
from typing import Any

from agentgym.evals.statistics import best_of, chosen_of, pass_all, pass_at
from agentgym.scoring.text import normalize

REPEATS = {
    "pass_at": "pass@k",
    "pass_all": "pass^k",
    "best_of": "best score of k",
    "chosen": "success of the best by score",
    "majority": "majority of k",
}
"""Statistics of repeated episodes per task, with their displayed names."""
_FEWER = "num_tasks"
_NUM_VOTES = 2000


def repeats_of(tasks: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, float]]:
    """Return the statistics of repeated episodes by number of trials; empty if no task has several.

    Args:
        tasks: the rows of each task. Statistics of ``k`` trials use the tasks with at least ``k`` valid ones;
            ``num_tasks`` says how many, where it is not all of them.

    Example:
        >>> repeats_of([[{"success": True}, {"success": False}], [{"success": True}, {"success": True}]])
        {'pass_at': {'1': 0.75, '2': 1.0}, 'pass_all': {'1': 0.75, '2': 0.5}}
        >>> repeats_of([[{"success": True}, {"success": False}], [{"success": True}]])["num_tasks"]
        {'2': 1.0}
    """
    most = max(len(rows) for rows in tasks)
    if most == 1:
        return {}
    numbers = sorted({most, *(1 << power for power in range(most.bit_length()))} - {0})
    found: dict[str, dict[str, float]] = {"pass_at": {}, "pass_all": {}}
    for k in numbers:
        trials = [(len(rows), sum(bool(row["success"]) for row in rows)) for rows in tasks if len(rows) >= k]
        found["pass_at"][str(k)] = fmean(pass_at(size, wins, k) for size, wins in trials)
        found["pass_all"][str(k)] = fmean(pass_all(size, wins, k) for size, wins in trials)
        if all("score" in row for rows in tasks for row in rows):
            scores = [[float(row["score"]) for row in rows] for rows in tasks if len(rows) >= k]
            found.setdefault("best_of", {})[str(k)] = fmean(best_of(some, k) for some in scores)
            truths = [[float(row["env_success"]) for row in rows] for rows in tasks if len(rows) >= k]
            chosen = (chosen_of(some, truth, k) for some, truth in zip(scores, truths, strict=True))
            found.setdefault("chosen", {})[str(k)] = fmean(chosen)
    if all(row.get("answer") is not None for rows in tasks for row in rows):
        voting = {k: [rows for rows in tasks if len(rows) >= k] for k in numbers if k > 1}
        found["majority"] = {str(k): fmean(_vote_of(rows, k) for rows in some) for k, some in voting.items()}
    fewer = {str(k): float(sum(len(rows) >= k for rows in tasks)) for k in numbers}
    if fewer := {k: number for k, number in fewer.items() if number < len(tasks)}:
        found[_FEWER] = fewer
    return found


def repeat_texts(repeats: Mapping[str, Mapping[str, float]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the statistics of :func:`repeats_of` as text: each measure's name, and its values by number of trials.

    Example:
        >>> repeat_texts({"pass_at": {"1": 0.5, "2": 0.75}, "num_tasks": {"2": 8.0}})
        [('pass@k', [('1', '50.0%'), ('2', '75.0% of 8 tasks')])]
    """

    def told(name: str, k: str, value: float) -> str:
        num_tasks = repeats.get(_FEWER, {}).get(k)
        return f"{value:.1%}" + (f" of {num_tasks:.0f} task{'s' * (num_tasks != 1)}" if num_tasks else "")

    return [
        (REPEATS[name], [(k, told(name, k, value)) for k, value in by_k.items()])
        for name, by_k in repeats.items()
        if name in REPEATS
    ]


def _vote_of(rows: Sequence[Mapping[str, object]], k: int) -> float:
    """Return the probability that the most frequent answer of ``k`` trials is right, with ties broken at random.

    All choices of ``k`` trials count, or :data:`_NUM_VOTES` random ones if there are more.
    """
    trials = [(normalize(str(row["answer"])), bool(row["success"])) for row in rows]
    if math.comb(len(trials), k) <= _NUM_VOTES:
        return fmean(_wins_vote(some) for some in combinations(trials, k))
    draw = Random(0)
    return fmean(_wins_vote(draw.sample(trials, k)) for _ in range(_NUM_VOTES))


def _wins_vote(trials: Sequence[tuple[str, bool]]) -> float:
    """Return the share of right answers among the most frequent ones.

    Example (a tie of a right and a wrong answer, and a wrong answer that most gave):
        >>> _wins_vote([("4", True), ("5", False)]), _wins_vote([("5", False), ("5", False), ("4", True)])
        (0.5, 0.0)
    """
    counts = Counter(answer for answer, _ in trials)
    most = max(counts.values())
    return fmean(right for answer, right in trials if counts[answer] == most)
