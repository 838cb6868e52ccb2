"""Parts of a run that do nothing are counted and said once."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.counting_runs import config
from testkit.policy_updates import on_policy, verdicts
from testkit.token_batches import tokens

from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.sft import SftConfig
from agentgym.trainers.losses import options as of
from agentgym.trainers.losses.config import LossConfig
from agentgym.trainers.losses.facts import PerToken, UpdateStatistics
from agentgym.trainers.losses.options import ClipCovOptions
from agentgym.trainers.phases.update import update_policy
from agentgym.trainers.reporting.activity import Activity, TrainedSteps, changed_by_corrections
from agentgym.trainers.train import train

LOSS = LossConfig(
    num_updates=2,
    echo=0.1,
    corrections=(of.TokenTisOptions(), of.VcpoOptions()),
    regularisers=(of.KlOptions(), of.LldsOptions()),
    token_masks=(ClipCovOptions(),),
)
IDLE = {"trained_tokens": 0.0, "grad_norm": math.nan, "clip_fraction": math.nan}
BUSY = {
    "trained_tokens": 10.0,
    "grad_norm": 1.0,
    "clip_fraction": 0.1,
    "changed/token_tis": 0.5,
    "changed/clip_cov": 0.1,
    "changed/vcpo": 5.0,
    "kl": 0.1,
    "llds": 0.2,
    "credit/changed/salt": 0.4,
    "strategy/changed/arpo": 3.0,
    "echo/loss": 1.2,
}
PARTS = {
    "clip_fraction": "the clip of loss.kind=ppo_clip",
    "changed/token_tis": "the correction token_tis",
    "changed/clip_cov": "the token mask clip_cov",
    "kl": "the regulariser kl",
    "llds": "the regulariser llds",
    "credit/changed/salt": "the credit component salt",
    "strategy/changed/arpo": "the strategy arpo",
    "echo/loss": "the auxiliary loss echo",
}


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_part_is_reported_once_after_twenty_steps_without_effect(name: str) -> None:
    activity = Activity(LOSS)
    said = [activity.watch(step, BUSY | {name: 0.0}) for step in range(1, 41)]
    assert [bool(lines) for lines in said] == [step == 20 for step in range(1, 41)]
    assert said[19][0].startswith(f"note: {PARTS[name]} changed nothing in 20 training steps")
    assert activity.metrics() == {"zero_gradient": 0.0, "inactive_parts": 1.0}
    activity.watch(41, BUSY)
    assert activity.metrics()["inactive_parts"] == 0


def test_a_learning_rate_that_is_never_scaled_is_reported() -> None:
    activity = Activity(LOSS, patience=2)
    step = {name: value for name, value in BUSY.items() if name != "changed/vcpo"}
    assert activity.watch(1, step) == []
    (line,) = activity.watch(2, step)
    assert line.startswith("note: the correction vcpo changed nothing")


def test_one_step_with_an_effect_starts_the_count_anew() -> None:
    activity = Activity(LOSS, patience=3)
    said = [activity.watch(step, BUSY | {"kl": float(step == 3)}) for step in range(1, 7)]
    assert [bool(lines) for lines in said] == [False] * 5 + [True]


def test_steps_that_train_nothing_are_not_counted() -> None:
    activity = Activity(LOSS, patience=2)
    assert activity.watch(1, BUSY | {"clip_fraction": 0.0}) == []
    assert activity.watch(2, IDLE) == []
    assert activity.metrics() == {"zero_gradient": 0.0, "inactive_parts": 0.0}
    assert activity.trained.conclusion() == ""


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"invalid_share": 0.99, "success": 0.0, "dropped/zero_variance": 4.0}, "99% of turns are invalid; give demon"),
        ({"success": 0.0, "dropped/zero_variance": 4.0}, "0% of episodes succeed and the episodes of a group earn the"),
        ({"success": 1.0, "dropped/zero_variance": 4.0}, "all episodes succeed and earn the same; take harder tasks"),
        ({"success": 0.5, "dropped/zero_variance": 4.0}, "the episodes of a group earn the same; raise group.group_s"),
        ({"success": math.nan, "dropped/too_few_valid": 4.0}, "groups have fewer than group.min_valid valid episodes"),
    ],
)
def test_a_run_says_why_it_trained_nothing(facts: dict[str, float], reason: str) -> None:
    activity = Activity(LOSS, patience=2)
    said = [activity.watch(step, IDLE | facts) for step in (1, 2, 3)]
    assert (said[0], said[2]) == ([], [])
    assert said[1][0].startswith(f"note: 0 of 2 steps trained: {reason}")
    resumed = Activity(LOSS, patience=2)
    resumed.load_state_dict(activity.state_dict())
    assert resumed.trained.conclusion().startswith(f"0 of 3 steps trained: {reason}")


@pytest.mark.parametrize("has_demos", [True, False])
def test_the_advice_names_no_example_where_one_is_shown(has_demos: bool) -> None:
    idle = {"trained_tokens": 0.0, "invalid_share": 1.0, "success": 0.0}
    told = []
    for has_example in (True, False):
        activity = Activity(LOSS, patience=2, has_demos=has_demos, has_example=has_example)
        activity.watch(1, idle)
        told.append("context.example_turns" in activity.trained.conclusion())
    assert told == [False, True]


def test_the_advice_names_the_compact_syntax_only_where_it_is_not_used() -> None:
    idle = {"trained_tokens": 0.0, "invalid_share": 1.0, "success": 0.0}
    for is_compact in (True, False):
        activity = Activity(LOSS, patience=2, has_demos=True, is_compact=is_compact)
        activity.watch(1, idle)
        assert ("model.codec=compact" in activity.trained.conclusion()) is not is_compact


def test_without_any_success_the_reason_is_said_in_place_of_idle_parts() -> None:
    activity = Activity(LOSS, patience=2, has_demos=True)
    idle = {**dict.fromkeys(BUSY, 0.0), "trained_tokens": 10.0, "grad_norm": 1.0, "success": 0.0}
    lines = [line for step in range(1, 5) for line in activity.watch(step, idle)]
    (line,) = lines
    assert line.startswith("note: no episode has succeeded in 2 steps so far, so there is no success to reinforce")
    for what in ("sft.num_epochs", "sft.num_demos", "oracle()", "env.kwargs"):
        assert what in line
    assert activity.trained.closing(0.0, 0.0).startswith("no episode has succeeded in 4 steps nor in an evaluation")
    assert activity.trained.closing(0.0, 0.1) == ""
    told = activity.watch(5, idle | {"success": 0.25})
    assert any("the clip of loss.kind=ppo_clip changed nothing" in line for line in told)
    assert activity.trained.closing(0.0, 0.0) == ""


def test_the_highest_success_survives_a_checkpoint() -> None:
    one, other = TrainedSteps(), TrainedSteps()
    one.add(BUSY | {"success": 0.5})
    one.add(BUSY | {"success": 0.0})
    one.add(BUSY | {"success": math.nan})
    other.load_state_dict(one.state_dict())
    assert not one.has_no_success and not other.has_no_success
    assert not TrainedSteps().has_no_success, "nothing was played yet"


def test_demonstrations_in_groups_are_successes_to_reinforce() -> None:
    steps = TrainedSteps()
    steps.add(BUSY | {"success": 0.0, "num_demonstrations": 2.0})
    assert not steps.has_no_success and steps.closing(0.0, 0.0) == ""


def test_losses_without_a_clip_are_not_told_that_it_is_idle() -> None:
    loss = LossConfig(kind="sapo", corrections=())
    assert Activity(loss, patience=1).watch(1, BUSY | {"clip_fraction": 0.0}) == []


def test_a_zero_gradient_is_said_once_and_counted_each_time() -> None:
    activity = Activity(LOSS)
    said = [activity.watch(step, BUSY | {"grad_norm": 0.0}) for step in (1, 2)]
    assert [len(lines) for lines in said] == [1, 0] and "gradient of step 1 is 0 although 10 tokens" in said[0][0]
    assert activity.metrics()["zero_gradient"] == 1.0
    activity.watch(3, BUSY)
    assert activity.metrics()["zero_gradient"] == 0.0


def test_counts_survive_a_checkpoint() -> None:
    whole, first = Activity(LOSS, patience=4), Activity(LOSS, patience=4)
    steps = [BUSY | {"kl": 0.0, "grad_norm": float(step != 2)} for step in range(1, 7)]
    expected = [whole.watch(number, step) for number, step in enumerate(steps, 1)]
    got = [first.watch(number, step) for number, step in enumerate(steps[:3], 1)]
    then = Activity(LOSS, patience=4)
    then.load_state_dict(first.state_dict())
    got += [then.watch(number, step) for number, step in enumerate(steps[3:], 4)]
    assert got == expected and sum(map(len, got)) == 2
    assert then.metrics() == whole.metrics()


def test_corrections_count_the_tokens_they_change() -> None:
    batch = tokens([1.0] * 4, rollout=[-1.0, -1.0, -1.0, -1.0])
    old = torch.tensor([-1.0, -1.00001, -0.5, -3.0], dtype=torch.float64)
    loss = LossConfig(corrections=(of.IcepopOptions(), of.M2poOptions(), of.BatchNormaliseOptions()))
    kept = PerToken(torch.tensor([True, True, True, False]))
    prepared: dict[tuple[str, str], dict[str, Any]] = {
        ("correction", "m2po"): {"is_in_m2po": kept},
        ("correction", "batch_normalise"): {"mean_weight": 1.0},
    }
    found = changed_by_corrections(old, batch, loss, UpdateStatistics(prepared=prepared))
    assert found == {"changed/icepop": 2.0, "changed/m2po": 1.0, "changed/batch_normalise": 0.0}
    prepared["correction", "batch_normalise"] = {"mean_weight": 2.0}
    found = changed_by_corrections(old, batch, loss, UpdateStatistics(prepared=prepared))
    assert found["changed/batch_normalise"] == 4.0


def test_an_update_reports_what_its_corrections_change(small_model: Any) -> None:
    groups = on_policy(small_model)
    optimizer = torch.optim.SGD(small_model.parameters(), lr=0.1)
    metrics = update_policy(small_model, optimizer, groups, LossConfig(), temperature=1.0, max_grad_norm=1.0).metrics
    assert metrics["changed/token_tis"] == 0
    off_policy = update_policy(small_model, optimizer, verdicts(), LossConfig(), temperature=1.0, max_grad_norm=1.0)
    assert off_policy.metrics["changed/token_tis"] > 0.5


def test_a_step_without_advantages_has_a_zero_gradient(small_model: Any) -> None:
    silent = verdicts(scale=0.0)
    silent = [replace(verdict, dropped=None) for verdict in silent]
    optimizer = torch.optim.SGD(small_model.parameters(), lr=0.1)
    metrics = update_policy(small_model, optimizer, silent, LossConfig(), temperature=1.0, max_grad_norm=1.0).metrics
    assert metrics["trained_tokens"] > 0 and metrics["grad_norm"] == 0
    assert len(Activity(LossConfig()).watch(1, metrics)) == 1


def test_a_run_says_that_its_gradient_is_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model from scratch never succeeds, so all returns are equal; nothing leaves its groups out here."""
    train(config(num_steps=2, sft=SftConfig(), zero_variance_filter="off", checkpoint_every=1), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert [row["zero_gradient"] for row in rows] == [1.0, 1.0]
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("the gradient of step 1 is 0 although") == 1 and "the gradient of step 2" not in said


# -------------------------------------------------------------------------------------- the beginning beside the end


def course(*steps: dict[str, float]) -> TrainedSteps:
    trained = TrainedSteps()
    for step in steps:
        trained.add({"trained_tokens": 0.0, "grad_norm": 0.0, "invalid_share": 0.0, "lr": 0.05, **step})
    return trained


def test_a_collapse_is_told_from_a_policy_that_never_worked() -> None:
    """A rate that is too high: valid turns are gone after one update, and no demonstration would help."""
    broken = {"success": 0.0, "invalid_share": 1.0}
    fallen = course({"success": 0.5, "invalid_share": 0.24}, *[broken] * 4)
    line = fallen.closing(0.5, 0.0)
    assert "collapsed during RL: success fell from 50% to 0% and valid turns fell from 76% to 0%" in line
    assert "Lower optimizer.lr, which was 0.05" in line and "demonstrations" not in line
    never = course(*[broken] * 5).closing(0.0, 0.0)
    assert "collapsed" not in never and "100% of turns are invalid; give demonstrations" in never
    assert not course({"success": 0.5}, *[{"success": 0.45}] * 4).collapse(0.5, 0.45)
    restored = TrainedSteps()
    restored.load_state_dict(json.loads(json.dumps(fallen.state_dict())))
    assert restored.closing(0.5, 0.0) == line


def test_a_collapse_under_phantom_rewards_names_the_gate() -> None:
    paid = [{"success": 0.0, "trained_tokens": 9.0, "credit/phantom_share": 0.7}] * 4
    first = {"success": 0.53, "trained_tokens": 9.0, "credit/phantom_share": 0.28}
    line = course(first, *paid).closing(None, 0.0)
    assert "success fell from 53% to 0%" in line and "credit/phantom_share went from 0.28 to 0.70" in line
    assert 'credit.shapers=[{"kind": "g_ra"}]' in line
    activity, said = Activity(LossConfig(corrections=())), []
    for number, step in enumerate([first, *paid], 1):
        said += activity.watch(number, {"grad_norm": 1.0, "clip_fraction": 0.0, "lr": 0.01, **step})
    assert sum("collapsed during RL" in one for one in said) == 1, "said once, when it happens"


@pytest.mark.parametrize(
    ("step", "limit"),
    [
        (
            {"status/truncated_tokens": 64.0},
            "100% of episodes end at the limit of the context: raise model.max_context_",
        ),
        ({"status/truncated_turns": 64.0}, "100% of episodes end at the limit of turns: raise env.kwargs.max_turns"),
        ({"cut_share": 1.0, "invalid_share": 1.0, "status/completed": 64.0}, "raise sampling.max_new_tokens"),
        ({"status/truncated_turns": 64.0, "invalid_share": 1.0}, "100% of turns are invalid; give demonstrations"),
    ],
)
def test_a_limit_that_ends_all_episodes_is_named(step: dict[str, float], limit: str) -> None:
    assert limit in course(*[{"success": 0.0, **step}] * 4).closing(0.0, 0.0)
    if not step.get("invalid_share"):
        assert limit in course(*[{"success": 0.0, "trained_tokens": 8.0, **step}] * 4).closing(0.0, 0.0)
