"""The unlikeliness reward: a worked example, its edges, and a run that it changes."""

from __future__ import annotations

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.unlikeliness import UnlikelinessOptions, prepare_unlikeliness

OF = torch.tensor([0, 0, 1, 2, 3, 3])


def advantages(logprob: list[float], reward: list[float], group: list[int], penalty: float = 0.5) -> list[float]:
    made = prepare_unlikeliness(
        torch.tensor(logprob, dtype=torch.float64),
        torch.tensor(reward)[OF],
        OF,
        torch.tensor(group)[OF],
        UnlikelinessOptions(penalty=penalty),
    )
    return [float(made["unlikely_advantage"][at]) for at in (0, 2, 3, 4)]


def test_unlikeliness() -> None:
    """Mean log-probabilities -3, -2, -1, -4 have ranks 1, 2, 3, 0: rewards 0.875, 0.75, 0, 1."""
    made = advantages([-2, -4, -2, -1, -5, -3], [1, 1, 0, 1], [0] * 4)
    mean, std = 0.65625, 0.449247
    assert made == pytest.approx([(r - mean) / std for r in (0.875, 0.75, 0.0, 1.0)], abs=1e-4)
    assert made[3] > made[0] > made[1] > 0 > made[2], "the less likely, the more"


def test_a_group_of_successes_still_teaches() -> None:
    made = advantages([-2, -4, -2, -1, -5, -3], [1, 1, 1, 1], [0] * 4)
    assert made[3] > made[0] > 0 > made[1] > made[2]
    assert advantages([-1] * 6, [0, 0, 0, 0], [0] * 4) == [0, 0, 0, 0]


def test_groups_do_not_meet_and_a_group_of_one_keeps_its_reward() -> None:
    made = advantages([-2, -4, -2, -1, -5, -3], [1, 0, 1, 1], [0, 0, 5, 9])
    assert made == pytest.approx([0.707106, -0.707106, 1, 1], abs=1e-4)


def test_it_acts_in_a_run() -> None:
    grpo = ("credit.estimator=grpo",)
    assert weights_after(*grpo, "loss.kind=unlikeliness") != weights_after(*grpo)
    strong = 'loss.options={"kind": "unlikeliness", "penalty": 1}'
    assert weights_after(*grpo, "loss.kind=unlikeliness") != weights_after(*grpo, "loss.kind=unlikeliness", strong)
