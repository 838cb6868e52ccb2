"""Ratings of cross-play equal hand-computed ones, and recover strengths that the games were drawn from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from agentgym.evals.cross_play import MEAN_ELO, pairings, ratings

Rows = list[dict[str, Any]]


def games(returns: list[float], **changes: Any) -> Rows:
    played = {"status": "completed", "num_turns": 1, "success": False}
    return [{**played, "task_id": str(n), "return": value, **changes} for n, value in enumerate(returns)]


def test_two_policies_have_the_closed_form() -> None:
    """With 7.5 of 10 points, and one drawn game added, the odds are 8 to 3."""
    matches = {(0, 1): games([2, 1, 1, -1, 0]), (1, 0): games([-1, -2, -1, -1, 1])}
    best, worst = ratings(["a", "b"], matches)
    assert (best.policy, best.points, best.num_games, worst.points) == ("a", 0.75, 10, 0.25)
    assert best.elo - worst.elo == pytest.approx(400 * math.log10(8 / 3))
    assert (best.elo + worst.elo) / 2 == pytest.approx(MEAN_ELO)
    assert best.low < best.elo < best.high


def test_ratings_recover_the_strengths_of_the_players() -> None:
    rng = np.random.default_rng(0)
    true = np.array([-200.0, -50.0, 0.0, 250.0])
    matches = {
        (one, other): games(
            [1.0 if rng.random() < 1 / (1 + 10 ** ((true[other] - true[one]) / 400)) else -1.0 for _ in range(400)]
        )
        for one in range(4)
        for other in range(4)
        if one != other
    }
    found = {int(rating.policy): rating for rating in ratings(["0", "1", "2", "3"], matches)}
    for player, strength in enumerate(true - true.mean() + MEAN_ELO):
        assert abs(found[player].elo - strength) < 25
        assert found[player].high - found[player].low < 80
    assert ratings(["0", "1", "2", "3"], matches) == ratings(["0", "1", "2", "3"], matches)


def test_failed_games_are_no_games_and_forfeits_count() -> None:
    """A game that ended before the first move has no return; who won it is known."""
    unplayed = games([0.0, 0.0], num_turns=0, success=True)
    broken = games([1.0], status="env_error")
    matches = {(0, 1): [*games([-1.0]), *unplayed, *broken], (1, 0): games([1.0])}
    first, second = pairings(["a", "b"], matches)
    assert (first.num_games, first.num_failed, first.num_won, first.num_drawn) == (3, 1, 2, 0)
    assert (first.mean_return, second.mean_return) == (-1.0, 1.0)
    assert {one.policy: one.points for one in ratings(["a", "b"], matches)} == {"a": 0.5, "b": 0.5}
    assert pairings(["a", "b"], {(0, 1): unplayed})[0].mean_return is None
    with pytest.raises(ValueError, match="no valid game"):
        pairings(["a", "b"], {(0, 1): broken})
