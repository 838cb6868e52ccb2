"""STEER: a worked example of its weights, their edges, and a run that it changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.steer import SteerOptions, entropy_change, prepare_steer

LOGPROB = torch.tensor([0.5, 0.9, 0.25], dtype=torch.float64).log()
ENTROPY = torch.tensor([math.log(2), 0.3, 1.0], dtype=torch.float64)
ADVANTAGE = torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)


def weights(**options: Any) -> list[float]:
    made = prepare_steer(LOGPROB, LOGPROB, ENTROPY, ADVANTAGE, SteerOptions(**options))["steered"]
    return made.tolist()


def test_steer() -> None:
    """Changes (1 - p) (log p + H) A: 0 for a fair coin, 0.1 (ln 0.9 + 0.3), and 2 * 0.75 (ln 0.25 + 1)."""
    change = entropy_change(LOGPROB, LOGPROB, ENTROPY, ADVANTAGE)
    assert change.tolist() == pytest.approx([0.0, 0.019464, 0.579442], abs=1e-6)
    assert weights() == pytest.approx([1.0, 0.8 ** (0.019464 / 0.579442), 0.8], abs=1e-6)
    share = 0.019464 / 0.579442
    assert weights(mapping="linear") == pytest.approx([1.2, 1.2 - 0.4 * share, 0.8], abs=1e-6)


@pytest.mark.parametrize(("mapping", "weight"), [("linear", 1.0), ("exponential", 1.0)])
def test_an_update_without_a_change_keeps_its_weights(mapping: Any, weight: float) -> None:
    none = torch.zeros(3, dtype=torch.float64)
    made = prepare_steer(LOGPROB, LOGPROB, ENTROPY, none, SteerOptions(mapping=mapping))["steered"]
    assert made.tolist() == pytest.approx([weight] * 3)


def test_certain_tokens_stay_finite() -> None:
    certain = torch.tensor([0.0, -60.0])
    made = prepare_steer(certain, certain, torch.zeros(2), torch.ones(2), SteerOptions())["steered"]
    assert made.isfinite().all()


def test_it_acts_in_a_run() -> None:
    assert weights_after("loss.kind=steer") != weights_after("loss.kind=dapo")
    assert weights_after("loss.kind=steer") != weights_after(
        "loss.kind=steer", 'loss.options={"kind": "steer", "mapping": "linear"}'
    )
