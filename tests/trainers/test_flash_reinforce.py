"""FlashREINFORCE: worked examples of its weights, their edges, and a run that it changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.flash_reinforce import (
    FlashReinforceOptions,
    flash_reinforce,
    prepare_flash_reinforce,
)

OLD = torch.tensor([0.5, 0.5, 0.5, 0.5], dtype=torch.float64).log()
NOW = torch.tensor([0.5, 0.52, 0.9, 0.5], dtype=torch.float64).log()


def scored(reward: list[float], trajectory: list[int], **options: Any) -> list[float]:
    rewards = torch.tensor(reward, dtype=torch.float64)
    made = prepare_flash_reinforce(
        *(NOW, OLD, torch.tensor([0.1, 0.4, 0.3, 0.2]), rewards - 0.5, rewards),
        torch.tensor(trajectory),
        FlashReinforceOptions(**options),
    )
    return made["scored"].tolist()


def test_flash_reinforce() -> None:
    """Two trajectories of advantages 0.5 and -0.5; the second has drifted by 0.255 nats per token, more than 0.003."""
    assert scored([1.0, 1.0, 0.0, 0.0], [3, 3, 8, 8]) == pytest.approx([0.5, 0.5 * 1.04, 0.0, 0.0])
    assert scored([1.0, 1.0, 0.0, 0.0], [3, 3, 8, 8], delta=1.0) == pytest.approx([0.5, 0.52, -0.9, -0.5])
    loss, was_gated = flash_reinforce(NOW, torch.tensor([0.5, 0.0, -1.0, 0.0], dtype=torch.float64))
    assert loss.tolist() == pytest.approx([-0.5 * math.log(0.5), 0.0, math.log(0.9), 0.0])
    assert was_gated.tolist() == [False, True, False, True]


def test_the_most_uncertain_half_of_a_failed_trajectory_trains() -> None:
    made = scored([0.0, 0.0, 0.0, 1.0], [0, 0, 0, 1], delta=9.0, failed_share=0.5)
    assert [bool(one) for one in made] == [False, True, True, True], "two of three, rounded up"


def test_a_rejected_trajectory_of_an_infinite_ratio_stays_finite() -> None:
    far, right, one = torch.tensor([-1e4]), torch.tensor([1.0]), torch.tensor([0])
    made = prepare_flash_reinforce(torch.zeros(1), far, torch.zeros(1), right, right, one, FlashReinforceOptions())
    assert made["scored"].tolist() == [0.0]


def test_it_acts_in_a_run() -> None:
    chosen = "loss.kind=flash_reinforce"
    assert weights_after(chosen) != weights_after("loss.kind=reinforce")
    assert weights_after(chosen) != weights_after(
        chosen, 'loss.options={"kind": "flash_reinforce", "failed_share": 0.2}'
    )
