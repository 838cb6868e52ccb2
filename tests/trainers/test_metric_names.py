"""Every number in a run's metrics has a row in the docs, and every row of the docs a known answer."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean

import pytest
from testkit import counting_runs

from agentgym.credit.component import MODULATORS, SELECTIONS, SHAPERS
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import EvalConfig
from agentgym.trainers.engines.torch.requests import EngineStats
from agentgym.trainers.engines.vllm.pool import PoolStats
from agentgym.trainers.judges import judge, teacher
from agentgym.trainers.loop import TrainingLoop
from agentgym.trainers.losses.component import AUXILIARIES, CORRECTIONS, REGULARISERS, TOKEN_MASKS
from agentgym.trainers.phases.rollouts import Rollouts
from agentgym.trainers.reporting.clock import Clock
from agentgym.trainers.reporting.rollout_metrics import describe_rollouts
from agentgym.trainers.train import train
from agentgym.trainers.types import Metrics

TESTS = Path(__file__).parents[1]
TEXT = (TESTS.parent / "docs" / "metrics.md").read_text(encoding="utf-8")
FAMILIES = {
    "status": "STATUS", "changed": "KIND", "credit/changed": "KIND", "strategy/changed": "KIND", "cut": "REASON",
    "dropped": "REASON", "judge": "NAME", "teacher": "NAME", "schedule": "KEY",
}  # fmt: skip

EPISODES = "trainers/test_known_answers.py::test_episodes_of_a_step"
MIXTURE = "trainers/test_known_answers.py::test_a_mixture"
CREDIT = "credit/test_known_diagnostics.py::test_diagnostics"
UPDATE = "trainers/test_known_update_metrics.py::test_numbers_of_an_update"
SPEED = "trainers/test_known_update_metrics.py::test_times_and_speed"
CRITIC = "trainers/test_critic.py::test_numbers_of_a_critic"
ENGINE = "trainers/test_torch_engine.py"
SERVERS = "trainers/test_vllm_engine.py"
SHARES = "trainers/test_vllm_shares.py"
EVAL = "trainers/test_metric_names.py::test_an_evaluation_is_that_of_its_episodes"
ANSWERED: dict[str, str] = {
    **dict.fromkeys(
        ("success", "return", "num_turns", "truncated_success_share", "status/STATUS", "num_retries", "voids/ENV/KIND",
         "void_alarm", "invalid_share", "void_share", "num_calls", "malformed_calls", "thinking_tokens", "cut_share",
         "num_segments", "num_summaries", "num_patched", "player/N/success", "player/N/return", "forfeit_share",
         "sampled_tokens", "staleness_mean", "staleness_max", "num_cut", "cut/REASON", "cut_tokens", "num_branches",
         "num_continued", "num_corrected", "num_hints", "num_reflections", "num_feedback", "num_replayed",
         "num_demonstrations", "anchor_share", "anchor_size", "zero_advantage_share", "num_dropped_groups",
         "dropped/REASON"), EPISODES),
    **dict.fromkeys(("ENV/METRIC", "ENV/num_groups"), MIXTURE),
    "strategy/changed/KIND": "trainers/test_known_answers.py::test_effects_of_strategies",
    **dict.fromkeys(("success_low", "success_high", "mean_return", "mean_turns", "pass_at_K"), EVAL),
    "action_loss": "trainers/test_known_update_metrics.py::test_numbers_of_a_warm_start",
    **dict.fromkeys(
        ("loss", "grad_norm", "trained_tokens", "entropy", "entropy_bonus", "kl", "clip_fraction", "correction_weight",
         "changed/KIND", "logprob_gap_max", "logprob_gap_mean", "kl_old", "updates_done", "stopped_by_kl"), UPDATE),
    "lr": "trainers/test_known_update_metrics.py::test_numbers_of_a_warm_start",
    "lr_scale": "trainers/test_new_loss_component.py::test_a_memory_of_ones_own_is_kept_with_checkpoints",
    **dict.fromkeys(("tokens_per_s", "groups_ahead", "in_flight_limit", "num_tasks_played", "time/PHASE_s"), SPEED),
    "turn_limit": "rollout/test_strategies.py::test_the_limit_of_turns_is_a_metric_where_a_horizon_sets_one",
    "prefix_hit_share": "trainers/test_engine_load.py::test_the_share_is_that_of_the_step",
    "engine/num_ticks": f"{ENGINE}::test_ragged_additions_read_in_one_tick_equal_a_full_forward",
    "engine/num_prefill_tokens": f"{ENGINE}::test_a_session_forwards_only_what_is_new",
    "engine/num_reused_tokens": f"{ENGINE}::test_a_session_forwards_only_what_is_new",
    "engine/num_evictions": f"{ENGINE}::test_the_least_recently_used_idle_session_gives_way",
    "engine/num_sampled_tokens": f"{ENGINE}::test_tokens_and_seconds_of_the_engine_are_counted",
    "engine/busy_s": f"{ENGINE}::test_tokens_and_seconds_of_the_engine_are_counted",
    "engine/num_updated": f"{SHARES}::test_a_server_that_is_not_there_at_the_start_is_named_by_its_rank",
    "engine/num_left_out": f"{SERVERS}::test_a_server_that_another_run_gives_its_weights_is_left_to_that_run",
    "engine/num_readmitted": f"{SERVERS}::test_a_killed_server_comes_back_only_with_the_current_weights",
    "engine/num_moved": f"{SERVERS}::test_requests_in_flight_are_kept_and_every_token_has_its_version",
    "engine/num_kept": f"{SERVERS}::test_requests_in_flight_are_kept_and_every_token_has_its_version",
    "engine/probe_gap": f"{SERVERS}::test_a_healthy_server_in_bfloat16_serves",
    "engine/num_hidden_parameters": f"{SERVERS}::test_a_healthy_server_in_bfloat16_serves",
    **dict.fromkeys(
        ("FLEET/num_lost", "FLEET/num_hung", "FLEET/num_restarts"),
        "trainers/test_ray_fleet.py::test_one_that_hangs_is_killed"),
    **dict.fromkeys(
        ("credit/zero_advantage_share", "credit/left_out_share", "credit/flat_group_share", "credit/phantom_share",
         "credit/changed/KIND", "credit/invalid_call_rate", "credit/overlong_rate", "credit/attempts_to_success_mean",
         "credit/progress_loss", "credit/otc_factor_mean", "credit/calls_mean", "credit/tool_bonus",
         "credit/majority_share", "credit/majority_agreement"), CREDIT),
    "credit/shared_anchor_share": "credit/test_known_diagnostics.py::test_states_that_meet",
    "credit/dropped_group_share": "credit/test_known_diagnostics.py::test_selections",
    **dict.fromkeys(
        ("credit/gate_open_rate", "credit/outcome_mean", "credit/step_reward_mean"),
        "credit/test_known_diagnostics.py::test_gates"),
    **dict.fromkeys(
        ("credit/correction_mean", "credit/first_attempt_mean"), "credit/test_known_diagnostics.py::test_attempts"),
    **dict.fromkeys(
        ("credit/info_gain_mismatches", "credit/info_gain_too_short", "credit/info_gain_not_finite"),
        "credit/test_known_diagnostics.py::test_information_gain"),
    **dict.fromkeys(
        ("info_gain", "answer_prob_first", "answer_prob_last"),
        "trainers/test_known_update_metrics.py::test_numbers_of_information_gain"),
    **dict.fromkeys(
        ("drift", "revisited_share"),
        "trainers/test_columns.py::test_drift_is_zero_on_a_first_visit_and_measures_the_last_response"),
    **dict.fromkeys(
        ("critic_loss", "critic_loss_last", "critic_grad_norm", "value_mean", "explained_variance"), CRITIC),
    **dict.fromkeys(("critic_v_loss", "replay_episodes"), "trainers/test_critic.py::test_numbers_of_twin_critics"),
    **dict.fromkeys(
        ("judge/score", "judge/NAME"), "trainers/test_judges.py::test_each_episode_gets_its_score_on_its_last_turn"),
    "teacher/NAME": "trainers/test_teacher_hints.py::test_hints_are_kept_and_faults_are_counted",
    **dict.fromkeys(
        ("zero_gradient", "inactive_parts"),
        "trainers/test_activity.py::test_a_part_is_reported_once_after_twenty_steps_without_effect"),
    **dict.fromkeys(
        ("sft/weight", "sft/loss", "echo/weight", "echo/loss"),
        "trainers/test_known_update_metrics.py::test_an_additional_loss_is_the_mean_over_the_steps_updates"),
    **dict.fromkeys(
        ("self_distill/num_taught", "self_distill/num_without"),
        "trainers/test_self_distillation.py::test_sampled_tokens_stay_as_they_are_after_the_longer_prompt"),
    "schedule/KEY": "trainers/test_schedules.py::test_a_configuration_at_a_step",
}  # fmt: skip
"""For each number of the page, the test that computes it by hand."""
SHOWN = {"ENV/METRIC": "a/success", "pass_at_K": "pass_at_", "time/PHASE_s": "time/rollout_s"}
"""Spelling of names in their tests, where it is another one than the last part of the name."""
WITHOUT_ANSWER: dict[str, str] = {}
"""Numbers of the page that no test computes by hand, each with the reason; none so far."""


def names_of(text: str) -> list[str]:
    """Return the names that the tables of the page explain, in order, once each."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return [*dict.fromkeys(name for row in rows for name in re.findall(r"`([^`]+)`", row))]


def documented(name: str, text: str) -> bool:
    """Return True if the page has a row of the name, or of the family it belongs to, as in ``status/STATUS``."""
    prefix, _, last = name.rpartition("/")
    if prefix == "time":
        return f"`{last.removesuffix('_s')}`" in text
    if prefix in FAMILIES:
        name = f"{prefix}/{FAMILIES[prefix]}"
    if name.startswith("pass_at_"):
        name = "pass_at_K"
    name = re.sub(r"^player/\d+/", "player/N/", name)
    return name in names_of(text)


def test_each_number_of_the_page_has_a_known_answer() -> None:
    names = names_of(TEXT)
    assert sorted({*ANSWERED} & {*WITHOUT_ANSWER}) == []
    assert sorted({*names} - {*ANSWERED, *WITHOUT_ANSWER}) == [], "compute it by hand in a test, and name the test here"
    assert sorted({*ANSWERED, *WITHOUT_ANSWER} - {*names}) == [], "no row of docs/metrics.md has this name"


def test_the_tests_of_known_answers_compare_the_numbers_that_they_are_named_for() -> None:
    wrong = []
    for name, test in ANSWERED.items():
        path, _, function = test.partition("::")
        source = (TESTS / path).read_text(encoding="utf-8")
        shown = SHOWN.get(name) or next(part for part in reversed(name.split("/")) if not part.isupper())
        if f"def {function}(" not in source or shown not in source:
            wrong.append(f"{name}: {test}")
    assert wrong == []


def test_numbers_that_the_code_can_log_have_a_row_in_the_docs() -> None:
    """Those of components, engines and judges, of which a single run shows a few."""
    parts = [part for family in (CORRECTIONS, TOKEN_MASKS) for part in family]
    credit = [part for family in (SHAPERS, MODULATORS, SELECTIONS) for part in family]
    counted: Iterable[str] = (
        *describe_rollouts([]),
        *(f"changed/{name}" for name in parts),
        *(f"credit/changed/{name}" for name in credit),
        *(f"engine/{field.name}" for stats in (EngineStats, PoolStats) for field in dataclasses.fields(stats)),
        *(f"judge/{name}" for name in (*judge.COUNTS, *judge.OF_ALL_FAULTS)),
        *(f"teacher/{name}" for name in teacher.COUNTS),
    )
    assert [name for name in counted if not documented(name, TEXT)] == []
    page = (TESTS.parent / "docs" / "component_list.md").read_text(encoding="utf-8")
    assert [name for family in (REGULARISERS, AUXILIARIES) for name in family if f"| `{name}` |" not in page] == []


@pytest.mark.parametrize(
    "changes",
    [
        (),
        ("credit.estimator=turn_gae", 'loss.regularisers=[{"kind": "kl", "coef": 0.1}]'),
        ("credit.estimator=spo", "group.group_size=1", "group.min_valid=1", "groups_per_step=8"),
        ("sft.num_demos=16", "sft.mix.weight=0.1", "sft.batch_size=8", "loss.echo=0.05", "eval.repeats=2"),
    ],
)
def test_each_metric_has_a_row_in_the_docs(tmp_path: Path, changes: tuple[str, ...]) -> None:
    config = counting_runs.config(num_steps=1, eval=EvalConfig(num_episodes=2), zero_variance_filter="off")
    entropy = 'loss.regularisers=[{"kind": "entropy", "coef": 0.1}]'
    made = apply_overrides(config, [entropy, 'credit.shapers=[{"kind": "g_ra"}]', *changes])
    train(made, tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    names = dict.fromkeys(name for row in rows for name in row if name not in ("phase", "step"))
    assert {row["phase"] for row in rows} >= {"rl", "eval"}
    assert [name for name in names if not documented(name, TEXT)] == []


def test_a_step_is_written_before_the_next_one_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own number: rows are neither late by a step nor written together at the end."""
    seen: list[list[int]] = []
    plain = TrainingLoop.step

    async def looking(loop: TrainingLoop, rollouts: Rollouts, clock: Clock) -> Metrics:
        rows = read_json_lines(loop.run.run_dir / "metrics.jsonl")
        seen.append([row["step"] for row in rows if row["phase"] == "rl"])
        return await plain(loop, rollouts, clock)

    monkeypatch.setattr(TrainingLoop, "step", looking)
    train(counting_runs.config(num_steps=3, eval=EvalConfig(num_episodes=1)), tmp_path / "run")
    assert seen == [[], [1], [1, 2]]


def test_an_evaluation_is_that_of_its_episodes(tmp_path: Path) -> None:
    """The row of a run's evaluation against its recorded episodes: six tasks, each played four times."""
    made = counting_runs.config(num_steps=1, eval=EvalConfig(num_episodes=6, repeats=4))
    train(made, tmp_path / "run")
    (row,) = (
        one for one in read_json_lines(tmp_path / "run" / "metrics.jsonl") if one["phase"] == "eval" and one["step"]
    )
    played = read_json_lines(tmp_path / "run" / "eval" / "after" / "episodes.jsonl")
    wins: dict[str, list[bool]] = {}
    for one in played:
        wins.setdefault(one["task_id"], []).append(one["success"])
    rates = [fmean(trials) for trials in wins.values()]
    assert len(played) == 24 and [len(trials) for trials in wins.values()] == [4] * 6
    assert len({*rates}) > 1, "tasks differ, or the interval would be no test"
    assert row["success"] == pytest.approx(fmean(rates))
    assert row["mean_return"] == pytest.approx(fmean(one["return"] for one in played))
    assert row["mean_turns"] == pytest.approx(fmean(one["num_turns"] for one in played))
    assert row["success_low"] < row["success"] < row["success_high"]
    for k in (2, 4):  # the share of subsets of k trials with a success
        known = [1 - math.comb(4 - sum(trials), k) / math.comb(4, k) for trials in wins.values()]
        assert row[f"pass_at_{k}"] == pytest.approx(fmean(known))
