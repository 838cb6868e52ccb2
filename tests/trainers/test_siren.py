"""SIREN: worked examples of its entropy and of its distance, their edges, and a run that it changes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.siren import SirenOptions, prepare_siren, siren, top_p_entropy


def entropy_of(chances: list[float], **options: Any) -> float:
    distribution = torch.tensor([chances], dtype=torch.float64).log()
    return top_p_entropy(distribution, SirenOptions(**options)).item()


def test_siren() -> None:
    """The first two of 0.4, 0.3, 0.2, 0.1 sum to less than 0.8, and share 4/7 and 3/7 of the distribution."""
    share = (4 / 7, 3 / 7)
    assert entropy_of([0.4, 0.3, 0.2, 0.1]) == pytest.approx(-sum(one * math.log(one) for one in share))
    measured = torch.tensor([0.1, 0.9, 0.2, 0.4, 0.8], dtype=torch.float64, requires_grad=True)
    row = torch.tensor([0, 0, 0, 1, 1])
    made, memory = prepare_siren(measured.detach(), row, {"first": 0.5}, SirenOptions(quantile=0.5))
    # peaks are 0.9 of the first row and 0.8 of the second, whose mean is 0.85
    assert memory == {"first": 0.5} and made["distance"] == pytest.approx(0.35)
    value = siren(measured, **made).mean()
    value.backward()  # type: ignore[no-untyped-call]
    assert value.item() == pytest.approx(0.35**2)
    assert measured.grad is not None and measured.grad.tolist() == pytest.approx([0.0, 0.35, 0.0, 0.0, 0.35])


def test_the_first_update_sets_the_level_and_has_no_gradient() -> None:
    measured = torch.tensor([0.5, 1.5], requires_grad=True)
    made, memory = prepare_siren(measured.detach(), torch.zeros(2, dtype=torch.long), {}, SirenOptions(quantile=0.0))
    assert memory == {"first": 1.5}
    siren(measured, **made).mean().backward()  # type: ignore[no-untyped-call]
    assert measured.grad is not None and not measured.grad.any()


@pytest.mark.parametrize("chances", [[0.9, 0.1], [1.0, 0.0]])
def test_a_token_that_reaches_top_p_has_no_entropy(chances: list[float]) -> None:
    assert entropy_of(chances) == pytest.approx(0.0, abs=1e-9)


def test_equal_entropies_have_no_peak() -> None:
    made, _ = prepare_siren(torch.ones(3), torch.zeros(3, dtype=torch.long), {"first": 0.0}, SirenOptions())
    assert not made["weight"].any() and made["distance"] == 0.0


def test_it_acts_in_a_run_from_the_second_update_on() -> None:
    chosen = 'loss.regularisers=[{"kind": "siren", "coef": 1.0, "quantile": 0.5}]'
    assert weights_after(chosen) != weights_after()
    assert weights_after(chosen) != weights_after(chosen.replace("0.5}", "0.1}"))
