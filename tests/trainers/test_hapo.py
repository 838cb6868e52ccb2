"""HAPO: worked examples of its levels, bounds and advantages, their edges, and a run that it changes."""

from __future__ import annotations

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.hapo import HapoOptions, hapo, prepare_hapo


def test_hapo() -> None:
    """Log-entropies of -2, -1, 0 and 2 beside the third of them, scaled to -1..1 on either side."""
    entropy = torch.tensor([-2.0, -1.0, 0.0, 2.0], dtype=torch.float64).exp()
    level = prepare_hapo(entropy, HapoOptions(pivot=2 / 3))["level"]
    assert level.tolist() == pytest.approx([-1.0, -0.5, 0.0, 1.0])
    released = prepare_hapo(entropy, HapoOptions(pivot=2 / 3, signed=False))["level"]
    assert released.tolist() == pytest.approx([1.0, 0.5, 0.0, 1.0])
    # a certain token may fall to 1 - 0.2 * 2, an uncertain one may rise to 1 + 0.2 * 2
    ratio = torch.tensor([0.7, 1.3, 1.0], dtype=torch.float64)
    advantage = torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)
    levels = torch.tensor([-1.0, 1.0, -0.5], dtype=torch.float64)
    loss, was_clipped = hapo(ratio, advantage, levels, 0.8, 1.2, 10.0, HapoOptions())
    # its ratio has moved: the certain one keeps its advantage, the uncertain one's doubles, the third's halves
    assert loss.tolist() == pytest.approx([0.7, -2 * 1.3, -0.5])
    assert not was_clipped.any()
    loss, was_clipped = hapo(ratio, advantage, torch.zeros(3), 0.8, 1.2, 10.0, HapoOptions())
    assert loss.tolist() == pytest.approx([0.8, -1.2, -1.0]) and was_clipped.tolist() == [True, True, False]


def test_equal_entropies_and_single_tokens_have_the_level_0() -> None:
    for entropy in (torch.ones(3), torch.zeros(2), torch.tensor([0.4])):
        assert not prepare_hapo(entropy, HapoOptions())["level"].any()


def test_a_far_ratio_of_a_negative_advantage_is_bounded() -> None:
    loss, _ = hapo(torch.tensor([50.0]), torch.tensor([-1.0]), torch.zeros(1), 0.8, 1.2, 10.0, HapoOptions())
    assert loss.item() == 10.0


def test_it_acts_in_a_run() -> None:
    several = "loss.num_updates=2"
    chosen = ("loss.kind=hapo", several)
    assert weights_after(*chosen) != weights_after("loss.kind=ppo_clip", several)
    assert weights_after(*chosen) != weights_after(*chosen, 'loss.options={"kind": "hapo", "pivot": 0.2}')
