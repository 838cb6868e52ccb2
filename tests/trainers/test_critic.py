"""Critics: where values are read, what they learn, and that a run with one resumes exactly."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from testkit import counting_runs
from testkit.checkpoints import drop_checkpoint, read_checkpoint
from testkit.killed_runs import resume, start
from testkit.made_groups import group, trajectory, turn, two_groups

from agentgym.credit.columns import FROM_GROUPS, OF_MODEL
from agentgym.credit.component import ESTIMATORS, FAMILIES
from agentgym.credit.compose import CreditConfig, CreditResult, credit_groups
from agentgym.credit.estimators.gae import ArcherOptions, TokenGaeOptions, TurnGaeOptions
from agentgym.errors import ConfigError, RunStoppedError
from agentgym.rollout.record import read_json_lines
from agentgym.trainers.config.overrides import apply_overrides, save_config
from agentgym.trainers.config.train import CriticConfig, EvalConfig, TrainConfig
from agentgym.trainers.critics.archer import TwinCritic
from agentgym.trainers.critics.critic import Critic, ValueCritic, before_tokens, before_turns, value_loss
from agentgym.trainers.models.config import LoraSettings
from agentgym.trainers.models.model import add_lora
from agentgym.trainers.train import train
from agentgym.types import TrajectoryGroup

TOKENS = CreditConfig(estimator="token_gae", options=TokenGaeOptions(lam=1.0, whitened=False))
TURNS = CreditConfig(estimator="turn_gae", options=TurnGaeOptions(gamma=1.0, lam=1.0, whitened=False))


def credited(critic: Critic, groups: Sequence[TrajectoryGroup], credit: CreditConfig) -> CreditResult:
    return credit_groups(groups, credit, columns=critic.columns(groups))


# -------------------------------------------------------------------------------------------------------- positions


def test_values_are_read_before_what_they_are_values_of() -> None:
    (segment,) = two_groups()[0].trajectories[0].segments
    assert segment.loss_mask == (0, 0, 0, 1, 1, 0, 1, 1, 1)
    assert tuple(before_tokens(segment)) == (2, 3, 5, 6, 7)
    assert tuple(before_turns(segment)) == (2, 5)


@pytest.mark.parametrize("trunk", ["copy", "shared"])
def test_values_are_the_heads_on_the_policys_states(small_model: Any, trunk: Any) -> None:
    settings = CriticConfig(trunk=trunk, tokens_per_microbatch=10)
    critics = [ValueCritic(small_model, settings, is_per_token=flag, seed=0) for flag in (True, False)]
    for critic in critics:
        assert not any(critic.columns(two_groups()).popitem()[1]), "the head begins at 0"
        torch.manual_seed(0)
        torch.nn.init.normal_(critic._network.head[-1].weight)  # type: ignore[arg-type]
    of_token, of_turn = (critic.columns(two_groups()) for critic in critics)
    firsts = np.cumsum([0, 2, 3, 1, 4, 2])
    np.testing.assert_allclose(of_turn["value"], of_token["token_value"][firsts], atol=1e-5)
    segment = two_groups()[1].trajectories[1].segments[0]
    states = small_model.model(input_ids=torch.tensor([segment.token_ids])).last_hidden_state[0, 4]
    assert of_turn["value"][-1] == pytest.approx(critics[0]._network.head(states).item(), abs=1e-4)


def test_what_a_shared_trunk_learns_leaves_the_policy_alone(small_model: Any) -> None:
    before = [parameter.clone() for parameter in small_model.parameters()]
    for trunk in ("copy", "shared"):
        critic = ValueCritic(small_model, CriticConfig(trunk=trunk), is_per_token=False, seed=0)
        critic.learn(two_groups(), credited(critic, two_groups(), TURNS))
        assert np.abs(critic.columns(two_groups())["value"]).max() > 1e-4
    assert all(torch.equal(a, b) for a, b in zip(before, small_model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in small_model.parameters())


# ---------------------------------------------------------------------------------------------------------- learning


def test_the_loss_is_clipped_pessimistically() -> None:
    value, old, target = torch.tensor([0.9, 0.9, -0.9]), torch.zeros(3), torch.tensor([1.0, 0.0, 1.0])
    clipped = value_loss(value, old, target, 0.5)
    torch.testing.assert_close(clipped, 0.5 * torch.tensor([0.25, 0.81, 3.61]))
    torch.testing.assert_close(value_loss(value, old, target, 0.0), 0.5 * (value - target) ** 2)


def constant_world(reward: float = 1.0) -> TrajectoryGroup:
    return group(
        *(trajectory([turn([1, 2, n], [4, 5]), turn([6], [7, 8, n], reward=reward)]) for n in range(9, 13))
    )  # fmt: skip


@pytest.mark.parametrize("credit", [TOKENS, TURNS], ids=["token", "turn"])
@pytest.mark.parametrize("trunk", ["copy", "shared"])
def test_a_critic_learns_the_return_of_a_constant_world(small_model: Any, trunk: Any, credit: CreditConfig) -> None:
    critic = ValueCritic(small_model, CriticConfig(trunk=trunk, lr=3e-3), is_per_token=credit is TOKENS, seed=0)
    numbers = [critic.learn([constant_world()], credited(critic, [constant_world()], credit)) for _ in range(15)]
    values = next(iter(critic.columns([constant_world()]).values()))
    np.testing.assert_allclose(values, 1.0, atol=0.2)
    assert values.mean() == pytest.approx(1.0, abs=0.05)
    assert numbers[0]["critic_loss"] == pytest.approx(0.5) and numbers[-1]["critic_loss"] < 0.02
    assert all(math.isfinite(value) for row in numbers for value in row.values())


def test_a_critic_tells_states_apart(small_model: Any) -> None:
    groups = [constant_world(1.0), group(trajectory([turn([20, 21], [4])]), trajectory([turn([20, 22], [4])]))]
    critic = ValueCritic(small_model, CriticConfig(lr=3e-3), is_per_token=False, seed=0)
    rows = [critic.learn(groups, credited(critic, groups, TURNS)) for _ in range(20)]
    np.testing.assert_allclose(critic.columns(groups)["value"], [1.0] * 8 + [0.0] * 2, atol=0.2)
    assert rows[0]["explained_variance"] == pytest.approx(0) and rows[-1]["explained_variance"] > 0.9


def test_turns_that_do_not_train_teach_the_critic_nothing(small_model: Any) -> None:
    world = constant_world()
    critic = ValueCritic(small_model, CriticConfig(), is_per_token=False, seed=0)
    result = credited(critic, [world], TURNS)
    assert critic.learn([world], replace(result, loss_weight=np.zeros(8))) == {}
    assert not critic.columns([world])["value"].any()
    half = replace(result, loss_weight=np.array([1.0, 0.0] * 4), return_to_go=np.array([1.0, np.nan] * 4))
    half = replace(half, return_to_go=np.nan_to_num(half.return_to_go, nan=99.0))
    assert critic.learn([world], half)["critic_loss"] == pytest.approx(0.5)


def test_of_a_policy_with_adapters_the_critic_trains_a_copy_of_those(small_model: Any) -> None:
    policy = add_lora(small_model, LoraSettings(rank=2), seed=0)
    critic = ValueCritic(policy, CriticConfig(lr=3e-3), is_per_token=True, seed=0)
    before = {name: value.clone() for name, value in critic.state_dict()["network"].items()}
    for _ in range(2):
        critic.learn(two_groups(), credited(critic, two_groups(), TOKENS))
    changed = {name for name, value in critic.state_dict()["network"].items() if not torch.equal(value, before[name])}
    assert any("lora_A" in name for name in changed) and "head.0.weight" in changed
    assert all("lora_" in name or name.startswith("head") for name in changed)


def test_gradients_do_not_depend_on_micro_batches(small_model: Any) -> None:
    learnt = []
    for tokens in (8192, 1):
        settings = CriticConfig(tokens_per_microbatch=tokens, num_updates=2)
        critic = ValueCritic(small_model, settings, is_per_token=True, seed=0)
        critic.learn(two_groups(), credited(critic, two_groups(), TOKENS))
        learnt.append(critic.columns(two_groups())["token_value"])
    np.testing.assert_allclose(learnt[0], learnt[1], atol=1e-4)


def test_a_critic_that_diverges_stops_the_run(small_model: Any) -> None:
    critic = ValueCritic(small_model, CriticConfig(), is_per_token=False, seed=0)
    result = credited(critic, two_groups(), TURNS)
    broken = replace(result, return_to_go=np.full(len(result.return_to_go), np.inf))
    with pytest.raises(RunStoppedError, match=r"lower critic\.lr"):
        critic.learn(two_groups(), broken)


# ------------------------------------------------------------------------------------------------------------ archer

ARCHER = CreditConfig(estimator="archer", options=ArcherOptions(gamma=0.9))


@pytest.mark.parametrize("trunk", ["copy", "shared"])
def test_twin_critics_learn_discounted_values_by_steps_of_one_turn(small_model: Any, trunk: Any) -> None:
    settings = CriticConfig(trunk=trunk, lr=3e-3, num_updates=10, replay_batch=4)
    critic = TwinCritic(small_model, settings, gamma=0.9, seed=0)
    world = [constant_world()]
    for _ in range(25):
        numbers = critic.learn(world, credited(critic, world, ARCHER))
    columns = critic.columns(world)
    assert columns["q_value"].shape == (8, 2)
    expected = np.array([0.9, 1.0] * 4)
    np.testing.assert_allclose(columns["value"], expected, atol=0.15)
    np.testing.assert_allclose(columns["q_value"].min(axis=1), expected, atol=0.15)
    assert numbers["replay_episodes"] == 100 and all(map(math.isfinite, numbers.values()))


@pytest.mark.parametrize("num_updates", [1, 3])
def test_numbers_of_a_critic(small_model: Any, num_updates: int) -> None:
    """Values begin at 0; of ten targets eight are 1. Later numbers follow from the values of that time."""
    groups = [constant_world(1.0), group(trajectory([turn([20, 21], [4])]), trajectory([turn([20, 22], [4])]))]
    target = np.array([1.0] * 8 + [0.0] * 2)
    critic = ValueCritic(
        small_model, CriticConfig(lr=3e-3, num_updates=num_updates, max_grad_norm=1e9), is_per_token=False, seed=0
    )
    first = critic.learn(groups, credited(critic, groups, TURNS))
    last = first.pop("critic_loss_last")
    if num_updates == 1:
        left = [one.grad for one in critic._network.parameters() if one.grad is not None]
        norm = math.sqrt(sum(one.square().sum().item() for one in left))
        assert first.pop("critic_grad_norm") == pytest.approx(norm, rel=1e-5) and last == pytest.approx(0.4)
    else:
        assert first.pop("critic_grad_norm") > 0 and last < 0.4
    assert first == pytest.approx({"critic_loss": 0.5 * 8 / 10, "value_mean": 0.0, "explained_variance": 0.0}, abs=1e-6)
    value = critic.columns(groups)["value"]
    second = critic.learn(groups, credited(critic, groups, TURNS))
    assert second["critic_loss"] == pytest.approx(0.5 * np.square(value - target).mean(), rel=1e-4)
    assert second["value_mean"] == pytest.approx(value.mean(), rel=1e-5)
    assert second["explained_variance"] == pytest.approx(1 - (target - value).var() / target.var(), rel=1e-4)


def test_numbers_of_twin_critics(small_model: Any) -> None:
    """Two heads for Q and two for V begin at 0, with targets of 1 at four of eight turns for Q and of 0 for V."""
    critic = TwinCritic(small_model, CriticConfig(num_updates=1, replay_batch=4, max_grad_norm=1e9), gamma=0.9, seed=0)
    found = critic.learn([constant_world()], credited(critic, [constant_world()], ARCHER))
    left = [one.grad for one in critic._network.parameters() if one.grad is not None]
    norm = math.sqrt(sum(one.square().sum().item() for one in left))
    known = {"critic_loss": 0.5 * 2 * 4 / 8, "critic_v_loss": 0.0, "critic_grad_norm": norm, "replay_episodes": 4.0}
    assert found == pytest.approx(known, rel=1e-5)


def test_the_buffer_keeps_the_latest_episodes_and_the_target_lags(small_model: Any) -> None:
    settings = CriticConfig(num_updates=1, replay_episodes=3, replay_batch=2, polyak=0.25)
    critic = TwinCritic(small_model, settings, gamma=0.9, seed=0)
    critic.learn(two_groups(), credited(critic, two_groups(), ARCHER))
    windows = [episode["windows"] for episode in critic.state_dict()["episodes"]]
    assert windows == [tuple(s.token_ids for s in t.segments) for g in two_groups() for t in g.valid][-3:]
    rewards = [episode["rewards"] for episode in critic.state_dict()["episodes"]]
    assert rewards == [(0.0, 0.5), (0.0,), (0.0,)]
    bias, slow = (critic.state_dict()[name]["head.0.bias"] for name in ("network", "target"))
    torch.testing.assert_close(slow, 0.25 * bias)


def test_critics_go_on_from_their_state(small_model: Any) -> None:
    def made() -> tuple[Critic, Critic]:
        settings = CriticConfig(num_updates=2, replay_batch=2)
        return (
            ValueCritic(small_model, settings, is_per_token=True, seed=0),
            TwinCritic(small_model, settings, gamma=0.9, seed=0),
        )

    for one, other, credit in zip(made(), made(), (TOKENS, ARCHER), strict=True):
        one.learn(two_groups(), credited(one, two_groups(), credit))
        file = io.BytesIO()
        torch.save(one.state_dict(), file)
        file.seek(0)
        other.load_state_dict(torch.load(file, weights_only=True))
        for critic in (one, other):
            critic.learn(two_groups(), credited(critic, two_groups(), credit))
        a, b = one.columns(two_groups()), other.columns(two_groups())
        assert a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)


# --------------------------------------------------------------------------------------------------- the whole way


def config(*overrides: str, num_steps: int = 3) -> TrainConfig:
    """The smallest world, after demonstrations."""
    return apply_overrides(counting_runs.config(num_steps=num_steps, eval=EvalConfig(num_episodes=2)), overrides)


@pytest.mark.parametrize("trunk", ["copy", "shared"])
@pytest.mark.parametrize("estimator", ["token_gae", "poad", "turn_gae", "bi_level_gae", "archer"])
def test_estimators_with_a_critic_train_with_finite_numbers(estimator: str, trunk: str, tmp_path: Path) -> None:
    train(config(f"credit.estimator={estimator}", f"critic.trunk={trunk}"), tmp_path / "run")
    rows = [row for row in read_json_lines(tmp_path / "run" / "metrics.jsonl") if row["phase"] == "rl"]
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert all(row["critic_loss"] > 0 for row in rows) and rows[-1]["trained_tokens"] > 0
    assert all(("replay_episodes" if estimator == "archer" else "explained_variance") in row for row in rows)


def test_a_critic_works_without_groups(tmp_path: Path) -> None:
    train(config("credit.estimator=turn_gae", "group.min_valid=1", "group.group_size=1", num_steps=1), tmp_path / "run")
    assert (tmp_path / "run" / "model").exists()


@pytest.mark.parametrize("estimator", ["token_gae", "archer"])
def test_a_run_with_a_critic_resumes_bit_for_bit(estimator: str, tmp_path: Path) -> None:
    """As if killed after step 3: what the last two steps left is taken away, the rest is resumed."""
    settings = config(f"credit.estimator={estimator}", "critic.lr=1e-3", num_steps=4)
    train(settings, tmp_path / "run")
    whole = read_checkpoint(tmp_path / "run", 4)
    drop_checkpoint(tmp_path / "run", 4)
    (tmp_path / "run" / "model" / "model.safetensors").unlink()
    train(settings, tmp_path / "run", resume=True)
    again = read_checkpoint(tmp_path / "run", 4)
    for part in ("model", "optimizer", "columns"):
        assert_equal(whole[part], again[part])


@pytest.mark.slow
def test_kill_9_and_resume_with_a_critic_end_in_the_same_weights(tmp_path: Path, warm_python: str) -> None:
    settings = config("credit.estimator=bi_level_gae", "critic.lr=1e-3", num_steps=6)
    train(settings, tmp_path / "whole")
    killed = tmp_path / "killed"
    killed.mkdir()
    save_config(settings, killed / "config.json")
    process = start(warm_python, killed)
    deadline = time.monotonic() + 120
    while not (killed / "rollouts" / "step-000003.jsonl.gz").exists():
        assert process.is_running() and time.monotonic() < deadline, "the run ended before it could be killed"
        time.sleep(0.005)
    process.kill()
    assert not (killed / "model").exists()
    resume(killed)
    one, other = (counting_runs.weights(run) for run in (tmp_path / "whole", killed))
    assert one == other


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    else:
        assert one == other


def test_every_column_is_made_or_refused_with_a_reason() -> None:
    read = {
        name
        for family in FAMILIES.values()
        for component in family.values()
        for name in component.columns(None if component.options is None else component.options())
    }
    assert read <= {*FROM_GROUPS, *OF_MODEL}
    assert {name for name in ESTIMATORS if _is_refused(name)} == {"capo", "igpo"}, "without its judge and its shaper"


def _is_refused(estimator: str) -> bool:
    try:
        config(f"credit.estimator={estimator}")
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("critic.lr=0", "must be above 0"),
        ("critic.polyak=2", r"critic\.polyak must be above 0 and at most 1"),
        ("critic.num_updates=0", "must be at least 1"),
        ("critic.trunk=other", r"critic\.trunk: .*'copy' or 'shared'"),
    ],
)
def test_wrong_settings_are_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(override)
