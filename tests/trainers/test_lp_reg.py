"""Lp-Reg: a worked example of its filter and its choice of tokens, their edges, and a run that it changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.lp_reg import FILTERED, LpRegOptions, lp_reg, prepare_lp_reg, without_noise

LIKELY = torch.tensor([[0.5, 0.3, 0.15, 0.05]] * 4, dtype=torch.float64).log()
TOKEN = torch.arange(4)


def filtered(**options: Any) -> list[float]:
    return without_noise(LIKELY, TOKEN, LpRegOptions(**options)).exp().tolist()


def test_lp_reg() -> None:
    """Below a fifth of the likeliest one, 0.1, lies the last token alone; the others share its 0.05 by their size."""
    assert filtered(noise=0.2) == pytest.approx([0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0])
    assert filtered(noise=0.2, relative=False) == pytest.approx([0.5 / 0.8, 0.3 / 0.8, 0.0, 0.0])
    logprob = torch.tensor([0.1, 0.2, 0.01, 0.3], dtype=torch.float64).log()
    measured = torch.tensor([0.2, 0.3, 0.02, 0.2], dtype=torch.float64).log()
    advantage = torch.tensor([-1.0, 1.0, -1.0, -0.5])
    target = prepare_lp_reg(logprob, advantage, measured, LpRegOptions(share=0.7))["target"]
    assert target.isnan().tolist() == [False, True, False, True], "two of three negative ones, the least likely"
    term = lp_reg(logprob, target)
    k3 = 2.0 - math.log(2) - 1.0  # both are half as likely as their target
    assert term.tolist() == pytest.approx([k3, 0.0, k3, 0.0])


def test_a_token_above_its_target_and_noise_have_no_term() -> None:
    logprob = torch.tensor([-1.0, -3.0, -0.5])
    target = torch.tensor([-2.0, FILTERED, -0.5])
    assert lp_reg(logprob, target).tolist() == [0.0, 0.0, 0.0]


def test_where_all_tokens_are_noise_none_is_lifted() -> None:
    flat = torch.full((1, 8), 0.125).log()
    assert without_noise(flat, torch.tensor([3]), LpRegOptions(noise=0.2, relative=False)).tolist() == [FILTERED]


def test_one_token_at_least_is_chosen_and_none_without_negative_ones() -> None:
    logprob, measured = torch.tensor([-1.0, -2.0]), torch.tensor([-0.9, -1.9])
    one = prepare_lp_reg(logprob, torch.tensor([-1.0, -1.0]), measured, LpRegOptions())["target"]
    assert one.isnan().tolist() == [True, False]
    none = prepare_lp_reg(logprob, torch.tensor([1.0, 0.0]), measured, LpRegOptions())["target"]
    assert none.isnan().all()


def test_its_gradient_lifts_the_token() -> None:
    logprob = torch.tensor([-3.0], requires_grad=True)
    lp_reg(logprob, torch.tensor([-2.0])).sum().backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None and logprob.grad.item() == pytest.approx(1 - math.e, abs=1e-6)


def test_it_acts_in_a_run() -> None:
    chosen = 'loss.regularisers=[{"kind": "lp_reg", "share": 0.5}]'
    assert weights_after(chosen) != weights_after()
    assert weights_after(chosen) != weights_after('loss.regularisers=[{"kind": "lp_reg", "share": 0.5, "noise": 0.9}]')
