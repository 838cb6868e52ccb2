"""The order of environments: shares, schedules, learning progress, and the same order after a restart."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from agentgym.errors import ConfigError
from agentgym.rollout.mixture import Mixture, MixtureConfig, MixtureState

PROGRESS = MixtureConfig(by="progress", floor=0.2)


def counts(mixture: Mixture, ordinals: range) -> Counter[int]:
    return Counter(mixture.place(ordinal)[0] for ordinal in ordinals)


@pytest.mark.parametrize("weights", [(1.0,), (1.0, 1.0), (3.0, 1.0), (5.0, 2.0, 1.0), (1.0, 1.0, 1.0, 1.0, 0.3)])
def test_every_environment_gets_its_share_at_any_time(weights: tuple[float, ...]) -> None:
    mixture = Mixture(lambda step: weights, groups_per_step=8)
    seen: Counter[int] = Counter()
    for ordinal in range(400):
        env, position = mixture.place(ordinal)
        assert position == seen[env], "an environment's own tasks come in order, each once"
        seen[env] += 1
        for at, weight in enumerate(weights):
            assert abs(seen[at] - (ordinal + 1) * weight / sum(weights)) < len(weights) / 2 + 1e-9


def test_one_environment_keeps_the_ordinals_of_a_run_without_a_mixture() -> None:
    mixture = Mixture(lambda step: (1.0,), groups_per_step=3)
    assert [mixture.place(ordinal) for ordinal in range(20)] == [(0, ordinal) for ordinal in range(20)]


def test_a_schedule_moves_the_shares() -> None:
    mixture = Mixture(lambda step: (1.0 - step / 10, step / 10), groups_per_step=10)
    shares = [counts(mixture, range(10 * step, 10 * step + 10))[1] for step in range(11)]
    assert shares == list(range(11))


def test_a_weight_of_zero_is_never_played_even_when_groups_are_owed() -> None:
    mixture = Mixture(lambda step: (1.0, 1.0) if step < 1 else (1.0, 0.0), groups_per_step=3)
    assert counts(mixture, range(3))[1] == 1
    assert counts(mixture, range(3, 30)) == {0: 27}


def test_the_order_is_the_same_after_a_restart_at_any_group() -> None:
    weights = (3.0, 2.0, 1.0)
    whole = Mixture(lambda step: weights, groups_per_step=4)
    expected = [whole.place(ordinal) for ordinal in range(40)]
    for stop in range(0, 40, 3):
        first = Mixture(lambda step: weights, groups_per_step=4)
        for ordinal in range(stop):
            first.place(ordinal)
        taken = range(max(0, stop - 2))  # two groups were started and not trained
        first.forget(taken)
        again = Mixture(lambda step: weights, groups_per_step=4, state=first.state)
        assert [again.place(ordinal) for ordinal in range(len(taken), 40)] == expected[len(taken) :]
        assert all(ordinal >= len(taken) for ordinal in first.state.places)


def test_progress_gives_more_to_what_is_being_learnt() -> None:
    """One environment is solved, one hopeless, one learns: the last gets most, and none is left out."""
    mixture = Mixture(lambda step: (1.0, 1.0, 1.0), groups_per_step=30, config=PROGRESS)
    for step in range(10):
        counts(mixture, range(30 * step, 30 * step + 30))
        mixture.observe([(0, 1.0), (1, 0.0), (2, 0.08 * step)])
    shares = mixture.shares(10)
    assert shares == pytest.approx([0.2 / 3, 0.2 / 3, 0.8 + 0.2 / 3])
    seen = counts(mixture, range(300, 330))
    assert seen == {0: 2, 1: 2, 2: 26}
    again = Mixture(lambda step: (1.0, 1.0, 1.0), groups_per_step=30, config=PROGRESS, state=mixture.state)
    assert again.shares(10) == shares


def test_progress_without_progress_goes_by_weight() -> None:
    mixture = Mixture(lambda step: (3.0, 1.0), groups_per_step=4, config=PROGRESS)
    assert mixture.shares(0) == pytest.approx([0.75, 0.25])
    mixture.observe([(0, 1.0), (1, 0.5), (1, 0.5)])
    assert mixture.shares(1) == pytest.approx([0.75, 0.25]), "averages of one value are equal"


def test_progress_counts_falling_success_too() -> None:
    """What is being forgotten is played more."""
    mixture = Mixture(lambda step: (1.0, 1.0), groups_per_step=2, config=PROGRESS)
    for success in (1.0, 1.0, 0.4, 0.2):
        mixture.observe([(0, success), (1, 0.5)])
    assert mixture.shares(4)[0] == pytest.approx(0.9)


def test_shares_sum_to_one_whatever_is_observed() -> None:
    rng = random.Random(0)
    mixture = Mixture(lambda step: (1.0, 0.0, 2.5, 0.1), groups_per_step=5, config=PROGRESS)
    for step in range(50):
        mixture.observe((at, rng.random()) for at in range(4) if rng.random() < 0.7)
        shares = mixture.shares(step)
        assert sum(shares) == pytest.approx(1.0) and min(shares) >= 0 and shares[1] == 0


def test_a_floor_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"mixture\.floor"):
        MixtureConfig(floor=0.0)


def test_the_state_is_plain_values() -> None:
    mixture = Mixture(lambda step: (1.0, 1.0), groups_per_step=2)
    mixture.place(1)
    assert mixture.state == MixtureState(
        num_steps=1,
        counts=(1, 1),
        debts=(0.0, 0.0),
        places={0: (0, 0), 1: (1, 0)},
        fast=(None, None),
        slow=(None, None),
    )
