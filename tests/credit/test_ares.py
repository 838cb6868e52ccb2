"""ARES's reward: worked examples of its bands and of exploring tokens, its memory, and a run that it changes."""

from __future__ import annotations

import math

import pytest
from testkit.acting import weights_after
from testkit.credit_tables import assert_close, bandits

from agentgym.credit.shapers.ares import AresOptions, ares, entropy_score
from agentgym.credit.table import TurnTable


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def made(*entropies: list[float], rewards: list[float], groups: list[int]) -> TurnTable:
    """Return bandits with an entropy per token."""
    return bandits(*rewards, groups=groups).with_columns(
        num_tokens=[len(one) for one in entropies], token_entropy=[value for one in entropies for value in one]
    )


def test_scores() -> None:
    """A target of 10 allows 1.5 tokens more in easy tasks, 2.5 in medium and 3.5 in hard ones."""
    assert entropy_score(12.5, 10, "easy", True, 0.5) == pytest.approx(-0.5 * (0.5 / 2) / 3.5)
    assert entropy_score(5, 10, "medium", True, 0.5) == pytest.approx(-0.5 * (2.5**2 / 6) / 5.5)
    assert entropy_score(12, 10, "hard", True, 0.5) == pytest.approx(0.6 * sigmoid(5.5 / 3))
    assert entropy_score(4.5, 10, "hard", True, 0.5) == pytest.approx(-0.6 * 0.5 * (4 / 8) / 7.5)
    wrong = [entropy_score(14.5, 10, band, False, 0.5) for band in ("easy", "medium", "hard")]
    assert wrong == pytest.approx([0.3 * sigmoid(1.5), 0.4 * sigmoid(2 / 2.5), 0.6 * sigmoid(1 / 3)])


def test_ares() -> None:
    """Windows of two: the first trajectory has means of 1.5, 1 and 0.5 after its first three tokens, two explore."""
    table = made([9, 1, 2, 0, 1], [0, 0, 0, 0, 0], rewards=[1, 0], groups=[0, 0])
    known = {"threshold": 1.0, "medium": 8.0}
    shaped, memory = ares(table, known, AresOptions(window=2, alpha=0.5))
    # the margin is 2; 2 tokens are 6 below the target, 4 beyond the margin, and kappa is 3
    assert_close(shaped.table.reward, [1 - 0.5 * (4 - 1.5) / 5, 0.4 * sigmoid(0)])
    assert memory == {"threshold": 1.0, "medium": 1.0}, "the groups' mean number is the next target"


def test_the_first_batch_makes_threshold_and_targets() -> None:
    table = made([9, 1, 2, 0, 1], [0, 0, 0, 0, 0], rewards=[1, 1], groups=[0, 0])
    _, memory = ares(table, {}, AresOptions(window=2, quantile=1.0))
    assert memory == {"threshold": pytest.approx(0.75), "easy": 1.0}


def test_short_trajectories_have_no_window() -> None:
    shaped, memory = ares(made([1], [2], rewards=[1, 0], groups=[0, 1]), {}, AresOptions())
    assert memory == {"easy": 0.0, "hard": 0.0}, "the threshold is made by the next batch"
    assert_close(shaped.table.reward, [1.0, 0.36 * sigmoid(0)])


def test_right_answers_earn_more_at_the_default() -> None:
    alpha = AresOptions().alpha
    right = min(1 + entropy_score(n, t, band, True, alpha) for n in range(40) for t in range(40) for band in ("hard",))
    wrong = max(entropy_score(n, t, "hard", False, alpha) for n in range(40) for t in range(40))
    assert right > wrong


def test_it_acts_in_a_run() -> None:
    grpo = ("credit.estimator=grpo",)
    chosen = (*grpo, 'credit.shapers=[{"kind": "ares"}]')
    assert weights_after(*chosen) != weights_after(*grpo)
