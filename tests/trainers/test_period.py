"""Periodic mode: gradients of groups as they come are the gradient of the step, and every token is on-policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testkit.counting_runs import config, token_ages, trained_ordinals
from testkit.made_groups import trajectory, turn

from agentgym.credit.compose import credit_groups
from agentgym.credit.credited import CreditColumns
from agentgym.credit.state import CreditState
from agentgym.errors import ConfigError, RunStoppedError
from agentgym.rollout.pool import EnvPool
from agentgym.rollout.record import read_json_lines, read_records, record_path, recorded_steps
from agentgym.trainers.config.overrides import apply_overrides
from agentgym.trainers.config.train import TrainConfig
from agentgym.trainers.data.samples import FilteredGroup, filter_groups
from agentgym.trainers.phases.period import Period, _trains_alike
from agentgym.trainers.phases.update import PartialUpdate, update_policy
from agentgym.trainers.run.env import RunEnv
from agentgym.trainers.train import train
from agentgym.types import Task, TrajectoryGroup

PERIODIC = ["pipeline.mode=periodic"]
AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]


def groups(num_groups: int = 4) -> tuple[TrajectoryGroup, ...]:
    """Groups of different sizes and lengths; the last teaches nothing."""
    made = []
    for ordinal in range(num_groups):
        task = Task(id=f"t{ordinal}", split="train", seed=ordinal)
        last = ordinal == num_groups - 1
        members = [
            trajectory(
                [
                    turn([1, 2 + k], [3 + member, 4, 5][: 1 + (member + k) % 3], index=k,
                         reward=0.0 if last else float(k == ordinal and member % 2), state_key=f"{ordinal}/{k}")
                    for k in range(1 + ordinal)
                ],
                task=task,
            )
            for member in range(3 + ordinal)
        ]  # fmt: skip
        made.append(TrajectoryGroup(ordinal=ordinal, task=task, trajectories=tuple(members)))
    return tuple(made)


def judged(chosen: tuple[TrajectoryGroup, ...], settings: TrainConfig) -> list[FilteredGroup]:
    credit = credit_groups(chosen, settings.credit, state=CreditState())
    return filter_groups(chosen, credit, 2, settings.zero_variance_filter)


def as_they_come(model: Any, settings: TrainConfig, parts: list[tuple[TrajectoryGroup, ...]]) -> dict[str, float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    update = PartialUpdate(model, optimizer, settings.loss, temperature=1.0, max_grad_norm=1e9)
    env = RunEnv("", settings, lambda make_env: EnvPool(make_env, 1))
    period = Period([env], {env.key: CreditState()}, update)
    for part in parts:
        period.add(part)
    everyone = tuple(sorted((g for part in parts for g in part), key=lambda group: group.ordinal))
    return period.finish(judged(everyone, settings)).metrics


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("unit", ["trajectory", "turn"])
def test_the_gradient_is_that_of_the_whole_step(aggregation: str, unit: str, small_model: Any) -> None:
    keys = [*PERIODIC, f"loss.aggregation={aggregation}", f"loss.aggregation_unit={unit}"]
    settings = apply_overrides(config(), [*keys, 'loss.regularisers=[{"kind": "entropy", "coef": 0.1}]'])
    model = small_model.double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    everyone = groups()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    at_once = update_policy(
        model, optimizer, judged(everyone, settings), settings.loss, temperature=1.0, max_grad_norm=1e9
    ).metrics
    whole = {name: value.clone() for name, value in model.state_dict().items()}
    assert any(not torch.equal(whole[name], before[name]) for name in whole)

    model.load_state_dict(before)
    metrics = as_they_come(model, settings, [everyone[2:3], everyone[3:], everyone[:2]])
    for name, value in model.state_dict().items():  # log-probabilities of the loss are float32
        torch.testing.assert_close(value, whole[name], rtol=1e-5, atol=1e-8, msg=name)
    assert metrics == pytest.approx(at_once, rel=1e-5)


def test_a_step_that_teaches_nothing_leaves_the_weights(small_model: Any) -> None:
    before = {name: value.clone() for name, value in small_model.state_dict().items()}
    metrics = as_they_come(small_model, apply_overrides(config(), PERIODIC), [groups()[3:]])
    assert metrics["trained_tokens"] == 0
    assert all(torch.equal(value, before[name]) for name, value in small_model.state_dict().items())


@pytest.mark.parametrize(
    "estimator",
    ["grpo", "dr_grpo", "rloo", "loop", "opo", "mc_grpo", "gigpo", "hgpo", "flow_grpo", "supo", "mt_grpo"],
)
def test_estimators_that_compare_within_groups_are_taken(estimator: str, small_model: Any) -> None:
    settings = apply_overrides(config(), [*PERIODIC, f"credit.estimator={estimator}"])
    as_they_come(small_model, settings, [groups()[2:], groups()[:2]])


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["credit.estimator=reinforce_pp"], "reinforce_pp"),
        (["credit.estimator=spo"], "spo"),
        (["credit.estimator=token_gae"], r"columns made by the model \(token_value\)"),
        (["loss.num_updates=2"], "num_updates above 1"),
        (["loss.num_epochs=2"], "num_epochs above 1"),
        (['loss.corrections=[{"kind": "m2po"}]'], "m2po"),
        (["loss.kind=bapo"], "bapo"),
    ],
)
def test_what_needs_the_whole_step_is_refused(overrides: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"before all groups of a step are complete, .*{reason}"):
        apply_overrides(config(), [*PERIODIC, *overrides])


def test_credit_that_looks_beyond_its_group_stops_the_run(small_model: Any) -> None:
    """gdpo normalises over the batch by default: no name of a configuration says so, the numbers do."""
    settings = apply_overrides(config(), [*PERIODIC, "credit.estimator=gdpo"])
    with pytest.raises(RunStoppedError, match=r"depends on the other groups of its step.* use mode=sync"):
        as_they_come(small_model, settings, [groups()[2:], groups()[:2]])


def test_every_token_of_a_period_carries_its_version(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    train(apply_overrides(config(), PERIODIC), run_dir)
    assert trained_ordinals(run_dir) == list(range(config().num_steps * 3)), "each once, in its own step"
    assert token_ages(run_dir) == {0}
    for step in recorded_steps(run_dir):
        versions = {
            version
            for record in read_records(record_path(run_dir, step))
            for member in record.group.trajectories
            for t in member.turns
            for version in t.completion.policy_versions
        }
        assert versions == {step}
    rows = [row for row in read_json_lines(run_dir / "metrics.jsonl") if row["phase"] == "rl"]
    assert any(row["trained_tokens"] for row in rows)
    assert max(row["logprob_gap_max"] for row in rows if row["trained_tokens"]) < 1e-4


def test_credit_that_keeps_all_tokens_is_that_without_a_choice_of_tokens() -> None:
    def credit(keep: list[bool] | None) -> CreditColumns:
        value, number = np.ones(1), np.ones(1, np.int64)
        return CreditColumns(
            shaped_reward=value,
            return_to_go=value,
            advantage=value,
            anchor_group=number,
            anchor_size=number,
            gate_open=value > 0,
            loss_weight=value,
            num_tokens=2 * number,
            token_keep=None if keep is None else np.array(keep),
        )

    one, all_of, some = credit(None), credit([True, True]), credit([True, False])
    assert _trains_alike(one, all_of) and _trains_alike(all_of, one) and _trains_alike(one, one)
    assert not _trains_alike(one, some) and not _trains_alike(some, all_of)
