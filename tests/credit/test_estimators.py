"""Worked examples of every estimator but GRPO and GiGPO, which have theirs in ``test_golden.py``."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from testkit.credit_tables import assert_close, bandits, f1, table_of

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.estimators.asymre import AsymreOptions, asymre
from agentgym.credit.estimators.capo import CapoOptions, capo
from agentgym.credit.estimators.dr_mas import dr_mas
from agentgym.credit.estimators.gae import PoadOptions, archer, bi_level_gae, poad, token_gae, turn_gae
from agentgym.credit.estimators.gigpo import GigpoOptions, gigpo
from agentgym.credit.estimators.group_relative import (
    dr_grpo,
    flow_grpo,
    mc_grpo,
    opo,
    reinforce_pp_baseline,
    rloo,
    supo,
)
from agentgym.credit.estimators.hgpo import HgpoOptions, hgpo
from agentgym.credit.estimators.igpo import igpo
from agentgym.credit.estimators.m_grpo import MGrpoOptions, m_grpo
from agentgym.credit.estimators.multi_reward import gdpo, mt_grpo
from agentgym.credit.estimators.opmd import opmd
from agentgym.credit.estimators.rae import RaeOptions, rae
from agentgym.credit.estimators.reinforce_pp import reinforce_pp
from agentgym.credit.estimators.returns import returns
from agentgym.credit.estimators.spo import SpoOptions, spo, spo_prior
from agentgym.credit.estimators.ui_s1 import UiS1Options, ui_s1
from agentgym.credit.shapers.information_gain import InformationGainOptions, information_gain
from agentgym.credit.state import CreditState
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError


def test_dr_grpo() -> None:
    assert_close(dr_grpo(bandits(1, 0, 0.5, 2)).advantage, [0.125, -0.875, -0.375, 1.125])


def test_rloo() -> None:
    assert_close(rloo(bandits(1, 0, 0.5, 2)).advantage, [0.166667, -1.166667, -0.5, 1.5])


def test_rloo_gives_a_singleton_nothing() -> None:
    assert rloo(bandits(3)).advantage.tolist() == [0]


def test_opo() -> None:
    table = bandits(1, 0, 0.5, num_tokens=[1, 3, 4])
    baseline = (1 * 1 + 3 * 0 + 4 * 0.5) / 8
    assert_close(opo(table).advantage, [1 - baseline, -baseline, 0.5 - baseline])


def test_opo_gives_a_singleton_nothing() -> None:
    assert opo(bandits(3, num_tokens=[7])).advantage.tolist() == [0]


def test_asymre() -> None:
    table = bandits(1, 0, 0, 1, 0.5, groups=[0, 0, 0, 0, 1])
    assert_close(asymre(table).advantage, [0.6, -0.4, -0.4, 0.6, 0.1])
    assert_close(asymre(table, delta=-0.25).advantage, [0.75, -0.25, -0.25, 0.75, 0.25])
    assert_close(asymre(bandits(1, 0, 2), delta=0.0).advantage, dr_grpo(bandits(1, 0, 2)).advantage)


def test_capo() -> None:
    """R is 1 (2 tokens) and 2 (1 token); 0 (1 token) and -1 (4 tokens); the second group has one constant R."""
    table = table_of([[0, 1], [0, 0], [1, 0]], groups=[0, 0, 1]).with_columns(
        is_faulty=[[True, False], [False, True], [False, False]], num_tokens=[[2, 1], [1, 4], [3, 3]]
    )
    assert_close(capo(table, norm="mean_norm").advantage, [1, 2, 0, -1, 0, 0])
    std = math.sqrt((2 * 1 + 1 * 4 + 0 + 4 * 1) / 7)
    assert_close(capo(table).advantage, [x / (std + 1e-6) for x in (1, 2, 0, -1)] + [0, 0])
    heavy = capo(table, CapoOptions(outcome_weight=1.0, process_weight=3.0), norm="mean_norm").advantage
    assert_close(heavy, np.array([-2, 1, 0, -3, 0, 0]) - np.array([-15 / 8] * 4 + [0, 0]))
    config = CreditConfig(estimator="capo", norm="mean_norm")
    assert_close(credit_turns(table, config).advantage, [1, 2, 0, -1, 0, 0])


def test_capo_tells_right_turns_from_wrong_ones_where_all_fail() -> None:
    table = table_of([[0, 0], [0, 0]]).with_columns(is_faulty=[[False, True], [False, False]], num_tokens=[[1, 1]] * 2)
    assert_close(capo(table).advantage, np.array([0.25, -0.75, 0.25, 0.25]) / (0.5 + 1e-6))
    without = table.with_columns(is_faulty=[[False] * 2] * 2)
    assert_close(capo(without).advantage, [0] * 4)


def test_capo_without_its_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="is_faulty"):
        capo(bandits(1, 0))


def test_asymre_trains_groups_of_equal_returns() -> None:
    assert_close(asymre(bandits(0, 0, 0)).advantage, [0.1, 0.1, 0.1])


def test_asymre_has_no_baseline_above_the_mean() -> None:
    with pytest.raises(ConfigError, match=r"asymre: delta must be at most 0, got 0\.1"):
        AsymreOptions(delta=0.1)


def test_opmd() -> None:
    table = bandits(1, 0, 0.5, groups=[0, 0, 1])
    top = math.log((math.exp(1) + 1) / 2)
    assert_close(opmd(table).advantage, [1 - top, -top, 0])
    sharp = 0.1 * math.log((math.exp(10) + 1) / 2)
    assert_close(opmd(table, tau=0.1).advantage, [1 - sharp, -sharp, 0])
    assert_close(opmd(table, baseline="mean").advantage, [0.5, -0.5, 0])


def test_opmd_does_not_overflow_and_nears_the_mean_at_a_high_temperature() -> None:
    assert_close(opmd(bandits(10_000, 0), tau=1.0).advantage, [math.log(2), math.log(2) - 10_000])
    assert_close(opmd(bandits(1, 0), tau=1e6).advantage, [0.5, -0.5])


def test_reinforce_pp() -> None:
    credited = reinforce_pp(bandits(1, 0, groups=[0, 1], num_tokens=[2, 3]))
    assert_close(credited.token_advantage, [1.095445, 1.095445, -0.730297, -0.730297, -0.730297])
    assert_close(credited.advantage, [1.095445, -0.730297])


def test_reinforce_pp_discounts_per_token_across_turns() -> None:
    credited = reinforce_pp(table_of([[1, 2], [0]], num_tokens=[2, 1, 1]), gamma=0.5)
    assert_close(credited.token_return, [0.5 * (1 + 0.5 * 2), 1 + 0.5 * 2, 2, 0])


def test_reinforce_pp_baseline() -> None:
    table = bandits(1, 0, num_tokens=[2, 3])
    assert_close(reinforce_pp_baseline(table).advantage, [1.095445, -0.730297])


@pytest.mark.parametrize("estimator", [reinforce_pp, reinforce_pp_baseline])
def test_one_token_cannot_be_whitened(estimator: object) -> None:
    with pytest.raises(ConfigError, match="at least two units"):
        estimator(bandits(1, num_tokens=[1]))  # type: ignore[operator]


def test_mc_grpo() -> None:
    credited = mc_grpo(bandits(0, 0.2, 0.3, 1, 0.9))
    assert_close(credited.advantage, [-1.245847, -0.415282, 0, 2.906977, 2.491694])
    assert_close(credited.loss_weight, [1, 1, 0, 1, 1])


def test_mc_grpo_takes_lower_medians_in_even_groups() -> None:
    credited = mc_grpo(bandits(0, 1, 2, 4))
    assert_close(credited.advantage, np.array([-1, 0, 1, 3]) / 1.001 * 4 / 3)
    assert_close(credited.loss_weight, [1, 0, 1, 1])


def test_mc_grpo_without_spread() -> None:
    as_released = mc_grpo(bandits(0, 0, 0, 0, 1), least_mad=0.0)
    assert_close(as_released.advantage, [0, 0, 0, 0, 5000])
    credited = mc_grpo(bandits(0, 0, 0, 0, 1))
    assert_close(credited.advantage, [0, 0, 0, 0, 5 / 1.001])
    assert_close(credited.loss_weight, [0, 1, 1, 1, 1])


@pytest.mark.parametrize("noise", [0.0, 1e-9, 1e-4, 0.02])
def test_mc_grpo_is_bounded_where_most_rewards_are_nearly_equal(noise: float) -> None:
    assert np.abs(mc_grpo(bandits(0, noise, 2 * noise, -noise, 1)).advantage).max() < 5.5


def test_mt_grpo_compares_with_members_that_answered_without_a_tool() -> None:
    table = table_of([[0, 0], [0, 0], [0]]).with_parts(
        used=("process", [0.5, 0, 0.3, 0, 0]), right=("outcome", [0, 1, 0, 0, 0])
    )
    assert_close(mt_grpo(table).advantage[[0, 2]], [2.0813, -0.4448], 1e-4)
    assert_close(mt_grpo(table, turn_credit="first").advantage, mt_grpo(table).advantage)


def test_mt_grpo_may_credit_the_first_turn_alone() -> None:
    table = table_of([[0, 0, 0], [0, 0]]).with_parts(
        used=("process", [0.5, 0.5, 0, 0, 0]), right=("outcome", [0, 0, 1, 0, 0])
    )
    outcome = 1 / (np.sqrt(2) + 2e-4)
    expected = [2 * outcome, outcome, outcome, -2 * outcome, -outcome]
    assert_close(mt_grpo(table, turn_credit="first").advantage, expected)


def test_gdpo() -> None:
    table = bandits(0, 0, 0, 0).with_parts(a=("outcome", [1, 0, 0, 0]), b=("format", [0, 1, 1, 0]))
    assert_close(gdpo(table, batch_norm="off").advantage, [0.633825, 0.365975, 0.365975, -1.365775])
    assert_close(gdpo(table).advantage, [0.689442, 0.398089, 0.398089, -1.48562])


def test_gdpo_with_a_constant_or_missing_part() -> None:
    table = bandits(0, 0).with_parts(a=("outcome", [1, 0]), b=("format", [2, 2]), c=("cost", [np.nan, np.nan]))
    assert_close(gdpo(table, batch_norm="off").advantage, [0.707007, -0.707007])


def test_gdpo_weights_must_name_parts() -> None:
    with pytest.raises(ConfigError, match=r"weights name parts \['x'\]; the table has a"):
        gdpo(bandits(0).with_parts(a=("outcome", [1])), weights={"x": 2})


def test_spo() -> None:
    assert_close(spo_prior(8, 3), (3.111111, 4.888889))
    assert_close(spo_prior(0, 0), (0.5, 0.5))
    table = bandits(1, 0, groups=[0, 1], group_keys=["a", "b"], drift=[0.03, 0])
    credited, tracker = spo(table, {"a": spo_prior(8, 3)})
    assert_close(tracker["a"], (3.722222, 4.277778))
    assert_close(tracker["a"][0] / sum(tracker["a"]), 0.465278)
    assert_close(tracker["b"], (0.96 * 0.5, 0.96 * 0.5 + 1))
    raw = np.array([0.611111, -0.5])
    assert_close(credited.advantage, (raw - raw.mean()) / raw.std(ddof=1))


def test_spo_whitens_over_tokens_if_asked() -> None:
    table = bandits(1, 0, groups=[0, 1], group_keys=["a", "b"], num_tokens=[1, 3])
    advantage = spo(table, {}, SpoOptions(whitening="token"))[0].advantage
    assert_close((advantage * [1, 3]).sum(), 0)


def test_spo_takes_success_rates_alone() -> None:
    with pytest.raises(ConfigError, match=r"returns must lie in \[0, 1\]"):
        spo(bandits(2, group_keys=["a"]), {})


ALPHA_1 = [0.652071, 1.165685, 0, -1.412820, -0.882842, -0.707106, 0.760749, 0]
MEAN_NORM = [2.849999, 5.383332, 0, -6.174997, -4.116666, -3.166665, 3.324998, 0]


def test_hgpo() -> None:
    assert_close(hgpo(f1()).advantage, ALPHA_1)
    assert_close(hgpo(f1(), norm="mean_norm").advantage, MEAN_NORM)
    uniform = hgpo(f1(), options=HgpoOptions(weight_alpha=0.0)).advantage
    assert_close(uniform[[1, 4]], [1.207106, -0.853553])


def test_hgpo_base_group_is_gigpos_episode_part() -> None:
    only_base = hgpo(f1(), options=HgpoOptions(history=0, base_group=True)).advantage
    # level 1 has no group for τ1's and τ3's last turns
    assert_close(only_base[[2, 7]], [0.724569, 0.724569])


def test_hgpo_may_keep_levels_whose_advantage_is_zero() -> None:
    table = TurnTable.from_lists(
        rewards=[[0, 0], [0, 1], [0, 2]], states=[["a", "s"], ["b", "s"], ["a", "s"]], group_of_trajectory=[0] * 3
    )
    dropped = hgpo(table, norm="mean_norm", options=HgpoOptions(history=1)).advantage
    kept = hgpo(table, norm="mean_norm", options=HgpoOptions(history=1, drop_zero=False)).advantage
    assert_close(dropped[[1, 3]], [-1, 0])
    assert_close(kept[[1, 3]], [(2 * -1 + 3 * -1) / 5, 0])


def gains(mode: str) -> TurnTable:
    table = table_of([[0, 0, 1], [0, 0]])
    first = [[-1.5], [-0.8], [-0.3]]
    second = [[-1.5], [-1.7]]
    options = InformationGainOptions(mode=mode)  # type: ignore[arg-type]
    return information_gain(table.with_columns(answer_logprobs=[first, second]), options).table


IGPO = [
    ("prob_diff", "joint", 1.0, [1.685743, 1.870646, 1.881217, -1.685743, -0.788874]),
    ("prob_diff", "joint", 0.9, [1.329369, 1.682524, 1.881217, -1.606856, -0.788874]),
    ("prob_diff", "separate", 1.0, [2.389619, 1.922169, 0.999998, -2.389619, -0.999998]),
    ("log_prob_diff", "separate", 1.0, [2.382184, 1.431931, 0.999998, -2.382184, -0.999998]),
    ("log_prob_diff", "separate", 0.9, [2.148991, 1.331931, 0.999998, -2.282184, -0.999998]),
]


@pytest.mark.parametrize(("mode", "normalisation", "gamma", "expected"), IGPO)
def test_igpo(mode: str, normalisation: str, gamma: float, expected: list[float]) -> None:
    assert_close(igpo(gains(mode), normalisation=normalisation, gamma=gamma).advantage, expected)


def test_igpo_curriculum_moves_weight_from_gain_to_outcome() -> None:
    start, end = (igpo(gains("prob_diff"), normalisation="joint", progress=p).advantage for p in (0.0, 1.0))
    assert start[2] < end[2]
    assert start[0] - start[1] > end[0] - end[1]


def test_mt_grpo() -> None:
    table = table_of([[0, 0]] * 3).with_parts(
        turn=("process", [[0.5, 0], [0, 0], [0.3, 0]]), right=("outcome", [[0, 1], [0, 0], [0, 0]])
    )
    expected = [2.081305, 1.154501, -1.636455, -0.57725, -0.44485, -0.57725]
    assert_close(mt_grpo(table).advantage, expected)


def test_mt_grpo_without_a_tool_result_takes_everything() -> None:
    table = table_of([[0, 0], [0]]).with_parts(turn=("process", [[0.5, 0], [0.25]]), right=("outcome", [[0, 1], [1]]))
    assert_close(mt_grpo(table).advantage[2], (1.25 - 1.375) / (np.std([1.5, 1.25], ddof=1) + 1e-4))


def test_supo() -> None:
    table = table_of([[0, 0, 1], [0], [0, 1], [0] * 4])
    table = table.with_columns(segment=[0, 1, 2, 0, 0, 1, 0, 1, 2, 3])
    assert_close(
        supo(table, mask_overlong=False).advantage, [0.866024] * 3 + [-0.866024] + [0.866024] * 2 + [-0.866024] * 4
    )
    two = table_of([[0, 0, 1], [0]], is_truncated=[[False] * 3, [True]])
    assert_close(supo(two).advantage, [0.707106] * 3 + [-0.707106])
    assert_close(supo(two).loss_weight, [1, 1, 1, 0])


def test_rae() -> None:
    table = bandits(1, -1, 1, -1, -1, 1, role=[0, 1] * 3)
    credited, baselines = rae(table, {})
    assert_close(credited.advantage, [1, -1, 0.95, -0.95, -1.0975, 1.0975])
    assert_close([baselines["0"], baselines["1"]], [0.042625, -0.042625])


def test_rae_discounts_from_the_players_own_end() -> None:
    table = table_of([[0, 0, 1, -1]], role=[0, 1, 0, 1])
    credited, _ = rae(table, {"0": 1.0}, RaeOptions(gamma=0.5))
    assert_close(credited.advantage, [0, -0.5, 0, -1])
    assert_close(credited.loss_weight, [0, 1, 0, 1])


def test_rae_may_keep_a_baseline_per_task() -> None:
    table = bandits(1, 1, groups=[0, 1], role=[0, 0], group_keys=["a", "b"])
    assert sorted(rae(table, {}, RaeOptions(baseline_of="task_role"))[1]) == ["a|0", "b|0"]


def test_flow_grpo() -> None:
    table = table_of([[0, 1], [0]])
    assert_close(flow_grpo(table).advantage, [0.57735, 0.57735, -1.154699])
    assert_close(flow_grpo(table, statistics_unit="trajectory").advantage, [0.707106, 0.707106, -0.707106])


def test_flow_grpo_trains_the_planner_alone() -> None:
    table = table_of([[0, 9, 1], [0, 9]], invocation=[[-1, 0, -1], [-1, 0]])
    alone = flow_grpo(table_of([[0, 1], [0]]))
    credited = flow_grpo(table)
    assert_close(credited.advantage[[0, 2, 3]], alone.advantage)
    assert credited.loss_weight is not None and credited.loss_weight.tolist() == [1, 0, 1, 1, 0]
    every = flow_grpo(table, agents="all")
    assert every.loss_weight is None and every.advantage[1] != 0


def test_dr_mas() -> None:
    """The team's return, compared over the turns of one agent alone, of which long episodes have more."""
    table = table_of([[0, 1, 0, 1], [0, 0, 0], [1, 1]], role=[0, 1, 1, 0, 0, 1, 1, 0, 1])
    planner, solver = np.array([2.0, 2.0, 0.0, 2.0]), np.array([2.0, 2.0, 0.0, 0.0, 2.0])
    own = [(x - x.mean()) / x.std(ddof=1) for x in (planner, solver)]
    expected = [own[0][0], own[1][0], own[1][1], own[0][1], own[0][2], own[1][2], own[1][3], own[0][3], own[1][4]]
    assert_close(dr_mas(table).advantage, expected)
    assert_close(dr_mas(table, norm="mean_norm").advantage[[0, 4]], [0.5, -1.5])
    alone = table_of([[0, 1], [0, 0]], role=[0, 1, 0, 0])
    assert dr_mas(alone).advantage[1] == 0.0  # an agent with one turn has nothing to compare


