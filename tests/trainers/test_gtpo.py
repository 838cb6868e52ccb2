"""GTPO: worked examples of conflict tokens, their edges, and a run that it changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from testkit.acting import weights_after

from agentgym.trainers.losses.published.gtpo import GtpoOptions, gtpo, prepare_gtpo, run_of_conflict


def shaped(answers: list[list[int]], advantages: list[float], entropy: float = 0.0, **options: Any) -> list[float]:
    """Return the shaped advantages of a group's tokens."""
    row = torch.tensor([number for number, answer in enumerate(answers) for _ in answer])
    made = prepare_gtpo(
        torch.tensor([token for answer in answers for token in answer]),
        torch.zeros_like(row),
        row,
        torch.tensor(advantages)[row],
        torch.full(row.shape, entropy),
        GtpoOptions(**options),
    )
    assert list(made) == ["shaped"]
    return made["shaped"].tolist()


def test_gtpo() -> None:
    """Right 5 6 7 8 and wrong 5 9 7 8 share their first token and their last two."""
    made = shaped([[5, 6, 7, 8], [5, 9, 7, 8]], [1.0, -1.0])
    assert made == pytest.approx([1.0, 0.5, 1.0, 1.0, 0.0, -0.5, 0.0, 0.0]), "divided by the longer run, 2"
    made = shaped([[5, 6, 7, 8], [5, 9, 7, 8]], [1.0, -1.0], shares_weight=False, entropy=0.5)
    assert made == pytest.approx([1.9, 0.95, 1.9, 1.9, 0.0, -1.05, 0.0, 0.0])
    loss, was_clipped = gtpo(torch.tensor([-1.0, -2.0]), torch.tensor([2.0, -0.5]))
    assert loss.tolist() == [-2.0, 0.5] and not was_clipped.any()


def test_trajectories_above_the_entropy_do_not_train() -> None:
    assert shaped([[5], [6]], [1.0, -1.0], entropy=0.8) == [0.0, 0.0]


def test_answers_of_one_sign_and_answers_without_an_advantage_have_no_conflict() -> None:
    assert run_of_conflict([[5, 6], [5, 6]], [1, 1]) == [0, 0]
    assert run_of_conflict([[5, 6], [5, 6]], [1, 0]) == [0, 0]
    assert run_of_conflict([[5, 6], [5, 7], [5]], [1, -1, 0]) == [1, 1, 0]


def test_equal_answers_are_in_conflict_from_both_ends() -> None:
    assert shaped([[5, 6], [5, 6]], [1.0, -1.0], shares_weight=False) == [4.0, 4.0, 0.0, 0.0]


def test_with_credit_per_turn_each_conflict_token_has_its_own_weight() -> None:
    """The first answer is wrong as a whole, and its first turn was right: its token is lifted, the next one spared."""
    token, row, group = torch.tensor([5, 6, 7, 5, 6, 8]), torch.tensor([0] * 3 + [1] * 3), torch.zeros(6)
    advantage = torch.tensor([1.0, -1.0, -2.0, 1.0, 1.0, 1.0])
    options = GtpoOptions(shares_weight=False)
    made = prepare_gtpo(token, group, row, advantage, torch.zeros(6), options)["shaped"]
    assert made.tolist() == [2.0, 0.0, -2.0, 2.0, 2.0, 1.0]


def test_groups_do_not_mix() -> None:
    token, row = torch.tensor([5, 5]), torch.tensor([0, 1])
    made = prepare_gtpo(token, row, row, torch.tensor([1.0, -1.0]), torch.zeros(2), GtpoOptions())
    assert made["shaped"].tolist() == [1.0, -1.0]


def test_it_acts_in_a_run() -> None:
    chosen = 'loss.options={"kind": "gtpo", "most_entropy": 9.0}'
    assert weights_after("loss.kind=gtpo", chosen) != weights_after("loss.kind=reinforce")
    assert weights_after("loss.kind=gtpo", chosen) != weights_after(
        "loss.kind=gtpo", chosen.replace("9.0", '9.0, "right_weight": 1.0')
    )
