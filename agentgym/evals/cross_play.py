"""Cross-play: every policy against every other in a game, with Elo ratings and their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from agentgym.canonical import digest
from agentgym.evals.statistics import task_interval
from agentgym.types import Status

Rows: TypeAlias = Sequence[Mapping[str, Any]]
"""Rows of ``episodes.jsonl``."""
Matches: TypeAlias = Mapping[tuple[int, int], Rows]
"""Episodes of a policy, given by its number, against another."""
RESULT_NAME = "cross_play.json"
"""File of the ratings in a cross-play's folder."""
MEAN_ELO = 1000.0
_POINTS_PER_TENFOLD = 400.0
_NUM_RESAMPLES = 1000
_NUM_STEPS = 2000
_CLOSE_ENOUGH = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The games of a policy against another. A game is won if the policy's return is positive, and drawn if it is 0.

    A player that breaks the rules or has no room left loses the game.
    """

    policy: str
    opponent: str
    num_games: int
    """Valid games."""
    num_failed: int
    """Games without a result, because the infrastructure failed."""
    num_won: int
    num_drawn: int
    mean_return: float | None
    """Mean return, without games that were over before the policy's first move; None if all were."""
    return_low: float | None
    """Lower end of the 95 % bootstrap interval of :attr:`mean_return` over tasks."""
    return_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A policy's Elo rating with its 95 % bootstrap interval over tasks; the mean rating is 1000."""

    policy: str
    elo: float
    low: float
    high: float
    points: float
    """Mean points of a game: 1 for a win, 0.5 for a draw."""
    num_games: int


def pairings(policies: Sequence[str], matches: Matches) -> list[Pairing]:
    """Return the results of each policy against each other.

    Raises:
        ValueError: a pair has no valid game.
    """
    return [_pairing(policies[one], policies[other], rows) for (one, other), rows in sorted(matches.items())]


def ratings(policies: Sequence[str], matches: Matches, *, seed: int = 0) -> list[Rating]:
    """Return Elo ratings, the best policy first.

    A rating difference of 400 means odds of 10 to 1. Ratings are those of the Bradley-Terry model with the greatest
    likelihood, where a draw is half a win, and each pair has drawn one game in addition: a policy that wins all games
    has a finite rating. Source: D. R. Hunter, "MM algorithms for generalized Bradley-Terry models" (2004).

    Args:
        matches: each ordered pair of policies with the episodes of the first one.
        seed: seed of the resamples of tasks.

    Example:
        >>> played = {"seed": 0, "status": "completed", "num_turns": 1}
        >>> won, lost = ([{**played, "task_id": str(n), "return": r} for n in range(9)] for r in (1.0, -1.0))
        >>> [(one.policy, round(one.elo)) for one in ratings(["a", "b"], {(0, 1): won, (1, 0): lost})]
        [('a', 1314), ('b', 686)]
    """
    points, num_games = _by_task(len(policies), matches)
    rng = np.random.default_rng(seed)
    num_tasks = len(points)
    drawn = rng.multinomial(num_tasks, np.full(num_tasks, 1 / num_tasks), size=_NUM_RESAMPLES)
    weights = np.concatenate([np.ones((1, num_tasks)), drawn])
    elo = _elo(np.tensordot(weights, points, axes=1), np.tensordot(weights, num_games, axes=1))
    low, high = np.quantile(elo[1:], [0.025, 0.975], axis=0)
    of_policy = num_games.sum(axis=(0, 2))
    found = [
        Rating(
            policy=name,
            elo=float(elo[0, n]),
            low=float(low[n]),
            high=float(high[n]),
            points=float(points[:, n].sum() / of_policy[n]),
            num_games=int(of_policy[n]),
        )
        for n, name in enumerate(policies)
    ]
    return sorted(found, key=lambda rating: -rating.elo)


def _pairing(policy: str, opponent: str, rows: Rows) -> Pairing:
    valid = _valid(rows)
    if not valid:
        raise ValueError(f"{policy} has no valid game against {opponent}")
    points = [_points_of(row) for row in valid]
    played = [row for row in valid if row["num_turns"]]
    span = task_interval([row["return"] for row in played], [_task_of(row) for row in played]) if played else None
    return Pairing(
        policy=policy,
        opponent=opponent,
        num_games=len(valid),
        num_failed=len(rows) - len(valid),
        num_won=points.count(1.0),
        num_drawn=points.count(0.5),
        mean_return=span.value if span else None,
        return_low=span.low if span else None,
        return_high=span.high if span else None,
    )


def _valid(rows: Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if Status(row["status"]).is_evidence]


def _points_of(row: Mapping[str, Any]) -> float:
    """Return the policy's points of a game: 1 for a win, 0.5 for a draw.

    A game in which the policy had no turn ended by the other's forfeit, and its return is not known.
    """
    outcome = row["return"] if row["num_turns"] else 2 * bool(row["success"]) - 1
    return (float(np.sign(outcome)) + 1) / 2


def _task_of(row: Mapping[str, Any]) -> str:
    return digest([row["task_id"], row.get("content_hash", "")])


def _by_task(num_policies: int, matches: Matches) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of each policy against each other and the numbers of their games, both (task, policy, policy).

    A game counts for both players, in whichever pair's episodes it is.
    """
    tasks = dict.fromkeys(_task_of(row) for rows in matches.values() for row in _valid(rows))
    number = {task: n for n, task in enumerate(tasks)}
    points = np.zeros((len(tasks), num_policies, num_policies))
    num_games = np.zeros_like(points)
    for (one, other), rows in matches.items():
        for row in _valid(rows):
            own = _points_of(row)
            task = number[_task_of(row)]
            points[task, one, other] += own
            points[task, other, one] += 1 - own
            num_games[task, one, other] += 1
            num_games[task, other, one] += 1
    return points, num_games


def _elo(points: np.ndarray, num_games: np.ndarray) -> np.ndarray:
    """Return ratings by the model of Bradley and Terry, for a batch of (policy, policy) tables."""
    others = 1 - np.eye(points.shape[-1])
    num_won = ((points + 0.5) * others).sum(axis=-1)
    met = (num_games + 1) * others
    strength = np.ones(num_won.shape)
    for _ in range(_NUM_STEPS):
        before = strength
        strength = num_won / (met / (strength[..., :, None] + strength[..., None, :])).sum(axis=-1)
        strength /= np.exp(np.log(strength).mean(axis=-1, keepdims=True))
        if np.abs(np.log(strength / before)).max() < _CLOSE_ENOUGH:
            break
    return MEAN_ELO + _POINTS_PER_TENFOLD * np.log10(strength)