def test_m_grpo() -> None:
    table = table_of([[1, 0.2, 0.8], [0, 0.4]], role=[0, 1, 1, 0, 1], invocation=[-1, 0, 1, -1, 0])
    scores = np.array([0.6, 0.9, 0.2])
    sub = (scores - scores.mean()) / scores.std(ddof=1)
    assert_close(m_grpo(table).advantage, [0.707106, sub[0], sub[1], -0.707106, sub[2]])


def test_m_grpo_trains_at_most_so_many_calls() -> None:
    table = table_of([[1, 0.2, 0.8, 0.3], [0, 0, 0, 0]], role=[0, 1, 1, 1] * 2, invocation=[-1, 0, 1, 2] * 2)
    weight = m_grpo(table, MGrpoOptions(max_invocations=2)).loss_weight
    assert weight is not None
    assert weight[[0, 4]].tolist() == [1, 1]
    assert (weight[1:4].sum(), weight[5:].sum()) == (2, 2)


def test_token_gae() -> None:
    table = table_of([[0, 1]], num_tokens=[2, 2], token_value=[0.5, 0.4, 0.6, 0.8])
    credited = token_gae(table, whitened=False)
    assert_close(credited.token_advantage, [0.441975, 0.5705, 0.39, 0.2])
    assert_close(credited.token_return, [0.941975, 0.9705, 0.99, 1.0])


