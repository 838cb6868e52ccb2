"""SPINE's band: a worked example, its memory, its edges, and a run that it changes."""

from __future__ import annotations

import pytest
import torch
from testkit.acting import weights_after

from agentgym.errors import ConfigError
from agentgym.trainers.losses.published.entropy_band import EntropyBandOptions, entropy_band, prepare_entropy_band

ENTROPY = torch.tensor([0.1, 2.0, 0.2, 1.0, 0.3], dtype=torch.float64)
TWO = EntropyBandOptions(share=0.4, low=0.5, high=1.2)


def test_entropy_band() -> None:
    """The two most uncertain tokens have 2 and 1 nats, 1.5 on average: the band goes from 0.75 to 1.8."""
    made, memory = prepare_entropy_band(ENTROPY, {}, TWO)
    assert made["forks"].tolist() == [False, True, False, True, False] and memory == {"first": 1.5}
    assert entropy_band(ENTROPY, **made).tolist() == pytest.approx([0, 0.2, 0, 0, 0])
    later, kept = prepare_entropy_band(ENTROPY / 4, memory, TWO)
    assert kept == memory, "the band stays"
    assert entropy_band(ENTROPY / 4, **later).tolist() == pytest.approx([0, 0.25, 0, 0.5, 0])


def test_its_gradient_draws_into_the_band() -> None:
    entropy = torch.tensor([3.0, 0.1], requires_grad=True)
    entropy_band(entropy, torch.tensor([True, True]), 0.5, 1.0).sum().backward()  # type: ignore[no-untyped-call]
    assert entropy.grad is not None and entropy.grad.tolist() == [1.0, -1.0]


def test_one_token_at_least_forks() -> None:
    made, _ = prepare_entropy_band(torch.tensor([0.0]), {}, EntropyBandOptions(share=0.01))
    assert made["forks"].tolist() == [True] and not entropy_band(torch.zeros(1), **made).any()


def test_bounds_are_checked() -> None:
    with pytest.raises(ConfigError, match="low must be below high"):
        EntropyBandOptions(low=2.0)


def test_it_acts_in_a_run() -> None:
    chosen = 'loss.regularisers=[{"kind": "entropy_band", "coef": 0.5, "low": 1.1, "high": 1.2}]'
    assert weights_after(chosen) != weights_after()
    wide = 'loss.regularisers=[{"kind": "entropy_band", "coef": 0.5, "low": 0.0, "high": 99.0}]'
    assert weights_after(wide) == weights_after()
