"""RiskPO: worked examples of its measure, its bundles and its tracked quantiles, and a run that it changes."""

from __future__ import annotations

import numpy as np
import pytest
from testkit.acting import weights_after
from testkit.credit_tables import assert_close, bandits

from agentgym.credit.estimators.riskpo import RiskpoOptions, riskpo
from agentgym.errors import ConfigError

PLAIN = RiskpoOptions(high=0.8, normalise=False, baseline="none")
TRACKED = {"low": 1.0, "high": 2.0}


def test_riskpo() -> None:
    """Three groups of two make the bundles 3 and 0; between 1 and 2 they earn 1 and 0, below 1 nothing and -1.

    ``(1.5 * 0 + 1 / 0.6) / 2.5`` and ``(1.5 * (-1 / 0.2) + 0) / 2.5``.
    """
    table = bandits(1, 0, 1, 0, 1, 0, groups=[0, 0, 1, 1, 2, 2])
    credited, tracked = riskpo(table, TRACKED, PLAIN)
    assert_close(credited.advantage, [2 / 3, -3] * 3, 1e-4)
    # half of the bundles lie below either quantile: 1 + 0.1 (0.2 - 0.5) and 2 + 0.1 (0.8 - 0.5)
    assert tracked == pytest.approx({"low": 0.97, "high": 2.03})
    centred, _ = riskpo(table, TRACKED, RiskpoOptions(high=0.8, normalise=False))
    assert_close(centred.advantage, [11 / 6, -11 / 6] * 3, 1e-4)
    divided, _ = riskpo(table, TRACKED, RiskpoOptions(high=0.8))
    assert_close(divided.advantage, np.array([11 / 6, -11 / 6] * 3) / np.std([3, 0], ddof=1), 1e-4)


def test_the_released_baseline_lets_no_advantage_rise_above_0() -> None:
    table = bandits(1, 0, 1, 0, groups=[0, 0, 1, 1])
    natural, _ = riskpo(table, {}, RiskpoOptions(baseline="natural"))
    assert natural.advantage.max() <= 1e-9 and natural.advantage.min() < -0.1


def test_quantiles_of_the_first_batch_and_of_bundles() -> None:
    table = bandits(1, 0, 1, 0, groups=[0, 0, 1, 1])
    _, first = riskpo(table, {}, PLAIN)
    assert first == pytest.approx({"low": 0.4, "high": 1.6})
    far = {"low": -9.0, "high": 9.0}
    own, _ = riskpo(table, far, RiskpoOptions(high=0.8, normalise=False, baseline="none", quantiles="bundle"))
    assert_close(own.advantage, riskpo(table, {}, PLAIN)[0].advantage)
    both, _ = riskpo(
        table, far, RiskpoOptions(high=0.8, normalise=False, baseline="none", quantiles="both", tail_weight=0)
    )
    low = (-9 + 0.4) / 2  # the upper one, 5.3, is above all scores
    assert_close(both.advantage, (np.array([2, 0, 2, 0]) - low) / 0.6, 1e-4)


def test_tracking_begins_where_the_quantiles_differ() -> None:
    """After a first batch that failed throughout, both would be 0, and a success above both would earn nothing."""
    _, tracked = riskpo(bandits(0, 0, 0, 0, groups=[0, 0, 1, 1]), {})
    assert tracked == {}
    credited, began = riskpo(bandits(1, 0, 0, 0, groups=[0, 0, 1, 1]), tracked)
    assert credited.advantage[0] > 0.5
    assert credited.advantage[1] < 0
    assert began == pytest.approx({"low": 0.2, "high": 0.9})


def test_flat_groups_learn_from_their_bundle() -> None:
    """GRPO gives the first group 0. Here its members share what the bundles of its tasks earn."""
    table = bandits(1, 1, 1, 0, groups=[0, 0, 1, 1])
    together, _ = riskpo(table, TRACKED)
    assert together.advantage[0] > 0 > together.advantage[1]
    alone, _ = riskpo(table, TRACKED, RiskpoOptions(bundle_size=1))
    assert_close(alone.advantage[:2], [0, 0])


def test_a_last_bundle_of_fewer_groups_is_not_pressed_down() -> None:
    """Its scores are sums of fewer returns, below all quantiles."""
    table = bandits(*[1, 0] * 6, groups=[at // 2 for at in range(12)])
    credited, _ = riskpo(table, {"low": 4.0, "high": 5.0})
    assert credited.advantage[10:].sum() == pytest.approx(0)


def test_a_smaller_group_takes_part_in_every_bundle() -> None:
    """A failed episode left the second group with one member, whose advantage is the mean over three bundles."""
    table = bandits(1, 0, 1, 1, groups=[0, 0, 0, 1])
    credited, _ = riskpo(table, TRACKED, PLAIN)
    assert credited.advantage[3] == pytest.approx(credited.advantage[:3].mean())


def test_bounds_are_checked() -> None:
    with pytest.raises(ConfigError, match="low must be below high"):
        RiskpoOptions(low=0.9)


def test_it_acts_in_a_run() -> None:
    assert weights_after("credit.estimator=riskpo") != weights_after("credit.estimator=grpo")
    options = 'credit.options={"kind": "riskpo", "tail_weight": 0, "bundle_size": 1}'
    assert weights_after("credit.estimator=riskpo") != weights_after("credit.estimator=riskpo", options)


def test_equal_scores_are_not_divided_by_their_deviation() -> None:
    """The bundles lie below the tracked quantile, so their measure is not 0."""
    flat = bandits(0, 0, groups=[0, 0])
    credited, _ = riskpo(flat, TRACKED, RiskpoOptions(baseline="none"))
    assert credited.advantage.tolist() == pytest.approx([-3, -3], abs=1e-4)