def test_returns() -> None:
    table = table_of([[0.5, 0.5], [0], [3]])
    assert_close(returns(table, norm="mean_norm").advantage, [1, 1, 0, 3])
    spread = np.std([1.0, 0.0, 3.0])
    assert_close(returns(table).advantage, np.array([1, 1, 0, 3]) / spread)
    assert_close(returns(table_of([[2], [2]])).advantage, [2, 2])


def test_poad() -> None:
    table = table_of([[0, 1]], num_tokens=[2, 2], token_value=[0.5, 0.4, 0.6, 0.8])
    credited = poad(table, whitened=False)
    assert_close(credited.token_advantage, [0.395876, 0.521975, 0.39, 0.2])
    assert_close(credited.token_return, [0.895876, 0.921975, 0.99, 1.0])
    whitened = poad(table).token_advantage
    assert whitened is not None
    assert_close([whitened.mean(), whitened.std()], [0.0, 1.0])


def test_poad_with_one_discount_is_token_gae() -> None:
    table = table_of([[0.5, 1], [0, 0.25, 1]], num_tokens=[2, 1, 3, 1, 2], token_value=np.linspace(-1, 1, 9))
    one = poad(table, gamma_action=0.9, gamma_token=0.9, whitened=False)
    assert_close(one.token_advantage, token_gae(table, gamma=0.9, whitened=False).token_advantage)


