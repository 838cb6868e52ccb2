"""ScienceWorld's own engine, played through the adapter; skipped where it or Java is not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.scienceworld import ScienceWorldEnv, _variations
from agentgym.errors import ResetNeededError, UnknownNameError, UsageError
from agentgym.types import Task

scienceworld = pytest.importorskip("scienceworld", reason="needs the package scienceworld (the extra scienceworld)")
pytestmark = pytest.mark.skipif(shutil.which("java") is None, reason="ScienceWorld's engine needs a Java runtime")


@pytest.fixture(scope="module", autouse=True)
def quick_start() -> Iterator[None]:
    """Engines live for a few episodes here, which the second compiler of Java takes longer to compile than to play."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="module")
def env() -> Iterator[ScienceWorldEnv]:
    made = ScienceWorldEnv(interface="text")
    yield made
    made.close()


@pytest.mark.parametrize("task", ["find-living-thing-0", "boil-0", "use-thermometer-0", "power-component-3"])
def test_the_gold_path_scores_a_hundred(env: ScienceWorldEnv, task: str) -> None:
    env.reset(options={"task": task})
    rewards, terminated = [], False
    while not terminated:
        _, reward, terminated, truncated, info = env.step(env.oracle())
        rewards.append(reward)
        assert not truncated
    assert info["success"] and sum(rewards) == pytest.approx(1.0)


def test_the_splits_are_the_engines(env: ScienceWorldEnv) -> None:
    assert [len(env.tasks(split)) for split in ("train", "valid", "test")] == [3592, 1796, 1819]
    engine = scienceworld.ScienceWorldEnv("", envStepLimit=100)
    try:
        for name in ("boil", "identify-life-stages-2", "grow-plant"):
            engine.load(name, 0, "")
            expected = [engine.get_variations_train(), engine.get_variations_dev(), engine.get_variations_test()]
            assert [list(numbers) for numbers in expected] == list(_variations()[name].values())
    finally:
        engine.close()


def test_keys_and_refusals(env: ScienceWorldEnv) -> None:
    env.reset(options={"task": "find-living-thing-0"})
    start = env.state_key()
    assert env.step("look around")[4]["is_valid"] and env.state_key() == start
    observation, reward, _, _, info = env.step("dance wildly")
    assert (observation[0].text, reward, info["is_valid"]) == ("No known action matches that input.", 0.0, False)
    assert env.state_key() == start
    assert "close door to kitchen" in env.admissible_actions()
    env.step("close door to kitchen")
    assert env.state_key() != start
    with pytest.raises(UsageError, match="no plan"):
        env.oracle()


def test_a_second_episode_of_a_task_is_the_first_again(env: ScienceWorldEnv) -> None:
    def played() -> list[object]:
        observation, _ = env.reset(options={"task": "use-thermometer-0"})
        seen: list[object] = [observation[0].text, env.state_key()]
        for _ in range(5):
            command = env.oracle()
            observation, reward, *_ = env.step(command)
            seen += [command.text, observation[0].text, reward, env.state_key()]
        return seen

    first = played()
    env.reset(options={"task": "find-living-thing-0"})
    env.step("close door to kitchen")
    assert played() == first


def test_a_wrong_focus_costs_the_experiment(env: ScienceWorldEnv) -> None:
    env.reset(options={"task": "find-living-thing-0"})
    _, reward, terminated, _, info = env.step("focus on door to kitchen")
    assert (reward, terminated, info["success"]) == (-1.0, True, False)


def test_what_cannot_be_is_refused(env: ScienceWorldEnv) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'boil'"):
        ScienceWorldEnv(experiments="boils").tasks("train")
    with pytest.raises(UsageError, match="names no experiment"):
        env.reset(options={"task": Task(id="x", split="train", seed=0)})
    with pytest.raises(ResetNeededError):
        ScienceWorldEnv().state_key()


def test_equal_things_are_listed_in_one_order(env: ScienceWorldEnv) -> None:
    said = set()
    for _ in range(4):
        env.reset(options={"task": "find-living-thing-78"})
        said.add(env.step("look at art studio")[0][0].text)
    assert len(said) == 1 and said.pop().count("paint)") == 3


def test_what_the_clock_alone_brings_is_no_reward_of_an_impossible_action(env: ScienceWorldEnv) -> None:
    env.reset(options={"task": "find-living-thing-0"})
    assert env.step("dance wildly")[1] == 0.0
    assert env.step("look around")[1] == pytest.approx(0.08)


def test_the_contract_is_kept() -> None:
    report = check_env(lambda: ScienceWorldEnv(interface="text", experiments="find-living-thing"), num_episodes=1)
    assert report.passed, report.failures
