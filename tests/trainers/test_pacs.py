"""PACS: a worked example, its gradient against autograd, and a run that it changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from testkit.acting import metrics_after, weights_after
from torch import Tensor

from agentgym.trainers.losses.published.pacs import PacsOptions, prepare_pacs


def update(*lengths: int, old: list[float], new: list[float], reward: list[float], group: list[int]) -> dict[str, Any]:
    """Return the columns of an update with a weight of ``1 / M`` per token."""
    of = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return {
        "logprob": torch.tensor(new, dtype=torch.float64),
        "logprob_old": torch.tensor(old, dtype=torch.float64),
        "reward": torch.tensor(reward)[of],
        "trajectory": of,
        "group": torch.tensor(group)[of],
        "loss_weight": torch.full((len(of),), 1 / len(of), dtype=torch.float64),
    }


def test_pacs() -> None:
    """Log-ratios 0.2, -0.1, 0.3 and 0; the first episode is right."""
    columns = update(1, 1, 1, 1, old=[0] * 4, new=[0.2, -0.1, 0.3, 0.0], reward=[1, 0, 0, 0], group=[3] * 4)
    made = prepare_pacs(**columns, options=PacsOptions())
    # logits 2/15, -4/15, 4/15, -2/15 and weights 2, 2/3, 2/3, 2/3
    assert float(made["value"].mean()) == pytest.approx(0.653137, abs=1e-6)
    plain = prepare_pacs(**columns, options=PacsOptions(balanced=False))
    assert float(plain["value"].mean()) == pytest.approx(0.665355, abs=1e-6)
    alone = prepare_pacs(**columns, options=PacsOptions(balanced=False, baseline="none"))
    # sigmoid(0.2) - 1, sigmoid(-0.1), sigmoid(0.3), sigmoid(0), each a quarter of the mean and of weight 1/4
    assert alone["slope"].tolist() == pytest.approx([-0.450166, 0.475021, 0.574443, 0.5], abs=1e-6)


@pytest.mark.parametrize("score", ["ratio", "logprob"])
@pytest.mark.parametrize("baseline", ["others", "none"])
def test_the_slope_is_that_of_the_loss(score: Any, baseline: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths, groups, rewards = [2, 1, 3, 2, 2, 1], [5, 5, 5, 9, 9, 2], [1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
    old = (-torch.rand(11, generator=generator)).tolist()
    new = (-torch.rand(11, generator=generator)).tolist()
    columns = update(*lengths, old=old, new=new, reward=rewards, group=groups)
    options = PacsOptions(score=score, baseline=baseline, beta=1.5)
    made = prepare_pacs(**columns, options=options)

    def loss(logprob: Tensor) -> Tensor:
        terms = []
        for at, own in enumerate(groups):
            scores, labels = [], []
            for other in (i for i, group in enumerate(groups) if group == own):
                here = columns["trajectory"] == other
                moved = (logprob - columns["logprob_old"])[here].sum() if score == "ratio" else logprob[here].mean()
                scores.append(1.5 * moved)
                labels.append(rewards[other])
            place = groups[:at].count(own)
            others = scores[:place] + scores[place + 1 :]
            base = torch.stack(others).mean() if others and baseline == "others" else torch.zeros(())
            kinds = labels.count(rewards[at])
            weight = len(labels) / (2 * kinds) if len({*labels}) == 2 else 1.0
            chance = torch.sigmoid(scores[place] - base)
            terms.append(-weight * torch.log(chance if rewards[at] else 1 - chance))
        return torch.stack(terms).mean()

    leaf = columns["logprob"].clone().requires_grad_()
    whole = loss(leaf)
    (expected,) = torch.autograd.grad(whole, leaf)
    torch.testing.assert_close(made["slope"] * columns["loss_weight"], expected)
    assert float((made["value"] * columns["loss_weight"]).sum()) == pytest.approx(float(whole.detach()))


def test_tokens_without_weight_stay_finite() -> None:
    columns = update(1, 1, old=[0, 0], new=[0.1, 0.2], reward=[1, 0], group=[0, 0])
    columns["loss_weight"] = torch.tensor([0.0, 1.0])
    assert all(one.isfinite().all() for one in prepare_pacs(**columns, options=PacsOptions()).values())


def test_it_acts_in_a_run() -> None:
    chosen = ("loss.kind=pacs",)
    assert weights_after(*chosen) != weights_after()
    first, _ = metrics_after(*chosen)
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3), "logits are 0 before the first update"
    assert weights_after(*chosen) != weights_after(*chosen, 'loss.options={"kind": "pacs", "baseline": "none"}')