def test_poad_does_not_depend_on_how_an_action_is_cut_into_tokens() -> None:
    """With the values of a deterministic action equal, what the first token gains is the same for two and for five."""
    first = []
    for num_tokens in (2, 5):
        values = [0.3] * num_tokens + [0.6] * num_tokens
        table = table_of([[0, 1]], num_tokens=[num_tokens] * 2, token_value=values)
        advantage = poad(table, lam=1.0, whitened=False).token_advantage
        assert advantage is not None
        first.append(advantage[0])
    assert_close(first, [0.65, 0.65])


def test_poad_refuses_discounts_above_one() -> None:
    with pytest.raises(ConfigError, match="gamma_token must be between 0 and 1"):
        PoadOptions(gamma_token=1.5)


def test_turn_gae() -> None:
    credited = turn_gae(table_of([[0.2, 1]], value=[0.5, 0.6]), whitened=False)
    assert_close(credited.advantage, [0.6702, 0.4])


def test_turn_gae_follows_the_agents_in_time() -> None:
    """A manager asks a clerk in its first turn: the clerk's row is the last, and its turn comes before the second."""
    table = table_of([[0, 1, 0]], value=[0.5, 0.6, 0.4], moment=[0, 2, 1])
    credited = turn_gae(table, gamma=1.0, lam=0.5, whitened=False)
    # manager's last turn: 1 - 0.6; clerk: 0.6 - 0.4 + 0.5 * 0.4; manager's first: 0.4 - 0.5 + 0.5 * 0.4
    assert_close(credited.advantage, [0.1, 0.4, 0.4])
    assert_close(credited.return_to_go, [0.6, 1.0, 0.8])


