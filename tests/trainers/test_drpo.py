"""DRPO: a worked example, its gradient against autograd, and a run that it changes."""

from __future__ import annotations

import math

import pytest
import torch
from testkit.acting import weights_after
from torch import Tensor

from agentgym.trainers.losses.published.drpo import DrpoOptions, prepare_drpo

OF = torch.tensor([0, 1, 1, 1, 2, 2, 3])
REWARDS = torch.tensor([1.0, 1.0, 0.0, 0.0])
WEIGHT = torch.full((7,), 1 / 7, dtype=torch.float64)


def made(logprob: Tensor, options: DrpoOptions) -> dict[str, Tensor]:
    group = torch.zeros(7, dtype=torch.long)
    return prepare_drpo(logprob, logprob, REWARDS[OF], OF, group, WEIGHT, options)


def test_drpo() -> None:
    """Right episodes of 1 and 3 tokens: with a scale of 2 tokens, the second weighs 1 / e of the first."""
    logprob = torch.tensor([-1.0, -2.0, -2.0, -2.0, -3.0, -3.0, -3.0], dtype=torch.float64)
    slope = made(logprob, DrpoOptions(max_tokens=20, temperature=0.1))["slope"] * WEIGHT
    first, second = 1 / (1 + math.exp(-1)), 1 / (1 + math.e)
    assert (first, second) == pytest.approx((0.731059, 0.268941), abs=1e-6)
    assert slope.tolist() == pytest.approx([-first, *[-second / 3] * 3, 0.25, 0.25, 0.5])
    value = made(logprob, DrpoOptions(max_tokens=20, temperature=0.1))["value"] * WEIGHT
    assert float(value.sum()) == pytest.approx(first * 1 + second * 2 - 3)


def test_the_slope_is_that_of_the_loss() -> None:
    leaf = torch.linspace(-2, -0.2, 7, dtype=torch.float64).requires_grad_()
    one, two, three, four = (leaf[at == OF].mean() for at in range(4))
    weights = [math.exp((1 - n / 8) / 0.5) for n in (1, 3)]
    right = (weights[0] * one + weights[1] * two) / sum(weights)
    whole = 3 * (torch.stack([three, four]) / 3).exp().mean().log() - right
    (expected,) = torch.autograd.grad(whole, leaf)
    found = made(leaf.detach(), DrpoOptions(max_tokens=8, temperature=0.5, tau=3.0))
    torch.testing.assert_close(found["slope"] * WEIGHT, expected)
    assert float((found["value"] * WEIGHT).sum()) == pytest.approx(float(whole.detach()))


def test_very_long_right_episodes_keep_a_weight() -> None:
    found = made(torch.full((7,), -1.0), DrpoOptions(max_tokens=1, temperature=1e-6))
    assert all(one.isfinite().all() for one in found.values())


def test_it_acts_in_a_run() -> None:
    chosen = ("loss.kind=drpo",)
    assert weights_after(*chosen) != weights_after("loss.kind=disco")
    assert weights_after(*chosen) != weights_after(*chosen, 'loss.options={"kind": "drpo", "max_tokens": 16}')
