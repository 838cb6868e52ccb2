"""DPPO: worked examples of both divergences, and runs that it changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from testkit.acting import metrics_after, weights_after

from agentgym.trainers.losses.published.dppo import DppoOptions, binary_kl, dppo


def test_binary_kl() -> None:
    """From 0.5 to 0.8: 0.5 ln(0.5 / 0.8) + 0.5 ln(0.5 / 0.2)."""
    before, now = torch.tensor([0.5, 0.5]).double().log(), torch.tensor([0.8, 0.5]).double().log()
    assert binary_kl(before, now).tolist() == pytest.approx([0.223144, 0.0], abs=1e-6)


# each token moves by 0.3, by -0.3, or from 0.001 to 0.002, whose ratio is 2
@pytest.mark.parametrize(
    ("divergence", "advantage", "left"),
    [
        ("tv", 1.0, [True, False, False]),
        ("tv", -1.0, [False, True, False]),
        ("tv", 0.0, [False, False, False]),
        ("kl", 1.0, [True, False, False]),
        ("kl", -1.0, [False, True, False]),
    ],
)
def test_dppo(divergence: Any, advantage: float, left: list[bool]) -> None:
    before = torch.tensor([0.5, 0.5, 0.001]).double().log()
    now = torch.tensor([0.8, 0.2, 0.002]).double().log().requires_grad_()
    options = DppoOptions(divergence=divergence, cap=1.8)
    loss, gate = dppo(now, before, (now - before).exp(), torch.full((3,), advantage), options)
    assert gate.tolist() == left
    (gradient,) = torch.autograd.grad(loss.sum(), now)
    weights = [0.0 if out else -advantage * w for out, w in zip(left, (1.6, 0.4, 1.8), strict=True)]
    assert gradient.tolist() == pytest.approx(weights)
    assert loss.tolist() == pytest.approx([w * math.log(p) for w, p in zip(weights, (0.8, 0.2, 0.002), strict=True)])


def test_it_acts_in_a_run() -> None:
    assert weights_after("loss.kind=dppo", "loss.num_updates=3") != weights_after("loss.num_updates=3")
    narrow = ("loss.kind=dppo", "loss.num_updates=3", 'loss.options={"kind": "dppo", "low": 1e-9, "high": 1e-9}')
    assert weights_after(*narrow) != weights_after("loss.kind=dppo", "loss.num_updates=3")
    assert metrics_after(*narrow)[0]["clip_fraction"] > 0