def test_a_reward_comes_after_the_turns_of_those_asked() -> None:
    """The second turn asks a sub-agent, and its reward of 1 arrives when that one is done: 0.6, 0.1 and 0.15."""
    asked = {"moment": [0, 1, 2], "invocation": [-1, -1, 0]}
    table = table_of([[0, 1, 0]], value=[0.5, 0.6, 0.4], **asked)
    credited = turn_gae(table, gamma=1.0, lam=0.5, whitened=False)
    np.testing.assert_allclose(credited.advantage, [0.15, 0.1, 0.6], atol=1e-12)
    np.testing.assert_allclose(credited.return_to_go, [0.65, 0.7, 1.0], atol=1e-12)


def test_bi_level_gae() -> None:
    table = table_of([[0.2, 1]], num_tokens=[3, 2], token_value=[0.1, 0.2, 0.3, 0.4, 0.5])
    credited = bi_level_gae(table, lam=0.95, whitened=False)
    assert_close(credited.token_advantage, [0.940691, 0.884937, 0.82625, 0.575, 0.5])
    assert_close(credited.token_return, [1.040691, 1.084937, 1.12625, 0.975, 1.0])


def test_archer() -> None:
    table = table_of([[0.5, 1], [0]], q_value=[0.7, 0.9, 0.1], value=[0.5, 0.8, 0.3])
    credited = archer(table)
    assert_close(credited.advantage, [0.2, 0.1, -0.2])
    assert_close(credited.return_to_go, [0.5 + 0.95 * 0.8, 1, 0])


