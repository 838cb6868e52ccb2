"""Worked examples and edges of every shaper."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.credit_tables import assert_close, bandits, few, table_of

from agentgym.credit.compose import CreditConfig, credit_turns
from agentgym.credit.shapers.attempts import UfoOptions, spiral_split, ufo
from agentgym.credit.shapers.gating import GraOptions, g_ra
from agentgym.credit.shapers.information_gain import InformationGainOptions, information_gain
from agentgym.credit.shapers.penalties import InvalidCallOptions, OverlongOptions, invalid_call, overlong_penalty
from agentgym.credit.shapers.progress import SpaOptions, progress_loss, spa
from agentgym.credit.shapers.score import ScoreOptions, score
from agentgym.credit.shapers.tool_use import OtcOptions, ToolBonusOptions, otc, otc_factor, tool_bonus
from agentgym.credit.statistics import per_trajectory, returns_to_go
from agentgym.credit.table import TurnTable
from agentgym.errors import ConfigError


def swe() -> TurnTable:
    return table_of([[0] * 3, [0] * 3]).with_parts(
        solved=("outcome", [[0, 0, 1], [0, 0, 0]]), steps=("process", [[0.1, 0.1, -0.2]] * 2)
    )


def test_g_ra() -> None:
    shaped = g_ra(swe(), GraOptions(thresholds=(0.5,)))
    assert_close(shaped.table.reward, [0.1, 0.1, 0.8, 0, 0, 0])
    assert_close(returns_to_go(shaped.table, 1.0), [1.0, 0.9, 0.8, 0, 0, 0])
    assert shaped.gate_open is not None
    assert shaped.gate_open.tolist() == [True] * 3 + [False] * 3
    assert_close(shaped.diagnostics["gate_open_rate"], 0.5)
    assert_close(shaped.diagnostics["outcome_mean"], 0.5)
    assert_close(shaped.diagnostics["step_reward_mean"], 0.0)


def test_all_gates_open_is_direct_accumulation() -> None:
    shaped = g_ra(swe(), GraOptions(thresholds=(-1.0,)))
    assert_close(returns_to_go(shaped.table, 1.0)[3:], [0.0, -0.1, -0.2])


@pytest.mark.parametrize(("comparison", "expected"), [(">", 0.0), (">=", 0.1)])
def test_a_return_that_equals_the_gate(comparison: str, expected: float) -> None:
    shaped = g_ra(swe(), GraOptions(thresholds=(0.0,), comparison=comparison))  # type: ignore[arg-type]
    assert_close(shaped.table.reward[3], expected)


def test_penalties_may_pass_the_gate() -> None:
    shaped = g_ra(swe(), GraOptions(thresholds=(0.5,), gate_penalties=False))
    assert_close(shaped.table.reward[3:], [0, 0, -0.2])


def test_named_parts_and_roles_pass_the_gate() -> None:
    assert_close(g_ra(swe(), GraOptions(ungated=("steps",))).table.reward, swe().reward)
    assert_close(g_ra(swe(), GraOptions(priorities={"outcome": 0, "format": 1})).table.reward, swe().reward)


def test_gates_of_three_priorities_multiply() -> None:
    table = bandits(0, 0, 0).with_parts(
        a=("outcome", [1, 1, 0]), b=("process", [1, 0, 1]), c=("format", [0.5, 0.5, 0.5])
    )
    options = GraOptions(priorities={"outcome": 0, "process": 1, "format": 2}, thresholds=(0.5, 0.5))
    assert_close(g_ra(table, options).table.reward, [2.5, 1, 0])


def test_the_gate_also_closes_on_a_gain_kept_apart() -> None:
    table = swe().with_columns(info_gain=[0.3, 0.2, np.nan] * 2)
    assert_close(g_ra(table).table.info_gain, [0.3, 0.2, np.nan, 0, 0, np.nan])


def test_the_gate_needs_parts() -> None:
    with pytest.raises(ConfigError, match="g_ra needs the columns part_values"):
        g_ra(bandits(1))
    with pytest.raises(ConfigError, match=r"priorities name roles \['bonus'\]"):
        GraOptions(priorities={"bonus": 1})


FIRST = [[np.mean([-2, -1])], [np.mean([-1, -0.6])], [np.mean([-0.4, -0.2])]]
SECOND = [[np.mean([-2, -1])], [np.mean([-2.2, -1.2])]]


def test_information_gain() -> None:
    table = table_of([[0, 0, 1], [0, 0]], answer_logprobs=[FIRST, SECOND])
    by_prob = information_gain(table, InformationGainOptions(mode="prob_diff")).table.info_gain
    by_log = information_gain(table).table.info_gain
    assert_close(by_prob, [0.226199, 0.291489, np.nan, -0.040447, np.nan])
    assert_close(by_log, [0.7, 0.5, np.nan, -0.2, np.nan])


def test_the_likeliest_reference_at_the_start_counts_throughout() -> None:
    table = table_of([[0, 0]], answer_logprobs=[[[-3.0, -1.0], [-0.1, -2.0]]])
    assert_close(information_gain(table).table.info_gain, [-1, np.nan])


def test_short_references_are_passed_over() -> None:
    logprobs = [[[-1.0, -3.0], [-0.5, -1.0]]] * 2
    table = table_of([[0, 0], [0, 0]], answer_logprobs=logprobs, answer_lengths=[[1, 4], [1, 2]])
    shaped = information_gain(table, InformationGainOptions(min_answer_tokens=3))
    assert_close(shaped.table.info_gain, [2, np.nan, np.nan, np.nan])
    assert shaped.diagnostics["info_gain_too_short"] == 1


def test_a_mismatch_falls_back_to_the_outcome_and_is_counted() -> None:
    shaped = information_gain(table_of([[0, 0, 1], [0, 1]], answer_logprobs=[[[-1.0]], SECOND]))
    assert_close(shaped.table.info_gain, [np.nan] * 3 + [-0.2, np.nan])
    assert shaped.diagnostics["info_gain_mismatches"] == 1


def test_a_trajectory_that_hit_a_limit_has_a_gain_on_its_last_turn_only_if_asked_for() -> None:
    table = table_of([[0, 0]], answer_logprobs=[FIRST])
    assert_close(information_gain(table).table.info_gain, [0.7, np.nan])
    assert_close(information_gain(table, InformationGainOptions(gain_at_limit=True)).table.info_gain, [0.7, 0.5])


@pytest.mark.parametrize("bad", [-np.inf, np.nan])
@pytest.mark.parametrize("at", [0, 1])
def test_a_log_probability_that_is_not_finite_leaves_siblings_alone(bad: float, at: int) -> None:
    spoiled = [[-1.5], [-0.8], [-0.3]]
    spoiled[at] = [bad]
    table = table_of([[0, 0, 1], [0, 0]], answer_logprobs=[spoiled, SECOND])
    shaped = information_gain(table)
    assert_close(shaped.table.info_gain, [np.nan] * 3 + [-0.2, np.nan])
    assert shaped.diagnostics["info_gain_not_finite"] == 1
    config = CreditConfig(estimator="igpo", shapers=(InformationGainOptions(),))
    assert_close(credit_turns(table, config).advantage, [1, 1, 1, -1, -1], 1e-4)


def test_a_probability_may_fall_to_zero() -> None:
    table = table_of([[0, 0]], answer_logprobs=[[[-1.0], [-np.inf]]])
    shaped = information_gain(table, InformationGainOptions(mode="prob_diff"))
    assert_close(shaped.table.info_gain, [-np.exp(-1.0), np.nan])


def test_the_gain_is_merged_for_estimators_that_look_at_sums() -> None:
    table = table_of([[0, 0, 1], [0, 0]], answer_logprobs=[FIRST, SECOND])
    config = CreditConfig(estimator="dr_grpo", shapers=(InformationGainOptions(),))
    assert_close(credit_turns(table, config).table.reward, [0.7, 0.5, 1, -0.2, 0])
    apart = CreditConfig(estimator="igpo", shapers=(InformationGainOptions(),))
    assert_close(credit_turns(table, apart).table.reward, [0, 0, 1, 0, 0])


@few
@given(st.lists(st.lists(st.floats(-9, 0), min_size=2, max_size=6), min_size=1, max_size=4), st.booleans())
def test_information_gain_telescopes(logprobs: list[list[float]], is_log: bool) -> None:
    table = table_of([[0.0] * len(row) for row in logprobs])
    table = table.with_columns(answer_logprobs=[[[x] for x in row] for row in logprobs])
    options = InformationGainOptions(mode="log_prob_diff" if is_log else "prob_diff")
    gain = information_gain(table, options).table.info_gain
    assert gain is not None
    level = (lambda x: x) if is_log else np.exp
    assert_close(per_trajectory(table, np.nan_to_num(gain)), [level(r[-1]) - level(r[0]) for r in logprobs], 1e-9)


def test_invalid_call() -> None:
    table = TurnTable.from_lists(rewards=[[0, 1], [1]], is_valid=[[False, True], [True]], group_of_trajectory=[0, 0])
    shaped = invalid_call(table, InvalidCallOptions(penalty=0.2))
    assert_close(shaped.table.reward, [-0.2, 1, 1])
    assert_close(shaped.diagnostics["invalid_call_rate"], 1 / 3)


def test_overlong_penalty() -> None:
    table = bandits(0, 0, 0, 0, 0, num_tokens=[85, 95, 100, 80, 140])
    options = OverlongOptions(max_tokens=100, buffer_tokens=20, factor=1.0)
    assert_close(overlong_penalty(table, options).table.reward, [-0.25, -0.75, -1, 0, -1])
    growing = OverlongOptions(max_tokens=100, buffer_tokens=20, factor=1.0, beyond="growing")
    assert_close(overlong_penalty(table, growing).table.reward, [-0.25, -0.75, -1, 0, -3])


def test_overlong_counts_the_whole_trajectory_and_pays_on_its_last_turn() -> None:
    table = table_of([[0, 0]], num_tokens=[50, 45])
    assert_close(overlong_penalty(table, OverlongOptions(max_tokens=100, buffer_tokens=20)).table.reward, [0, -0.375])


def test_otc() -> None:
    calls, fewest = np.array([0.0, 1, 3, 1, 2, 4, 0]), np.array([0.0, 0, 0, 2, 2, 2, 2])
    assert_close(otc_factor(calls, fewest), [1, 0.5, 0.222521, 0.866025, 1, 0.866025, 0])
    ppo = OtcOptions(variant="ppo")
    table = bandits(1, 1, 1, 1, 0, num_calls=[0, 1, 2, 3, 0])
    assert_close(otc(table, {}, ppo)[0].table.reward, [1, 0.5, 0.309017, 0.222521, 0])


def test_otc_remembers_the_fewest_calls_of_a_task() -> None:
    table = bandits(1, 1, num_calls=[4, 3], group_keys=["t"])
    shaped, fewest = otc(table, {"t": 2})
    assert_close(shaped.table.reward, [np.sin(4 * np.pi / 6), np.sin(3 * np.pi / 5)])
    assert fewest == {"t": 2}
    assert otc(bandits(0, num_calls=[1], group_keys=["t"]), {})[1] == {}


def test_otc_leaves_other_parts_alone() -> None:
    table = bandits(0).with_parts(right=("outcome", [1]), format=("format", [0.3]))
    assert_close(otc(table.with_columns(num_calls=[4], group_keys=["t"]), {"t": 2})[0].table.reward, [0.866025 + 0.3])
    shaped = otc(table.with_columns(num_calls=[1]), {}, OtcOptions(variant="ppo"))[0]
    assert_close(shaped.table.reward, [0.5 + 0.3])


def test_score() -> None:
    """Wrong and right, right and wrong, right twice, wrong twice; and an episode of three attempts."""
    table = table_of([[0, 0]] * 4 + [[0, 0, 0]], groups=[0] * 5).with_parts(
        attempt=("process", [[0, 0], [1, 0], [1, 0], [0, 0], [0, 1, 0]]),
        outcome=("outcome", [[0, 1], [0, 0], [0, 1], [0, 0], [0, 0, 1]]),
        malformed=("format", [[-0.1, 0], [0, 0], [0, 0], [0, 0], [0, 0, 0]]),
    )
    second = score(table)
    assert second.table.reward.tolist() == [0, 11, 1, -10, 1, 1, 0, 0, 0, 11, 1]
    assert second.diagnostics == {"correction_mean": pytest.approx(1 / 5), "first_attempt_mean": pytest.approx(2 / 5)}
    first = score(table, ScoreOptions(first_weight=0.0, alpha=0.0)).table
    assert first.reward.tolist() == [0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert first.part_names == ("score",)
    half = score(table, ScoreOptions(first_weight=0.5, alpha=1.0)).table
    assert half.reward.tolist() == [0, 2, 0.5, -1, 0.5, 1, 0, 0, 0, 1.5, 1]


def test_ufo() -> None:
    decays = [ufo(table_of([[0.0] * n + [1.0]], answer=list(range(n + 1)))).table.reward[-1] for n in range(4)]
    assert_close(decays, [1, 0.5, 0.25, 0.125])
    failed = ufo(table_of([[0, 0, 0, 0]], answer=[0, 1, 0, 1])).table.reward
    assert_close(failed, [0, 0, 0, -0.25])
    malformed = ufo(table_of([[0, 0]], answer=[-1, 0]), UfoOptions(repetition_penalty=0.0)).table.reward
    assert_close(malformed, [0, -0.1])
    repeated = table_of([[0, 0, 0, 1]], answer=[3, -1, 3, 4])
    assert_close(ufo(repeated).table.reward[-1], 0.01)  # a success is better than any failure
    mixed = ufo(repeated, UfoOptions(least_success=None)).table.reward
    assert_close(mixed[-1], 0.5**2 - 0.5 * (1 - 2 / 3) - 0.1)


def test_tool_bonus() -> None:
    options = ToolBonusOptions(bonus=0.5, max_bonus=1.0, fade_steps=200)
    table = table_of([[0, 0], [0, 0]], num_calls=[2, 1, 0, 0])
    sizes = [tool_bonus(table, step, options).table.reward[1] for step in (0, 50, 100, 200, 300)]
    assert_close(sizes, [1, 0.853553, 0.5, 0, 0])
    assert_close(tool_bonus(table, 0).table.reward, [0, 0.1, 0, 0])
    assert_close(tool_bonus(table, 0, ToolBonusOptions(bonus=0.7)).table.reward, [0, 0.5, 0, 0])
    assert_close(tool_bonus(table, 0, ToolBonusOptions(per="trajectory")).table.reward, [0, 0.05, 0, 0])
    per_call = tool_bonus(table, 0, ToolBonusOptions(bonus=1.0, per="call"))
    assert_close(per_call.table.reward, [2, 1, 0, 0])


def test_spa() -> None:
    table = table_of([[0, 0, 1]], progress=[0.1, 0.3, 0.2], is_executed=[True, False, True])
    assert_close(progress_loss(table), 0.16)
    assert_close(spa(table, SpaOptions(grounding=0.5, remainder="dropped")).table.reward, [0.6, 0.3, 0.7])
    assert_close(spa(table).table.reward, [0.1, 0.3, 0.6])


def test_spa_grounds_the_last_turn_and_takes_validity_for_execution() -> None:
    table = TurnTable.from_lists(
        rewards=[[0, 0, 1]], is_valid=[[False, True, False]], group_of_trajectory=[0]
    ).with_columns(progress=[0.0, 0.0, 0.0])
    assert_close(spa(table, SpaOptions(grounding=0.5, remainder="dropped")).table.reward, [0, 0.5, 0.5])


def test_spiral_split() -> None:
    table = table_of([[0, 0, 0], [0, 0]], role=[0, 1, 0, 0, 1], player_outcome=[1, -1, 1, -1, 1])
    assert_close(spiral_split(table).table.reward, [0, -1, 1, -1, 1])
