"""Task sources that draw tasks by weights: the numbers of their papers, and what they prefer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from agentgym.errors import ConfigError
from agentgym.rollout.strategies.dots import DotsOptions, dots, log_weights
from agentgym.rollout.strategies.drawing import drawn
from agentgym.rollout.strategies.history import TaskHistory, Visit
from agentgym.rollout.strategies.spo import SpoSourceOptions, spo, tracker, weight
from agentgym.rollout.strategies.vas import VasOptions, vas

NUM_TASKS = 20


def in_turn(position: int) -> int:
    return position % NUM_TASKS


def history_of(rates: Sequence[float], num_episodes: int = 100) -> TaskHistory:
    """A history with one visit of each task at these success rates."""
    visits = {at: (Visit(0, num_episodes, round(rate * num_episodes)),) for at, rate in enumerate(rates)}
    return TaskHistory(visits)


def test_draws_have_the_probabilities_of_their_weights() -> None:
    rng = np.random.default_rng(0)
    weights = np.array([1.0, 2.0, 5.0])
    first = Counter(drawn([4, 5, 6], np.log(weights), 1, rng)[0] for _ in range(4000))
    for task, share in zip((4, 5, 6), weights / weights.sum(), strict=True):
        assert first[task] / 4000 == pytest.approx(share, abs=0.03)
    pairs = Counter(tuple(sorted(drawn([4, 5, 6], np.log(weights), 2, rng))) for _ in range(4000))
    without_5 = 1 / 8 * 5 / 7 + 5 / 8 * 1 / 3
    assert pairs[4, 6] / 4000 == pytest.approx(without_5, abs=0.03)
    assert sorted(drawn([4, 5, 6], np.log(weights), 6, rng)) == [4, 4, 5, 5, 6, 6]


def test_spo_weights() -> None:
    # the worked example: 3 of 8 offline, then one success at memory 0.875
    assert tracker([Visit(-1, 8, 3)], 0.875) == pytest.approx((3.111111, 4.888889), abs=1e-6)
    alpha, beta = tracker([Visit(-1, 8, 3), Visit(0, 1, 1)], 0.875)
    assert (alpha, beta) == pytest.approx((3.722222, 4.277778), abs=1e-6)
    rate = 0.465278
    found = weight([Visit(-1, 8, 3), Visit(0, 1, 1)], SpoSourceOptions(memory=0.875))
    assert found == pytest.approx((rate * (1 - rate)) ** 0.5 + 0.05, abs=1e-6)
    assert tracker([Visit(0, 4, 1)], 0.5) == (0.25 + 1, 0.25 + 3), "a task without a probe begins at 1/2"


def test_spo_plays_what_is_uncertain_more_often_and_everything_sometimes() -> None:
    rates = [0.0] * 10 + [0.5] * 5 + [1.0] * 5
    history = history_of(rates)
    played = Counter(
        task
        for step in range(400)
        for task in spo(
            NUM_TASKS, range(2), in_turn, history, np.random.default_rng(step), SpoSourceOptions(memory=1.0)
        )
    )
    assert len(played) == NUM_TASKS
    mixed = sum(played[task] for task in range(10, 15)) / 800
    # 5 weights of 0.55 against 15 of about 0.05 + sqrt(0.005)
    assert mixed == pytest.approx(0.6, abs=0.05)
    few = {task for step in range(20) for task in spo(
        NUM_TASKS, range(2), in_turn, history, np.random.default_rng(step), SpoSourceOptions(pool=3)
    )}  # fmt: skip
    assert few <= {0, 1, 2}


def test_dots_golden_numbers() -> None:
    # the worked example: difficulties 0.1, 0.5 and 0.7
    weights = np.exp(log_weights([0.9, 0.5, 0.3], DotsOptions(temperature=0.1)))
    assert (weights / weights.sum()).tolist() == pytest.approx([0.015876, 0.866813, 0.117310], abs=1e-6)
    assert log_weights([0.9, None, 0.5], DotsOptions(temperature=0.1)).tolist() == pytest.approx([-4.0, -2.0, 0.0]), (
        "of a task that was never played the mean difficulty, 0.3, is expected"
    )
    assert log_weights([None, None], DotsOptions()).tolist() == [0.0, 0.0]
    harder = log_weights([0.9, 0.2], DotsOptions(target=0.8, temperature=0.1))
    assert harder.tolist() == pytest.approx([-7.0, 0.0])


def test_dots_plays_what_is_of_the_wanted_difficulty() -> None:
    history = history_of([0.0] * 10 + [1.0] * 7 + [0.5] * 3)
    played = {
        task
        for step in range(50)
        for task in dots(
            NUM_TASKS, range(3), in_turn, history, np.random.default_rng(step), DotsOptions(temperature=0.01)
        )
    }
    assert played == {17, 18, 19}


@pytest.mark.parametrize("share", [0.5, 0.3, 0.75])
def test_vas_mixes_by_its_share(share: float) -> None:
    history = history_of([0.0] * 15 + [0.5] * 4 + [0.1])
    by_variance: list[int] = []
    in_order: list[int] = []
    num_steps, size = 200, 5
    for step in range(num_steps):
        positions = range(step * size, (step + 1) * size)
        chosen = vas(positions, lambda at: 100 + at, history, np.random.default_rng(step), VasOptions(share=share))
        assert len(chosen) == size
        by_variance += [task for task in chosen if task < 100]
        in_order += [task for task in chosen if task >= 100]
    assert in_order == [100 + at for at in range(len(in_order))], "every task in turn, none left out"
    assert len(by_variance) / (num_steps * size) == pytest.approx(share, abs=0.01)
    played = Counter(by_variance)
    assert set(played) == {15, 16, 17, 18, 19}
    # without replacement the rare one comes more often than its share of the weights, 0.09 of 1.09
    assert played[19] < min(played[task] for task in range(15, 19))


def test_vas_follows_the_order_until_it_knows_tasks_that_vary() -> None:
    history = history_of([0.0, 1.0, 0.0])
    assert vas(range(4, 8), in_turn, history, np.random.default_rng(0), VasOptions()) == [2, 3, 4, 5]


def test_bad_settings_of_task_sources() -> None:
    with pytest.raises(ConfigError, match="spo: memory must be above 0"):
        SpoSourceOptions(memory=0.0)
    with pytest.raises(ConfigError, match="dots: temperature must be above 0"):
        DotsOptions(temperature=0.0)
    with pytest.raises(ConfigError, match="vas: share must be above 0 and below 1"):
        VasOptions(share=1.0)
