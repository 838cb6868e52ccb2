"""Gymnasium's own environments, played bare and through the adapter: the same episodes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.gymnasium import GymnasiumEnv
from agentgym.errors import ResetNeededError, UnknownNameError, UsageError
from agentgym.types import Message, ToolCall

TOY_TEXT = (
    "FrozenLake-v1",
    "FrozenLake8x8-v1",
    "Taxi-v4",
    "CliffWalking-v1",
    "CliffWalkingSlippery-v1",
    "Blackjack-v1",
)
WITH_LIMIT = ("FrozenLake-v1", "Taxi-v4", "CartPole-v1", "MountainCar-v0")
WITHOUT_CHANCE = {"FrozenLake-v1": {"is_slippery": False}, "Taxi-v4": {}, "CliffWalking-v1": {}}


class Echo(gymnasium.Env[str, str]):
    """Takes text, says it back, stops by itself after three steps."""

    action_space = gymnasium.spaces.Text(max_length=5, charset="abc")
    observation_space = gymnasium.spaces.Text(max_length=5, charset="abc")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.num_steps = 0
        return "abc", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        return action, float(len(action)), action == "cab", self.num_steps == 3, {}


gymnasium.register("EchoOfText-v0", Echo)  # type: ignore[arg-type]  # its stub wants any keywords


@pytest.mark.parametrize("name", [*TOY_TEXT, "CartPole-v1", "MountainCar-v0"])
def test_an_episode_is_the_bare_environments_own(name: str) -> None:
    bare: gymnasium.Env[Any, Any] = gymnasium.make(name)
    env = GymnasiumEnv(env=name, max_turns=gymnasium.spec(name).max_episode_steps or 1000)
    rng = np.random.default_rng(7)
    for seed in range(12):
        observation, _ = bare.reset(seed=seed)
        env.reset(seed=seed)
        assert np.array_equal(env._observation, observation)
        is_over = False
        while not is_over and env.turn < 250:
            action = int(rng.integers(bare.action_space.n))  # type: ignore[attr-defined]
            observation, *expected = bare.step(action)[:4]
            _, *given, info = env.step(env.message_of(env.action_names()[action]))
            assert given == expected and info["is_valid"]
            assert np.array_equal(env._observation, observation)
            is_over = bool(given[1] or given[2]) or env.turn == env.max_turns


@pytest.mark.parametrize("name", WITH_LIMIT)
def test_the_time_limit_is_gymnasiums(name: str) -> None:
    assert GymnasiumEnv(env=name).max_turns == gymnasium.spec(name).max_episode_steps
    assert GymnasiumEnv(env=name, max_turns=7).max_turns == 7


@pytest.mark.parametrize("name", sorted(WITHOUT_CHANCE))
def test_the_oracle_wins_where_there_is_no_chance(name: str) -> None:
    env = GymnasiumEnv(env=name, env_kwargs=WITHOUT_CHANCE[name])
    returns = []
    for seed in range(20):
        env.reset(seed=seed)
        rewards, terminated = [], False
        while not terminated:
            _, reward, terminated, truncated, info = env.step(env.oracle())
            rewards.append(reward)
            assert not truncated
        assert info["success"]
        returns.append(sum(rewards))
    if name == "CliffWalking-v1":  # along the edge: up, 11 to the right, down
        assert set(returns) == {-13.0}
    if name == "Taxi-v4":
        assert min(returns) >= 3 and max(returns) <= 15


def test_where_chance_decides_there_is_no_oracle() -> None:
    for name in ("FrozenLake-v1", "CliffWalkingSlippery-v1", "Blackjack-v1", "CartPole-v1"):
        env = GymnasiumEnv(env=name)
        env.reset(seed=0)
        with pytest.raises(UsageError, match="no oracle"):
            env.oracle()


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"interface": "text"},
        {"env": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}},
        {"env": "CliffWalking-v1"},
        {"env": "Blackjack-v1"},
    ],
)
def test_the_contract_is_kept(kwargs: dict[str, Any]) -> None:
    report = check_env(lambda: GymnasiumEnv(**kwargs), num_episodes=2)
    assert report.passed, report.failures


def test_texts_tell_the_state() -> None:
    env = GymnasiumEnv(env="FrozenLake-v1", env_kwargs={"is_slippery": False})
    observation, _ = env.reset(seed=0)
    assert observation[0].text.endswith("Actions: left, down, right, up.\n\n[S]FFF\nFHFH\nFFFH\nHFFG")
    assert env.step("right")[0][0].text == "S[F]FF\nFHFH\nFFFH\nHFFG"
    taxi = GymnasiumEnv()
    said = taxi.reset(seed=3)[0][0].text
    row, column, passenger, destination = taxi.wrapped.unwrapped.decode(taxi._observation)  # type: ignore[attr-defined]
    assert f"The taxi is at row {row}, column {column}. The passenger is at {'RGYB'[passenger]} (row" in said
    assert f"The destination is {'RGYB'[destination]} (row" in said
    blackjack = GymnasiumEnv(env="Blackjack-v1")
    assert blackjack.reset(seed=3)[0][0].text.endswith("Your sum is 7. The dealer shows 10.")
    cart = GymnasiumEnv(env="CartPole-v1")
    assert cart.reset(seed=3)[0][0].text.endswith("[-0.04144, -0.02632, 0.03013, 0.008216]")


def test_an_unknown_action_is_refused_and_changes_nothing() -> None:
    env = GymnasiumEnv(env="FrozenLake-v1", env_kwargs={"is_slippery": False})
    env.reset(seed=0)
    before = env.state_key()
    for text, error_type in (
        ("act: jump", "unknown_action"),
        ("act", "invalid_arguments"),
        ("fly: up", "unknown_tool"),
    ):
        message = Message("assistant", text, (ToolCall("fly", {}),)) if error_type == "unknown_tool" else text
        observation, reward, _, _, info = env.step(message)
        assert observation[0].result is not None and observation[0].result.error_type == error_type
        assert reward == 0 and not info["is_valid"] and env.state_key() == before
    said = env.step("act: RIGHT\nact: right")[0]
    assert [message.text for message in said] == ["S[F]FF\nFHFH\nFFFH\nHFFG", "SF[F]F\nFHFH\nFFFH\nHFFG"]


def test_the_choices_are_in_the_schema() -> None:
    (spec,) = GymnasiumEnv(env="Blackjack-v1").tools
    assert spec.parameters["properties"]["action"]["enum"] == ["stick", "hit"]
    assert GymnasiumEnv(interface="text").tools == ()


def test_success_is_what_the_game_or_the_caller_says() -> None:
    def success(**kwargs: Any) -> bool:
        env = GymnasiumEnv(env="CartPole-v1", **kwargs)
        env.reset(seed=0)
        truncated = terminated = False
        while not (truncated or terminated):
            _, _, terminated, truncated, info = env.step("left")
        return bool(info["success"])

    assert not success()  # Gymnasium's threshold is 475 steps
    assert success(success_return=5)
    walk = GymnasiumEnv(env="CliffWalking-v1", max_turns=1)
    walk.reset(seed=0)
    _, _, terminated, truncated, info = walk.step("up")
    assert (terminated, truncated, info["success"]) == (False, True, False)


def test_text_actions_and_an_end_within_the_world() -> None:
    env = GymnasiumEnv(env="EchoOfText-v0", interface="text", rules="Echo.")
    assert env.reset(seed=0)[0][0].text == "Echo.\n\nabc"
    assert not env.step("xyz")[4]["is_valid"]
    for text in ("a", "bb"):
        observation, reward, terminated, truncated, _ = env.step(text)
        assert (observation[0].text, reward, terminated, truncated) == (text, float(len(text)), False, False)
    _, reward, terminated, truncated, info = env.step("ccc")
    assert (reward, terminated, truncated, info["success"]) == (3.0, False, True, False)
    with pytest.raises(ResetNeededError):
        env.step("a")
    env.reset(seed=0)
    _, _, terminated, truncated, info = env.step("cab")
    assert (terminated, truncated, info["success"]) == (True, False, True)


def test_own_names_rules_and_descriptions() -> None:
    env = GymnasiumEnv(
        env="MountainCar-v0",
        action_names=("back", "rest", "forth"),
        rules="Reach the flag.",
        describe=lambda observation, world: f"at {observation[0]:.1f}",
    )
    said = env.reset(seed=0)[0][0].text
    assert said.startswith("Reach the flag.\n\nActions: back, rest, forth.\n\nat -0.")
    assert env.step("forth")[4]["is_valid"]
    assert GymnasiumEnv(env="MountainCar-v0").action_names() == ("0", "1", "2")


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'Taxi-v4'"):
        GymnasiumEnv(env="Taxi-v9")
    with pytest.raises(UsageError, match="discrete or text"):
        GymnasiumEnv(env="Pendulum-v1")
    with pytest.raises(UsageError, match="6 different action_names"):
        GymnasiumEnv(action_names=("left", "right"))
    with pytest.raises(UsageError, match="did you mean 'value'"):
        GymnasiumEnv(describe="values")
    with pytest.raises(UsageError, match="interface"):
        GymnasiumEnv(interface="speech")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="map"):
        GymnasiumEnv(env="FrozenLake-v1", env_kwargs={"map": 4})
    with pytest.raises(ResetNeededError):
        GymnasiumEnv().state_key()
