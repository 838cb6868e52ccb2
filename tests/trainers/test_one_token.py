"""One-Token Rollout: a worked example, its gradient against samples, its edges, and a run that it changes."""

from __future__ import annotations

import pytest
import torch
from testkit.acting import weights_after

from agentgym.errors import ConfigError
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.losses.published.one_token import OneTokenOptions, one_token
from agentgym.trainers.recipes import load_recipe

CHANCES = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
SHOWN, TOKEN = torch.tensor([True]), torch.tensor([1])
PLAIN = OneTokenOptions(beta=-0.5, temperature=1.0)


def test_one_token() -> None:
    """-(0.3 ln 0.3 - 0.5 (0.5 ln 0.5 + 0.2 ln 0.2)): the demonstrated token is rewarded by 1, the others by -0.5."""
    term = one_token(CHANCES.log(), TOKEN, SHOWN, PLAIN)
    assert term.tolist() == pytest.approx([0.026961], abs=1e-6)
    flatter = one_token(CHANCES.log(), TOKEN, SHOWN, OneTokenOptions(beta=-0.5, temperature=2.0))
    root = CHANCES.sqrt() / CHANCES.sqrt().sum()
    reward = torch.tensor([[-0.5, 1.0, -0.5]])
    assert flatter.tolist() == pytest.approx((-(root * reward * CHANCES.log()).sum(-1)).tolist())


def test_its_gradient_is_the_mean_of_the_papers_samples() -> None:
    """At temperature 1 it is (1 - beta) pi(y) times that of the cross-entropy."""
    logits = CHANCES.log().requires_grad_()
    (found,) = torch.autograd.grad(one_token(logits.log_softmax(-1), TOKEN, SHOWN, PLAIN).sum(), logits)
    expected = 1.5 * 0.3 * (CHANCES - torch.tensor([[0.0, 1.0, 0.0]]))
    torch.testing.assert_close(found, expected)


def test_other_tokens_and_impossible_ones() -> None:
    assert one_token(CHANCES.log(), TOKEN, ~SHOWN, PLAIN).tolist() == [0.0]
    certain = torch.tensor([[0.0, -torch.inf]], dtype=torch.float64)
    assert one_token(certain, torch.tensor([0]), SHOWN, PLAIN).tolist() == [0.0]


def test_it_needs_demonstrations() -> None:
    with pytest.raises(ConfigError, match="one_token acts on demonstrated tokens, and there are none"):
        apply_overrides(load_recipe("tiny"), ['loss.regularisers=[{"kind": "one_token"}]'])


def test_it_acts_in_a_run() -> None:
    shown = ('strategy.guidance={"kind": "demonstration"}', "credit.estimator=dr_grpo")
    chosen = (*shown, 'loss.regularisers=[{"kind": "one_token"}]')
    assert weights_after(*chosen) != weights_after(*shown)
    alone = weights_after(*chosen, "loss.weight=0")
    assert alone not in (weights_after(*chosen), weights_after(*shown))
