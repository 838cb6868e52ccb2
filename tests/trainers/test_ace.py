"""ACE: a worked example of its scale, its edges, and a run that it changes."""

from __future__ import annotations

import math

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.ace import AceOptions, prepare_ace


def scaled(shift: list[float], advantage: list[float], trajectory: list[int], alpha: float = 1.0) -> list[float]:
    before = torch.full((len(shift),), -2.0, dtype=torch.float64)
    made = prepare_ace(
        before + torch.tensor(shift),
        before,
        torch.tensor(trajectory),
        torch.tensor(advantage, dtype=torch.float64),
        AceOptions(alpha=alpha),
    )
    return made["scaled"].tolist()


def test_ace() -> None:
    """Mean shifts of 1 and -1: softplus(1) = 1.313262, softplus(-1) = 0.313262; a right answer keeps its advantage."""
    made = scaled([0.5, 1.5, -1.0, 3.0], [-1.0, -1.0, -1.0, 1.0], [4, 4, 7, 9])
    assert made == pytest.approx([-2.313262, -2.313262, -1.313262, 1.0], abs=1e-6)
    assert scaled([1.0], [-1.0], [0], alpha=0.0) == [-1.0]


def test_a_longer_answer_is_not_more_confident() -> None:
    one, many = scaled([1.0], [-1.0], [0]), scaled([1.0] * 50, [-1.0] * 50, [0] * 50)
    assert many == pytest.approx(one * 50)


def test_far_shifts_stay_finite() -> None:
    assert all(math.isfinite(one) for one in scaled([300.0, -300.0], [-1.0, -1.0], [0, 1]))


def test_it_acts_in_a_run() -> None:
    assert weights_after("loss.kind=ace") != weights_after("loss.kind=dapo")
    assert weights_after("loss.kind=ace") != weights_after("loss.kind=ace", 'loss.options={"kind": "ace", "alpha": 9}')
