"""Reg-GRPO: a worked example, its gradient against autograd, its edges, and a run that it changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from testkit.acting import weights_after
from torch import Tensor

from agentgym.trainers.losses.published.reg_grpo import RegGrpoOptions, prepare_reg_grpo


def update(*lengths: int, moved: list[float], advantage: list[float], group: list[int]) -> dict[str, Any]:
    """Return the columns of an update with a weight of ``1 / M`` per token."""
    of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return {
        "logprob": torch.tensor(moved, dtype=torch.float64) - 1,
        "logprob_old": torch.full((len(of),), -1.0, dtype=torch.float64),
        "advantage": torch.tensor(advantage, dtype=torch.float64)[of],
        "trajectory": of,
        "group": torch.tensor(group)[of],
        "loss_weight": torch.full((len(of),), 1 / len(of), dtype=torch.float64),
    }


def test_reg_grpo() -> None:
    """Log-ratios 0.3 and -0.1 are 0.2 above and below their mean; the advantages 1 and -1 are 0.8 further."""
    columns = update(2, 1, moved=[0.1, 0.2, -0.1], advantage=[1, -1], group=[4, 4])
    made = prepare_reg_grpo(**columns, options=RegGrpoOptions())
    assert float(made["value"].mean()) == pytest.approx(0.64)
    assert made["slope"].tolist() == pytest.approx([3 * -0.8, 3 * -0.8, 3 * 0.8])  # 2 / 2 episodes, weights of a third
    twice = prepare_reg_grpo(**columns, options=RegGrpoOptions(scale=2.0))
    assert float(twice["value"].mean()) == pytest.approx(0.36)


def test_the_slope_is_that_of_the_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    groups, advantage = [5, 5, 5, 9, 9, 2], [1.2, -0.6, -0.6, 0.0, 0.0, 0.5]
    moved = (torch.rand(11, generator=generator) - 0.5).tolist()
    columns = update(2, 1, 3, 2, 2, 1, moved=moved, advantage=advantage, group=groups)

    def loss(logprob: Tensor) -> Tensor:
        ratio = [(logprob - columns["logprob_old"])[columns["trajectory"] == at].sum() for at in range(6)]
        terms = []
        for at, own in enumerate(groups):
            mean = torch.stack([ratio[i] for i, group in enumerate(groups) if group == own]).mean()
            terms.append((advantage[at] - 1.5 * (ratio[at] - mean)) ** 2)
        return torch.stack(terms).mean()

    leaf = columns["logprob"].clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    made = prepare_reg_grpo(**columns, options=RegGrpoOptions(scale=1.5))
    torch.testing.assert_close(made["slope"] * columns["loss_weight"], expected)


def test_a_group_of_one_has_no_gradient_and_a_flat_group_goes_back() -> None:
    columns = update(1, 1, 1, moved=[0.4, 0.3, -0.1], advantage=[1, 0, 0], group=[0, 1, 1])
    slope = prepare_reg_grpo(**columns, options=RegGrpoOptions())["slope"]
    assert slope[0] == 0 and slope[1] > 0 > slope[2]


def test_it_acts_in_a_run() -> None:
    assert weights_after("loss.kind=reg_grpo") != weights_after()
    several = ("loss.kind=reg_grpo", "loss.num_updates=2")
    assert weights_after(*several) != weights_after(*several, 'loss.options={"kind": "reg_grpo", "scale": 3.0}')
