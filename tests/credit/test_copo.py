"""COPO: a worked example of its two advantages and their weight, its edges, and a run that it changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from testkit.acting import weights_after
from testkit.credit_tables import assert_close, bandits

from agentgym.credit.estimators.copo import CopoOptions, answer_entropy, copo
from agentgym.credit.estimators.grpo import grpo
from agentgym.errors import ConfigError


def test_copo() -> None:
    """The first group has two answers of equal share, entropy ln 2 / ln 4 = 0.5; the second agrees on a wrong one."""
    table = bandits(1, 1, 0, 0, 0, 0, 0, 0, groups=[0] * 4 + [1] * 4).with_columns(answer=[1, 1, 2, 2, 3, 3, 3, 3])
    half = math.sqrt(3) / 2  # z of two right and two wrong with ddof 1
    among = 0.25 / (0.5 / math.sqrt(2))  # means of 0.5 and 0, with their ddof of 1
    agreed = 1 / (1 + math.exp(-10 * (0 - 0.5)))
    expected = [(half + among) / 2] * 2 + [(-half + among) / 2] * 2 + [-(1 - agreed) * among] * 4
    assert_close(copo(table, options=CopoOptions(middle=0.5, sharpness=10)).advantage, expected, 1e-4)


def test_a_sharp_weight_is_grpo_where_answers_differ() -> None:
    table = bandits(1, 0, 0, groups=[0, 0, 0]).with_columns(answer=[1, 2, 3])
    assert_close(copo(table, options=CopoOptions(sharpness=1000)).advantage, grpo(table).advantage)


def test_no_sharpness_overflows(recwarn: pytest.WarningsRecorder) -> None:
    table = bandits(1, 0, 1, groups=[0, 0, 1]).with_columns(answer=[1, 2, 3])
    advantage = copo(table, options=CopoOptions(sharpness=1e300)).advantage
    assert np.isfinite(advantage).all() and not recwarn.list


def test_equal_groups_and_groups_of_one() -> None:
    flat = bandits(1, 1, 1, 1, groups=[0, 0, 1, 1]).with_columns(answer=[1, 1, 1, 1])
    assert not copo(flat).advantage.any()
    alone = bandits(1, 0, groups=[0, 1]).with_columns(answer=[1, 1])
    advantage = copo(alone).advantage
    assert advantage[0] > 0 > advantage[1], "groups of one are compared with each other"


def test_silence_agrees_with_nobody() -> None:
    table = bandits(0, 0, 0).with_columns(answer=[-1, -1, -1])
    assert table.answer is not None and answer_entropy(table.answer, table.group).tolist() == pytest.approx([1.0] * 3)


def test_it_needs_answers() -> None:
    with pytest.raises(ConfigError, match="answer"):
        copo(bandits(1, 0))


def test_it_acts_in_a_run() -> None:
    chosen = "credit.estimator=copo"
    assert weights_after(chosen) != weights_after("credit.estimator=grpo")
    assert weights_after(chosen) != weights_after(chosen, 'credit.options={"kind": "copo", "middle": 0.0}')
