"""MiniWoB++ as an environment: tasks, rewards, what the agent never sees, and that episodes repeat."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from testkit.miniwob_episodes import NEEDS_MINIWOB, elsewhere, make_env

from agentgym.check import check_env
from agentgym.envs.gui.fuzz import fuzz_action
from agentgym.envs.gui.miniwob.env import MiniWoBEnv
from agentgym.envs.gui.miniwob.solvers import SOLVERS
from agentgym.envs.gui.miniwob.tasks import TASKS, TOLD_APART
from agentgym.envs.gui.pool import close_browsers
from agentgym.envs.gui.replay import Recording, differences, record, side_by_side
from agentgym.errors import ConfigError, UnknownNameError, UsageError
from agentgym.registry import make
from agentgym.types import Message

pytestmark = NEEDS_MINIWOB
SOLVED = tuple(SOLVERS)


@pytest.fixture(scope="module")
def env() -> Iterator[MiniWoBEnv]:
    made = make("agentgym/MiniWoB-v0")
    assert isinstance(made, MiniWoBEnv)
    yield made
    made.close()
    close_browsers()


def test_tasks_are_a_name_and_a_seed_and_no_seed_is_in_two_splits(env: MiniWoBEnv) -> None:
    assert len(TASKS) == len(set(TASKS)) == 129
    splits = {split: env.tasks(split) for split in ("train", "valid", "test")}
    seeds = {split: {tasks[0].seed, tasks[len(tasks) - 1].seed} for split, tasks in splits.items()}
    assert max(seeds["train"]) < min(seeds["valid"]) <= max(seeds["valid"]) < min(seeds["test"])
    assert [task.data["task"] for task in splits["valid"][: len(TASKS)]] == list(TASKS)
    one = MiniWoBEnv(task="click-link")
    assert [task.id for task in one.tasks("train")[:2]] == ["click-link-0", "click-link-1"]
    two = MiniWoBEnv(task=["click-link", "click-test"])
    assert two.tasks("train").named("click-link-1") == one.tasks("train")[1] == two.tasks("train")[2]
    with pytest.raises(UsageError, match=r"no task 'click-link-x'.*click-link-0"):
        one.reset(options={"task": "click-link-x"})


def test_every_page_can_end_an_episode_and_five_know_the_data_mode() -> None:
    """Read off the pages of the package: what a page cannot do it says nowhere."""
    miniwob = pytest.importorskip("miniwob")
    folder = Path(miniwob.__file__).parent / "html" / "miniwob"
    pages = {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in folder.glob("*.html")}
    assert set(pages) == {*TASKS, "hover-shape"}
    assert {name for name, page in pages.items() if "core.endEpisode" not in page} == {"hover-shape"}
    assert {name for name, page in pages.items() if "WOB_DATA_MODE" in page} == set(TOLD_APART)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'click-test'"):
        MiniWoBEnv(task="click-tests")
    with pytest.raises(ConfigError, match="at least one task"):
        MiniWoBEnv(task=[])
    with pytest.raises(ConfigError, match="site in a frame"):
        MiniWoBEnv(task="flight.AA")
    with pytest.raises(ConfigError, match="never ends an episode"):
        MiniWoBEnv(task="hover-shape")
    with pytest.raises(ConfigError, match="data_mode=test changes no page of these tasks"):
        MiniWoBEnv(task=["click-test", "click-link"], data_mode="test")
    with pytest.raises(ConfigError, match="success_above"):
        MiniWoBEnv(success_above=1.0)


def test_the_reward_is_the_raw_one_and_partial_ones_count_as_asked() -> None:
    """Two of five boxes wrong give a fifth of the reward: a success above 0, not above 0.99."""
    for options, expected in (({}, 1.0), ({"success_above": 0.99}, 0.0), ({"reward": "raw"}, 0.2)):
        env = MiniWoBEnv(task="click-checkboxes", **options)
        env.reset(options={"task": "click-checkboxes-0"})  # ZrLIee, RKPgD and 3mJ5 of five
        env.step("check: zrliee")
        reward, terminated = env.step("click: submit")[1:3]
        assert terminated and reward == pytest.approx(expected)
        assert env.raw_reward == pytest.approx(0.2)
        env.close()


def test_what_is_not_for_the_agent_is_not_in_an_observation() -> None:
    env = MiniWoBEnv(observe=["tree", "html"], max_turns=9)
    for task in ("click-checkboxes-0", "use-slider-0", "guess-number-0", "click-test-2-0"):
        said = [message.text for message in env.reset(options={"task": task})[0]]
        for action in (*env.admissible_actions()[:4], "click: submit", "click: two"):
            observation, _, terminated, _, _ = env.step(action)
            said += [message.text for message in observation]
            if terminated:
                break
        text = "\n".join(said)
        for word in ("WOB", "reward", "Episodes done", "Time left", "START", "tampered", "click-canvas", "episode-id"):
            assert word not in text, (task, word)
    env.close()


def test_the_first_outcome_counts_and_an_episode_cannot_be_begun_again(env: MiniWoBEnv) -> None:
    env.reset(options={"task": "click-test-2-0"})
    calls = [call for text in ("click: two", "click: one") for call in env.parse_action(text).calls]
    reward, terminated = env.step(Message("assistant", "", tuple(calls)))[1:3]
    assert (reward, terminated, env.raw_reward) == (0.0, True, -1.0)


def test_leaving_the_page_is_a_failure() -> None:
    env = MiniWoBEnv(actions=("elements", "pages"))
    env.reset(options={"task": "click-test-0"})
    assert env.step("goto: /miniwob/click-test-2.html")[1:3] == (0.0, True)
    env.close()


def test_a_brief_observation_is_the_elements_alone() -> None:
    env = MiniWoBEnv(brief=True)
    assert env.reset(options={"task": "click-test-2-0"})[0][0].text == (
        'Click button ONE.\n\nbutton "ONE" [one]\nbutton "TWO" [two]'
    )
    env.close()


def test_another_mode_asks_for_something_else() -> None:
    env = MiniWoBEnv(task="click-test-transfer", data_mode="test")
    env.reset(options={"task": 0})
    assert env.goal == "Click button TWO."
    env.close()


@pytest.mark.slow
def test_recordings_replay_in_another_process() -> None:
    """Half of them by scripted policies, half by a fuzzing agent; ``benchmarks/gui/miniwob-replay.json`` has 200."""

    def play(env: MiniWoBEnv, number: int) -> Recording:
        rng = np.random.default_rng(number)
        if number % 2:
            return record(env, f"{SOLVED[number % len(SOLVED)]}-3", MiniWoBEnv.oracle)
        return record(env, f"{TASKS[3 * number % len(TASKS)]}-7", lambda env: fuzz_action(env, rng), max_turns=8)

    recordings = side_by_side(make_env, play, range(10))
    assert [one.rewards[-1] for one in recordings[1::2]] == [1.0] * 5
    assert sum(len(one.actions) for one in recordings) > 20
    assert elsewhere("replay", [one.to_json() for one in recordings]) == [[]] * 10


def test_a_replay_that_goes_otherwise_is_told(env: MiniWoBEnv) -> None:
    right = record(env, "click-test-2-0", lambda env: env.parse_action("click: one"))
    assert (right.rewards, right.has_ended) == ((1.0,), True)
    assert Recording.from_json(json.loads(json.dumps(right.to_json()))) == right
    wrong = Recording(right.task, right.seed, ("click: two",), right.state_keys, (1.0,), True)
    assert any("the reward was '1.0' and is '0.0'" in line for line in differences(env, wrong))


@pytest.mark.slow
def test_it_conforms() -> None:
    report = check_env(lambda: MiniWoBEnv(task=["click-test-2", "enter-text"]), num_episodes=1)
    assert [(check.name, check.detail) for check in report.failures] == []