def test_archer_takes_the_lower_of_two_critics() -> None:
    table = table_of([[0, 1]], q_value=[[0.7, 0.6], [0.9, 1.0]], value=[0.5, 0.8])
    assert_close(archer(table).advantage, [0.1, 0.1])


# --------------------------------------------------------------------------------------------- GiGPO beyond its paper


def test_gigpo_without_revisits_compares_trajectories() -> None:
    credited = gigpo(f1(), norm="mean_norm", step_weight=1.0, options=GigpoOptions(revisits=False))
    episode = gigpo(f1(), norm="mean_norm", step_weight=0.0).advantage
    # s1: first visits of τ1 (9.5) and τ2 (0); τ2's second visit is held against the same mean
    assert_close((credited.advantage - episode)[[1, 4, 5]], [4.75, -4.75, -4.75])
    assert credited.anchor_size is not None
    assert credited.anchor_size.tolist() == [3, 2, 1, 3, 2, 2, 3, 1]


def test_gigpo_by_similarity() -> None:
    texts = ["You are in the kitchen. You see a mug 1.", "You are in the kitchen. You see a mug 2."]
    table = bandits(1, 0, observation=texts)
    result = credit_turns(table, CreditConfig(options=GigpoOptions(anchors="similarity")))
    assert result.anchor_size.tolist() == [2, 2]
    exact = credit_turns(table, CreditConfig())
    assert exact.anchor_size.tolist() == [1, 1]


