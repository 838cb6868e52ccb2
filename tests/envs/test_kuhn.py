"""Kuhn poker and exact exploitability, against what is known of the game."""

from __future__ import annotations

import numpy as np
import pytest

from agentgym.envs.games.kuhn import (
    BET,
    CARDS,
    CHOICES,
    DEALS,
    ENDS,
    GAME_VALUE,
    INFORMATION_SETS,
    PASS,
    KuhnPokerEnv,
    KuhnState,
    Policy,
    best_response_return,
    equilibrium,
    equilibrium_opponent,
    expected_return,
    exploitability,
)
from agentgym.types import Task


def always(bet: float) -> Policy:
    return {known: {PASS: 1 - bet, BET: bet} for known in INFORMATION_SETS}


def test_there_are_six_deals_and_twelve_information_sets() -> None:
    assert len(set(DEALS)) == 6
    assert len(INFORMATION_SETS) == 12


@pytest.mark.parametrize(
    ("history", "first"),
    [("pass pass", 1.0), ("bet pass", 1.0), ("bet bet", 2.0), ("pass bet pass", -1.0), ("pass bet bet", 2.0)],
)
def test_payoffs_of_the_better_card(history: str, first: float) -> None:
    state = KuhnState((2, 0), tuple(history.split()))
    assert state.returns() == (first, -first)
    worse = KuhnState((0, 2), state.history)
    folded = state.history[-2:] == (BET, PASS)
    assert worse.returns()[0] == (first if folded else -first)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2, 1 / 3])
def test_the_equilibria_cannot_be_exploited(alpha: float) -> None:
    policy = equilibrium(alpha)
    assert exploitability(DEALS, policy) == pytest.approx(0.0, abs=1e-12)
    assert expected_return(DEALS, policy) == pytest.approx(GAME_VALUE)
    assert best_response_return(DEALS, policy, 0) == pytest.approx(GAME_VALUE)
    assert best_response_return(DEALS, policy, 1) == pytest.approx(-GAME_VALUE)


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_beyond_a_third_there_is_no_equilibrium(alpha: float) -> None:
    policy = {known: dict(chances) for known, chances in equilibrium(1 / 3).items()}
    policy[KuhnState((0, 1)).view(0)] = {PASS: 1 - alpha, BET: alpha}
    assert exploitability(DEALS, policy) > 0.01


def test_exploitability_by_hand() -> None:
    # Against who always passes, betting always wins the ante of 1; so both sides can win 1.
    assert exploitability(DEALS, always(0.0)) == pytest.approx(1.0)
    # Against who always bets: call (or bet) with the king, +2, and fold the jack, -1. With the queen calling wins 2
    # against the jack and loses 2 against the king, 0 on average. (2 - 1 + 0) / 3 for either player.
    assert best_response_return(DEALS, always(1.0), 1) == pytest.approx(1 / 3)
    assert exploitability(DEALS, always(1.0)) == pytest.approx(1 / 3)
    # OpenSpiel's value of the uniform policy, NashConv 11/12.
    assert exploitability(DEALS, always(0.5)) == pytest.approx(11 / 24)


def test_a_best_response_is_found_among_all_pure_policies() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        policy = {known: {PASS: 1 - p, BET: p} for known, p in zip(INFORMATION_SETS, rng.random(12), strict=True)}
        for player in (0, 1):
            mine = [known for known, state in INFORMATION_SETS.items() if state.player == player]
            best = max(
                _sign(player) * expected_return(DEALS, {**policy, **_pure(mine, code)})
                for code in range(2 ** len(mine))
            )
            assert best_response_return(DEALS, policy, player) == pytest.approx(best)


def _sign(player: int) -> int:
    return 1 - 2 * player


def _pure(known: list[str], code: int) -> dict[str, dict[str, float]]:
    return {name: {PASS: 1.0 - (code >> at & 1), BET: float(code >> at & 1)} for at, name in enumerate(known)}


def test_a_player_does_not_see_the_other_card_before_the_end() -> None:
    for history in CHOICES:
        for player in (0, 1):
            views = {KuhnState(deal.cards, history).view(player) for deal in DEALS}
            assert len(views) == len(CARDS)
    for history in ENDS:
        shown = KuhnState((2, 0), history).view(0)
        assert ("The other card: jack" in shown) is (history[-2:] != (BET, PASS))


def test_the_built_in_opponent_plays_its_equilibrium() -> None:
    rng = np.random.default_rng(0)
    jack = KuhnState((0, 1))
    bets = sum(equilibrium_opponent(jack, rng) == BET for _ in range(3000)) / 3000
    assert bets == pytest.approx(1 / 3, abs=0.03)
    king = KuhnState((2, 1), (PASS, BET))
    assert {equilibrium_opponent(king, rng) for _ in range(20)} == {BET}


def test_a_forfeit_costs_the_most_that_can_be_lost() -> None:
    env = KuhnPokerEnv(opponent="self", max_errors=0)
    env.reset(options={"task": Task(id="t", split="train", seed=0)})
    _, reward, terminated, _, info = env.step("raise")
    assert (reward, terminated, info["success"], env.returns()) == (-2.0, True, False, (-2.0, 2.0))
