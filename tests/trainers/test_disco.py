"""DisCO: a worked example, its trust region, its gradient against autograd, and a run that it changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from testkit.acting import weights_after
from torch import Tensor

from agentgym.trainers.losses.published.disco import DiscoOptions, prepare_disco, separation, trust_region
from agentgym.trainers.losses.whole_episodes import Episodes

FOUR = Episodes(torch.arange(4), torch.zeros(4, dtype=torch.long))
SCORES = torch.tensor([-0.5, -1.0, -0.8, -2.0], dtype=torch.float64)
RIGHT = torch.tensor([1.0, 1.0, 0.0, 0.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("tau", "is_soft", "objective", "negatives"),
    [
        (10.0, True, 0.632011, [0.529964, 0.470036]),
        (1.0, True, 0.479865, [0.768525, 0.231475]),
        (1.0, False, 0.65, [0.5, 0.5]),
    ],
)
def test_disco(tau: float, is_soft: bool, objective: float, negatives: list[float]) -> None:
    """Two right scores of mean -0.75 against wrong scores -0.8 and -2."""
    slope, value = separation(SCORES, RIGHT, FOUR, tau, is_soft=is_soft)
    assert float(-value.sum()) == pytest.approx(objective, abs=1e-6)
    assert slope.tolist() == pytest.approx([-0.5, -0.5, *negatives], abs=1e-6)


def test_a_group_of_one_kind_counts_as_zero() -> None:
    two = Episodes(torch.arange(4), torch.tensor([0, 0, 1, 1]))
    slope, value = separation(SCORES, torch.tensor([1.0, 0.0, 0.0, 0.0]), two, 1.0)
    assert slope.tolist() == pytest.approx([-0.5, 0.5, 0.0, 0.0]), "the mean over both groups"
    assert float(-value.sum()) == pytest.approx(0.25)


@pytest.mark.parametrize(("kl", "force"), [(3e-4, 0.2), (5e-5, 0.0)])
def test_the_trust_region_pulls_above_delta_alone(kl: float, force: float) -> None:
    slope, value = trust_region(torch.full((4,), -kl, dtype=torch.float64), 1000.0, 1e-4, "k1")
    assert slope.tolist() == pytest.approx([-force / 4] * 4) and float(value.sum()) == pytest.approx(force * kl)


@pytest.mark.parametrize("score", ["logprob", "ratio"])
@pytest.mark.parametrize("negatives", ["softmax", "mean"])
@pytest.mark.parametrize("kl", ["k1", "k3"])
def test_the_slope_is_that_of_the_loss(score: Any, negatives: Any, kl: Any) -> None:
    of = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4])
    old, new = torch.linspace(-2, -0.1, 9, dtype=torch.float64), torch.linspace(-1.8, -0.3, 9, dtype=torch.float64)
    groups, rewards = torch.tensor([4, 4, 4, 8, 8]), torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])
    weight = torch.full((9,), 1 / 9, dtype=torch.float64)
    options = DiscoOptions(score=score, negatives=negatives, tau=2.0, kl=kl, beta=10.0)
    made = prepare_disco(new, old, rewards[of], of, groups[of], weight, options)

    def loss(logprob: Tensor) -> Tensor:
        of_token = (logprob - old).exp() if score == "ratio" else logprob
        right, *wrong = (of_token[of == at].mean() for at in range(3))
        low = torch.stack(list(wrong))
        level = low.mean() if negatives == "mean" else 2 * (low / 2).exp().mean().log()
        change = logprob - old
        divergence = (-change if kl == "k1" else change.exp() - change - 1).mean()
        return -(right - level) / 2 + (10 * (divergence - 1e-4)).clamp(min=0).detach() * divergence

    leaf = new.clone().requires_grad_()
    whole = loss(leaf)
    (expected,) = torch.autograd.grad(whole, leaf)
    torch.testing.assert_close(made["slope"] * weight, expected)
    assert float((made["value"] * weight).sum()) == pytest.approx(float(whole.detach()))


def test_it_acts_in_a_run() -> None:
    chosen = ("loss.kind=disco",)
    assert weights_after(*chosen) != weights_after()
    assert weights_after(*chosen, "loss.num_updates=3") != weights_after(
        *chosen, "loss.num_updates=3", 'loss.options={"kind": "disco", "beta": 0}'
    )