# ------------------------------------------------------------------------------------------------------ persistence


def test_trackers_survive_a_checkpoint() -> None:
    table = bandits(1, 0, groups=[0, 1], group_keys=["a", "b"], drift=[0.1, 0.1])
    config = CreditConfig(estimator="spo")
    once = credit_turns(table, config)
    reloaded = CreditState.from_dict(json.loads(json.dumps(once.state.to_dict())))
    straight, resumed = credit_turns(table, config, once.state), credit_turns(table, config, reloaded)
    assert straight.state == resumed.state
    assert straight.advantage.tolist() == resumed.advantage.tolist()
    assert straight.state.step == 2


# one expert's turn in the middle of a long episode, one at the start of a short one
SEMI_ONLINE = ([[1.0, 1.0, 0.2, 1.0], [0.2, 1.0]], [[False, False, True, False], [True, False]])


def semi_online() -> TurnTable:
    rewards, is_patched = SEMI_ONLINE
    return table_of(rewards, is_patched=is_patched)


def test_ui_s1() -> None:
    credited = ui_s1(semi_online())
    assert_close(credited.return_to_go, [1.5, 1.0, 0.2, 1.0, 0.2, 1.0])
    # scores against their mean 4.4 / 6; the first turns' returns 1.5 and 0.2 against their mean 0.85, the second equal
    assert_close(credited.advantage, [0.916667, 0.266667, -0.533333, 0.266667, -1.183333, 0.266667])
    assert credited.anchor_group is not None and credited.anchor_size is not None
    assert credited.anchor_group.tolist() == [0, 1, 2, 3, 0, 1]
    assert credited.anchor_size.tolist() == [2, 2, 1, 1, 2, 2]


def test_ui_s1_in_units_of_deviations() -> None:
    credited = ui_s1(semi_online(), UiS1Options(norm="mean_std_norm"))
    # deviations sqrt(0.853333 / 5) of the scores and 1.3 / sqrt(2) of the first turns' returns
    assert_close(credited.advantage, [1.352604, 0.645497, -1.290994, 0.645497, -1.998101, 0.645497], 1e-4)


def test_ui_s1_weighs_its_parts() -> None:
    episode = ui_s1(semi_online(), step_weight=0.0).advantage
    step = ui_s1(semi_online(), UiS1Options(episode_weight=0.0)).advantage
    assert_close(step, [0.65, 0, 0, 0, -0.65, 0])
    assert_close(
        ui_s1(semi_online(), UiS1Options(episode_weight=2.0), step_weight=3.0).advantage, 2 * episode + 3 * step
    )
    shared = credit_turns(semi_online(), CreditConfig(estimator="ui_s1", step_weight=3.0))
    assert_close(shared.advantage, episode + 3 * step)


def test_ui_s1_may_compare_whole_episodes() -> None:
    credited = ui_s1(semi_online(), UiS1Options(episode_score="trajectory"))
    # returns 3.2 of four rows and 1.2 of two: a mean of 15.2 / 6
    assert_close(credited.advantage, [1.316667, 0.666667, 0.666667, 0.666667, -1.983333, -1.333333])


def test_ui_s1_leaves_the_score_of_a_lonely_turn_as_it_is() -> None:
    for norm in ("mean_norm", "mean_std_norm"):
        lonely = ui_s1(bandits(0.55, is_patched=[False]), UiS1Options(norm=norm))
        assert_close(lonely.advantage, [0.55])


def test_ui_s1_needs_to_know_what_was_patched() -> None:
    with pytest.raises(ConfigError, match="ui_s1 needs the columns is_patched"):
        ui_s1(bandits(1, 0))
    with pytest.raises(ConfigError, match="ui_s1: gamma must be between 0 and 1, got 2"):
        UiS1Options(gamma=2.0)
