"""Numbers that change over the steps of RL: their values, what reads them, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.counting_runs import config, trained_ordinals, weights

from agentgym.errors import UsageError
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides, from_dict, load_config, to_dict
from agentgym.trainers.config.schedules import Form, Schedule, schedule_metrics, scheduled
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.train import train

KL = 'loss.regularisers=[{"kind": "kl"}]'
COOLING = {"key": "sampling.temperature", "from": 1.2, "to": 0.6, "steps": 3}
GROWING = {"key": "group.group_size", "from": 2, "to": 5, "steps": 4}
MIX = ("sft.num_demos=8", "sft.mix.weight=0.1")
FADING = {"key": "loss.regularisers.kl.coef", "from": 0.1, "to": 0.0, "steps": 2}


def made_with(*schedules: dict[str, Any], overrides: tuple[str, ...] = (), **changes: Any) -> TrainConfig:
    return apply_overrides(config(**changes), [*overrides, f"schedules={json.dumps(schedules)}"])


def rows_of(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]


def sizes_of(run_dir: Path) -> list[set[int]]:
    """The sizes of each step's groups."""
    return [
        {len(record.group.trajectories) for record in read_records(record_path(run_dir, step))}
        for step in recorded_steps(run_dir)
    ]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("linear", [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ("cosine", [1.0, 0.882843, 0.6, 0.317157, 0.2, 0.2]),  # 0.2 + 0.8 (1 + cos(pi s / 4)) / 2
        ("step", [1.0, 1.0, 1.0, 1.0, 0.2, 0.2]),
    ],
)
def test_values_of_a_schedule(form: Form, expected: list[float]) -> None:
    schedule = Schedule(key="x", start=1.0, end=0.2, steps=4, form=form)
    assert [schedule.at(step) for step in range(6)] == pytest.approx(expected, abs=1e-6)


def test_a_configuration_at_a_step() -> None:
    made = made_with(COOLING, GROWING, FADING, overrides=(KL,))
    assert from_dict(to_dict(made)) == made
    found = [scheduled(made, step) for step in (0, 1, 2, 4, 50)]
    assert [one.sampling.temperature for one in found] == pytest.approx([1.2, 1.0, 0.8, 0.6, 0.6])
    assert [one.group.group_size for one in found] == [2, 3, 4, 5, 5], "2.75 and 3.5 are rounded"
    assert [one.loss.regulariser("kl").coef for one in found] == pytest.approx([0.1, 0.05, 0.0, 0.0, 0.0])
    assert made.sampling.temperature == 1.0, "the configuration itself stays as it is"
    assert schedule_metrics(made, 1) == {
        "schedule/sampling.temperature": pytest.approx(1.0),
        "schedule/group.group_size": 3.0,
        "schedule/loss.regularisers.kl.coef": pytest.approx(0.05),
    }
    plain = config()
    assert scheduled(plain, 7) is plain and schedule_metrics(plain, 7) == {}


def test_numbers_of_components_and_of_strategies_can_be_scheduled() -> None:
    overrides = (
        'strategy.budget={"kind": "knapsack"}', "credit.estimator=grpo", 'credit.shapers=[{"kind": "otc"}]',
        'loss.token_masks=[{"kind": "forking_tokens"}]', "loss.num_epochs=2",
    )  # fmt: skip
    made = made_with(
        {"key": "strategy.budget.low", "from": 2, "to": 4, "steps": 2},
        {"key": "loss.token_masks.forking_tokens.share", "from": 0.2, "to": 1.0, "steps": 2},
        {"key": "loss.corrections.token_tis.cap", "from": 2, "to": 4, "steps": 2},
        {"key": "loss.clip_high", "from": 0.2, "to": 0.3, "steps": 2},
        {"key": "loss.num_epochs", "from": 1, "to": 2, "steps": 2, "form": "step"},
        overrides=overrides,
    )
    last = scheduled(made, 2)
    assert (last.strategy.budget.low, last.loss.correction("token_tis").cap, last.loss.num_epochs) == (4, 4.0, 2)
    assert (last.loss.token_masks[0].share, last.loss.clip_high) == (1.0, 0.3)


def test_schedules_hold_in_every_environment_of_a_mixture() -> None:
    envs = [{"id": config().env.id, "name": name, "group": {"group_size": size}} for name, size in (("a", 4), ("b", 6))]
    made = made_with(COOLING, GROWING, overrides=(f"envs={json.dumps(envs)}",))
    for own in made.by_env.values():
        assert [scheduled(own, step).group.group_size for step in (0, 9)] == [2, 5]
        assert scheduled(own, 3).sampling.temperature == pytest.approx(0.6)


TEMPERATURE = {"key": "sampling.temperature", "from": 1.0, "to": 0.5, "steps": 4}


