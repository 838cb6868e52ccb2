"""Arbitrary-entropy policy optimisation: worked examples, their edges, and a run that it changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.arbitrary_entropy import (
    ArbitraryEntropyOptions,
    at_temperatures,
    prepare_arbitrary_entropy,
)

MEASURED = torch.tensor([[0.5, -0.5], [0.25, -0.25]], dtype=torch.float64).abs().log() * torch.tensor([1.0, 2.0])


def mixed(entropy: float, reward: list[float], **options: Any) -> list[float]:
    made = prepare_arbitrary_entropy(
        MEASURED,
        torch.full((2,), entropy, dtype=torch.float64),
        torch.tensor([1.0, -1.0], dtype=torch.float64),
        torch.tensor(reward),
        torch.tensor([3, 5]),
        ArbitraryEntropyOptions(**options),
    )
    return made["mixed"].tolist()


def test_arbitrary_entropy() -> None:
    """0.1 nats off, half of the trajectories right: 0.1 / 0.5 = 0.2, and 0.2 / 1.2 is the share of the other policy."""
    distribution = torch.tensor([[0.8, 0.2]], dtype=torch.float64).log()
    hot, cold = at_temperatures(distribution, torch.tensor([1]), ArbitraryEntropyOptions(hot=2.0, cold=0.5))[0].tolist()
    assert hot == pytest.approx(math.log((1 / 3) / 0.2)) and cold == pytest.approx(math.log((1 / 17) / 0.2))
    share = 0.2 / 1.2
    assert mixed(0.4, [1.0, 0.0]) == pytest.approx([(1 - share) + share * 0.5, -(1 - share)]), "hot"
    assert mixed(0.6, [1.0, 0.0]) == pytest.approx([(1 - share) + share * 0.25, -(1 - share)]), "cold"


def test_on_target_and_without_a_right_trajectory_advantages_stay() -> None:
    assert mixed(0.5, [1.0, 0.0]) == [1.0, -1.0]
    assert mixed(0.1, [0.0, 0.0]) == [1.0, -1.0]


def test_a_far_entropy_counts_as_the_most() -> None:
    assert mixed(9.0, [1.0, 1.0]) == mixed(0.7, [1.0, 1.0])


def test_its_share_is_bounded_below_1() -> None:
    assert mixed(0.4, [1.0, 0.0], most=1e9)[1] < 0


def test_it_acts_in_a_run() -> None:
    chosen = "loss.kind=arbitrary_entropy"
    assert weights_after(chosen) != weights_after("loss.kind=dapo")
    assert weights_after(chosen) != weights_after(
        chosen, 'loss.options={"kind": "arbitrary_entropy", "target": 9.0, "hot": 2.0, "most": 9.0}'
    )
