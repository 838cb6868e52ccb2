"""MiniGrid and BabyAI themselves, played bare and through the adapter; skipped where minigrid is not installed."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.minigrid import ACTIONS, MiniGridEnv
from agentgym.errors import ResetNeededError, UnknownNameError, UsageError

pytest.importorskip("minigrid", reason="needs the package minigrid (the extra minigrid)")

LEVELS = (
    "GoToRedBall", "GoToObj", "GoToLocal", "GoToObjMazeS4", "GoToDoor", "Open", "OpenDoorLoc", "OpenDoorsOrderN2",
    "Pickup", "UnblockPickup", "PutNextLocal", "PutNextS4N1", "Unlock", "UnlockPickup", "BlockedUnlockPickup",
    "FindObjS5", "KeyCorridorS3R1", "OneRoomS8", "MoveTwoAcrossS5N2", "SynthS5R2", "MiniBossLevel",
)  # fmt: skip


@pytest.mark.parametrize("level", ["BabyAI-GoToLocal-v0", "BabyAI-Unlock-v0", "MiniGrid-DoorKey-5x5-v0"])
def test_an_episode_is_the_bare_levels_own(level: str) -> None:
    env = MiniGridEnv(env=level)
    bare: gymnasium.Env[Any, Any] = gymnasium.make(level)
    rng = np.random.default_rng(7)
    for seed in range(3):
        observation, _ = bare.reset(seed=seed)
        said = env.reset(seed=seed)[0][0].text
        assert said.startswith(f"Your mission: {observation['mission']}.\n")
        is_over = False
        while not is_over:
            action = int(rng.integers(6))
            observation, reward, *ends = bare.step(action)[:4]
            _, given, *given_ends, _ = env.step(env.message_of(ACTIONS[action]))
            assert (given, given_ends) == (reward, ends)
            assert np.array_equal(env._observation["image"], observation["image"])
            is_over = any(ends)


@pytest.mark.parametrize("level", LEVELS)
def test_the_bot_solves(level: str) -> None:
    env = MiniGridEnv(env=f"BabyAI-{level}-v0")
    for seed in (0, 1):
        env.reset(seed=seed)
        is_over, rewards = False, 0.0
        while not is_over:
            _, reward, terminated, truncated, info = env.step(env.oracle())
            rewards, is_over = rewards + reward, terminated or truncated
        limit = env.wrapped.unwrapped.max_steps  # type: ignore[attr-defined]
        assert info["success"] and rewards == pytest.approx(1 - 0.9 * env.turn / limit)


def test_the_bot_takes_over_off_the_track() -> None:
    env = MiniGridEnv()
    env.reset(seed=3)
    for action in ("turn left", "go forward", "turn left", "pick up"):
        env.step(action)
    while not env.step(env.oracle())[2]:
        env.step("turn right") if env.turn == 6 else None
    assert env.is_success()


def test_texts_tell_what_is_seen() -> None:
    env = MiniGridEnv()
    said = env.reset(seed=3)[0][0].text
    assert said.startswith("Your mission: go to the red key.")
    assert "a grey ball 3 forward, a red key 3 forward and 2 right" in said
    assert said.endswith("You carry nothing.") and "Ahead of you is a box, 2 steps away." in said
    env.step("go forward")
    assert env.step("pick up")[0][0].text.endswith("You carry a green box.")
    assert "Sampling rejected" not in said


def test_a_key_is_of_the_state_alone() -> None:
    env = MiniGridEnv()
    env.reset(seed=3)
    start = env.state_key()
    for action in ("turn left", "turn right", "done"):
        env.step(action)
    assert env.state_key() == start
    keys = {start}
    for action in ("go forward", "pick up", "turn right", "turn right", "drop"):
        env.step(action)
        keys.add(env.state_key())
    assert len(keys) == 6


def test_a_key_tells_which_half_of_a_mission_is_done() -> None:
    env = MiniGridEnv(env="BabyAI-OpenDoorsOrderN2-v0")
    seed = next(seed for seed in range(20) if "then" in env.reset(seed=seed)[0][0].text.split("\n")[0])
    env.reset(seed=seed)
    before = env.state_key()
    opened = False
    while not opened:
        action = env.oracle()
        opened = action.calls[0].arguments["action"] == "toggle"  # type: ignore[union-attr]
        env.step(action)
    assert '["success"' in env.state_key() and '["success"' not in before


def test_the_limit_is_the_levels_unless_one_is_given() -> None:
    env = MiniGridEnv()
    env.reset(seed=0)
    assert env.max_turns == 64
    for _ in range(63):
        assert env.step("turn left")[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step("turn left")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    short = MiniGridEnv(max_turns=1)
    short.reset(seed=0)
    assert short.step("nonsense")[3]


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="GoToLocal"):
        MiniGridEnv(env="BabyAI-GoToLocally-v0")
    with pytest.raises(UsageError, match="no level of MiniGrid"):
        MiniGridEnv(env="Acrobot-v1")
    with pytest.raises(ResetNeededError):
        MiniGridEnv().state_key()
    env = MiniGridEnv(env="MiniGrid-Empty-5x5-v0")
    env.reset(seed=0)
    with pytest.raises(UsageError, match="BabyAI"):
        env.oracle()


@pytest.mark.parametrize("kwargs", [{}, {"env": "BabyAI-Unlock-v0", "interface": "text"}])
def test_the_contract_is_kept(kwargs: dict[str, Any]) -> None:
    report = check_env(lambda: MiniGridEnv(**kwargs), num_episodes=1)
    assert report.passed, report.failures