@pytest.mark.parametrize(
    ("schedule", "overrides", "message"),
    [
        ({**TEMPERATURE, "key": "env.num_train_tasks"}, (), "env.num_train_tasks is not read at every step. Schedules"),
        ({**TEMPERATURE, "key": "groups_per_step"}, (), "change sampling.temperature, .*below loss, credit, strategy"),
        ({**TEMPERATURE, "key": "optimizer.lr"}, (), "optimizer.schedule changes the learning rate"),
        ({**TEMPERATURE, "key": "sampling.top_p"}, (), "sampling.top_p is not read at every step"),
        ({**TEMPERATURE, "key": "loss.regularisers.kl.coeff"}, (KL,), "did you mean 'loss.regularisers.kl.coef'"),
        ({**TEMPERATURE, "key": "loss.regularisers.kl.coef"}, (), "nothing below loss.regularisers; name a component"),
        ({**TEMPERATURE, "key": "loss.kind"}, (), "loss.kind is no number"),
        ({**TEMPERATURE, "key": "loss"}, (), "loss is no number"),
        ({**TEMPERATURE, "to": 0.0}, (), "sampling.temperature=0 at step 5: training needs a temperature above 0"),
        ({**GROWING, "to": 1}, (), "group.group_size=1 at step 5: min_valid"),
        ({**TEMPERATURE, "key": "credit.gamma", "to": 2.0}, (), "credit.gamma=2 at step 5: gamma must be between 0"),
        ({**TEMPERATURE, "to": 1.0}, (), "from 1 to 1, so nothing changes: set sampling.temperature instead"),
        ({**TEMPERATURE, "to": "cold"}, (), "'to' of sampling.temperature must be a number, got 'cold'"),
        ({**TEMPERATURE, "steps": 0}, (), "steps of sampling.temperature must be a whole number of at least 1, got 0"),
        ({**TEMPERATURE, "form": "sine"}, (), "must be one of linear, cosine, step, got 'sine'"),
        ({**TEMPERATURE, "unit": "step"}, (), "unknown key 'schedules.unit'"),
        ({"key": "sampling.temperature", "from": 1.0}, (), "has no 'to'; expected"),
        ({**TEMPERATURE, "key": 3}, (), "schedules.key must be the path of a value, got 3"),
        (TEMPERATURE, ("pipeline.mode=async", "loss.corrections=[]"), "name one of loss.corrections"),
        ({**TEMPERATURE, "key": "loss.num_epochs", "from": 2, "to": 1}, MIX, "sft.mix counts on"),
    ],
)  # fmt: skip
def test_wrong_schedules_say_what_is_wrong(schedule: dict[str, Any], overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made_with(schedule, overrides=overrides)


def test_one_value_has_one_schedule() -> None:
    with pytest.raises(UsageError, match="temperature is scheduled twice"):
        made_with(TEMPERATURE, COOLING)


def test_a_run_samples_and_trains_with_the_values_of_each_step(tmp_path: Path) -> None:
    made = made_with(COOLING, GROWING, FADING, overrides=(KL,))
    train(made, tmp_path / "run")
    rows = rows_of(tmp_path / "run")
    assert [row["schedule/sampling.temperature"] for row in rows] == pytest.approx([1.2, 1.0, 0.8, 0.6, 0.6, 0.6])
    assert [row["schedule/loss.regularisers.kl.coef"] for row in rows] == pytest.approx([0.1, 0.05, 0, 0, 0, 0])
    assert sizes_of(tmp_path / "run") == [{2}, {3}, {4}, {4}, {5}, {5}]
    # the trainer scores tokens at the temperature that they were sampled with, step by step
    gaps = [row["logprob_gap_max"] for row in rows if row["trained_tokens"]]
    assert gaps and max(gaps) < 1e-3


def test_a_run_plans_and_corrects_across_temperatures_in_async_mode(tmp_path: Path) -> None:
    train(made_with(COOLING, GROWING, overrides=("pipeline.mode=async",)), tmp_path / "run")
    assert sorted(trained_ordinals(tmp_path / "run")) == list(range(18))
    sizes = {
        record.group.ordinal // 3: len(record.group.trajectories)
        for step in recorded_steps(tmp_path / "run")
        for record in read_records(record_path(tmp_path / "run", step))
    }
    assert sizes == {0: 2, 1: 3, 2: 4, 3: 4, 4: 5, 5: 5}, "a group has the size of the step that it was planned for"


def test_a_resumed_run_ends_in_the_same_weights(tmp_path: Path) -> None:
    made = made_with(COOLING, GROWING, FADING, overrides=(KL,), checkpoint_every=3)
    train(made, tmp_path / "run")
    expected, held = weights(tmp_path / "run"), read_checkpoint(tmp_path / "run", 6)
    drop_checkpoint(tmp_path / "run", 6)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    assert load_config(tmp_path / "run" / "config.json") == made
    train(made, tmp_path / "run", resume=True)
    assert weights(tmp_path / "run") == expected
    again = read_checkpoint(tmp_path / "run", 6)
    assert again["plan"] == held["plan"]
    assert all(torch.equal(value, again["model"][name]) for name, value in held["model"].items())
