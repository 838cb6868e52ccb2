"""Advantages taken apart: the summands add up, and say whose numbers were compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.credit_tables import Batch, assert_close, batch_table, batches, f1, few

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.estimators.gigpo import GigpoOptions
from agentgym.credit.estimators.hgpo import HgpoOptions
from agentgym.credit.selections.downsampling import RocOptions
from agentgym.credit.terms import advantage_terms

CONFIGS: dict[str, dict[str, Any]] = {
    "gigpo": {"estimator": "gigpo", "step_weight": 0.5, "invalid_penalty": 0.3},
    "gigpo of trajectories": {"estimator": "gigpo", "statistics_unit": "trajectory", "invalid_penalty": 0.3},
    "gigpo without revisits": {"estimator": "gigpo", "options": GigpoOptions(revisits=False)},
    "gigpo by likeness": {"estimator": "gigpo", "options": GigpoOptions(anchors="similarity")},
    "grpo": {"estimator": "grpo", "invalid_penalty": 0.3},
    "dr_grpo": {"estimator": "dr_grpo", "invalid_penalty": 0.3},
    "rloo": {"estimator": "rloo"},
    "loop": {"estimator": "loop"},
    "hgpo": {"estimator": "hgpo", "invalid_penalty": 0.3},
    "hgpo of all levels": {"estimator": "hgpo", "options": HgpoOptions(history=4, drop_zero=False, weight_alpha=0.0)},
    "hgpo with a base": {"estimator": "hgpo", "options": HgpoOptions(base_group=True)},
}


@pytest.mark.parametrize("name", CONFIGS)
@few
@given(batch=batches, norm=st.sampled_from(["mean_std_norm", "mean_norm"]))
def test_terms_add_up_to_the_advantage(name: str, batch: Batch, norm: str) -> None:
    keys = CONFIGS[name]
    config = CreditConfig(**(keys if keys["estimator"] in ("dr_grpo", "rloo", "loop") else {"norm": norm, **keys}))
    table = batch_table(batch)
    valid = np.array([action != 1 for _, turns in batch for *_, action, _ in turns])
    texts = [state for _, turns in batch for _, state, *_ in turns]
    result = credit_turns(table.with_columns(is_valid=valid, observation=texts), config)
    terms = advantage_terms(result, config)
    np.testing.assert_allclose(sum(term.weight * term.value for term in terms), result.advantage, atol=1e-12)


def test_gigpos_worked_example() -> None:
    """Section 1.5 of the specification: episode and step parts, and what they are taken against."""
    config = CreditConfig(estimator="gigpo", norm="mean_norm")
    episode, state = advantage_terms(credit_turns(f1(), config), config)
    assert_close(episode.value, [3.75] * 3 + [-6.25] * 3 + [3.75] * 2)
    assert_close(state.value, [2.85, 6.333333, 0, -6.175, -3.166667, -3.166667, 3.325, 0])
    assert episode.count.tolist() == [8] * 8
    assert state.count.tolist() == [3, 3, 1, 3, 3, 3, 3, 1]
    assert_close(state.own, [9.025, 9.5, 10, 0, 0, 0, 9.5, 10])
    assert_close(state.mean, [6.175, 3.166667, 10, 6.175, 3.166667, 3.166667, 6.175, 10])
    assert (episode.span, state.span, episode.unit, state.std) == (0, 1, "turn", None)


def test_hgpos_worked_example() -> None:
    """Section 2.4: levels, which of them count, and their weights."""
    config = CreditConfig(estimator="hgpo")
    terms = advantage_terms(credit_turns(f1(), config), config)
    assert [term.name for term in terms] == ["same state", "same last 2 states", "same last 3 states"]
    assert_close(terms[0].value, [0.652071, 1.414213, 0, -1.412821, -0.707107, -0.707107, 0.760750, 0])
    assert terms[1].count.tolist() == [0, 2, 1, 0, 2, 1, 0, 1]
    assert_close(terms[1].value[[1, 4]], [1, -1])
    assert_close(terms[0].weight[:3], [1, 0.4, 0])
    assert_close(terms[1].weight[:3], [0, 0.6, 0])
    assert terms[2].weight.tolist() == [0] * 8


def test_units_of_what_is_compared() -> None:
    for estimator, unit in (("grpo", "episode"), ("rloo", "episode")):
        config = CreditConfig(estimator=estimator)
        (term,) = advantage_terms(credit_turns(f1(), config), config)
        assert (term.unit, term.count.tolist()) == (unit, [3] * 8)


def test_others_are_not_taken_apart() -> None:
    config = CreditConfig(estimator="mc_grpo")
    assert advantage_terms(credit_turns(f1(), config), config) == ()
    empty = CreditConfig(estimator="gigpo")
    nothing = f1().take(np.zeros(8, dtype=np.bool_))
    assert advantage_terms(credit_turns(nothing, empty), empty) == ()


def test_narrowed_statistics_do_not_add_up_and_so_are_seen() -> None:
    """What the docstring warns of: GRPO-RoC takes the baseline of the kept alone."""
    config = CreditConfig(estimator="grpo", selections=(RocOptions(),))
    table = f1().with_columns(num_calls=[1] * 8, num_errors=[0, 0, 0, 1, 1, 1, 0, 0])
    result = credit_turns(table, config)
    terms = advantage_terms(result, config)
    assert not np.allclose(sum(term.weight * term.value for term in terms), result.advantage)
