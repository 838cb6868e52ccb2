"""reasoning-gym itself, played through the adapter; skipped where it is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.reasoning_gym import WITHOUT_ANSWERS, ReasoningGymEnv
from agentgym.errors import ResetNeededError, UnknownNameError, UsageError
from agentgym.types import Task

gym = pytest.importorskip("reasoning_gym", reason="needs the package reasoning-gym (the extra reasoning-gym)")

EVALUATING = ("binary_matrix", "spiral_matrix", "string_insertion", "n_queens")
PARSING = ("countdown", "puzzle24", "simple_integration", "polynomial_multiplication")
BARE = """
import json, sys, reasoning_gym
entries = {name: reasoning_gym.create_dataset(name, seed=5, size=1)[0] for name in sys.argv[1:]}
print("\\n" + json.dumps({name: [entry["question"], str(entry["answer"])] for name, entry in entries.items()}))
"""
ALWAYS_SOME_POINTS = 0.1
"""The most that an answer which is nonsense earns in the data sets that pay for trying."""


def names() -> list[str]:
    from reasoning_gym.factory import DATASETS

    return sorted(set(DATASETS) - {*WITHOUT_ANSWERS, "composite"})


def problem_of(name: str, seed: int = 0, **config: Any) -> Task:
    return Task(id=f"{name}-{seed}", split="train", seed=seed, data={"datasets": [name], "config": config})


@pytest.fixture(scope="module")
def env() -> Iterator[ReasoningGymEnv]:
    made = ReasoningGymEnv()
    yield made
    made.close()


def test_the_data_sets_own_answers_score_one_and_nonsense_does_not(env: ReasoningGymEnv) -> None:
    assert len(names()) == 100
    # some draw from sets, whose order the hash seed decides, as the adapter's process has it
    bare = [sys.executable, "-c", BARE, *names()]
    done = subprocess.run(bare, env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True)
    expected = json.loads(done.stdout.splitlines()[-1])
    says_no = []
    for name in names():
        task = problem_of(name, 5)
        question, answer = expected[name]
        said = env.reset(options={"task": task})[0][0].text
        assert said.startswith(question) and env.oracle() == env.message_of(answer), name
        _, reward, terminated, _, info = env.step(env.oracle())
        assert (reward, terminated, info["success"]) == (1.0, True, True), name
        env.reset(options={"task": task})
        _, reward, terminated, _, info = env.step(env.message_of("certainly not this"))
        assert terminated
        if info["success"]:
            says_no.append(name)
        else:
            assert reward <= ALWAYS_SOME_POINTS, name
    assert set(says_no) <= {"game_of_life_halting"}  # a flaw of its verifier


def test_scores_between_are_the_verifiers(env: ReasoningGymEnv) -> None:
    task = problem_of("countdown", 4)
    entry = gym.create_dataset("countdown", seed=4, size=1)[0]
    for answer in ("1 + 1", "+".join(map(str, entry["metadata"]["numbers"])), "no idea"):
        env.reset(options={"task": task})
        assert env.step(env.message_of(answer))[1] == gym.create_dataset("countdown").score_answer(answer, entry)


@pytest.mark.parametrize("name", WITHOUT_ANSWERS)
def test_without_an_answer_of_its_own_there_is_no_oracle(env: ReasoningGymEnv, name: str) -> None:
    env.reset(options={"task": problem_of(name, 5)})
    with pytest.raises(UsageError, match="no oracle"):
        env.oracle()
    assert env.step(env.message_of("nothing"))[1] < 1


@pytest.mark.parametrize("name", [*EVALUATING, *PARSING])
def test_an_answer_that_is_a_program_is_not_run(env: ReasoningGymEnv, name: str) -> None:
    for actions in env.cheats().values():
        env.reset(options={"task": problem_of(name, 2)})
        assert env.step(actions[0])[1] <= ALWAYS_SOME_POINTS
        env.reset(options={"task": problem_of(name, 2)})  # the verifier is the same process
        assert env.step(env.message_of("1"))[1] <= ALWAYS_SOME_POINTS
        env.reset(options={"task": problem_of(name, 2)})
        assert env.step(env.oracle())[1] == 1.0


def test_the_verifiers_alone_would_run_it(env: ReasoningGymEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    made = gym.create_dataset("n_queens", seed=2, size=1)
    monkeypatch.setattr(type(made), "score_answer", type(made).score_answer)
    assert made.score_answer("1", made[0]) < 1
    env.reset(options={"task": problem_of("n_queens", 2)})
    made.score_answer(env.cheats()["replace the verifier"][0].calls[0].arguments["answer"], made[0])  # type: ignore[union-attr]
    assert made.score_answer("1", made[0]) == 1


def test_an_answer_that_hangs_the_verifier_is_wrong() -> None:
    env = ReasoningGymEnv(datasets="countdown", answer_timeout_s=3.0)
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step(env.message_of("9**9**9**9**9"))
    assert (reward, terminated, info["is_valid"]) == (0.0, True, False)
    env.reset(seed=0)
    assert env.step(env.oracle())[1] == 1.0
    env.close()


def test_an_answer_that_breaks_the_verifier_is_wrong(env: ReasoningGymEnv) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        made = gym.create_dataset("prime_factorization", seed=1, size=1)
        made.score_answer("two times three", made[0])
    env.reset(options={"task": problem_of("prime_factorization", 1)})
    _, reward, _, _, info = env.step(env.message_of("two times three"))
    assert reward == 0 and not info["is_valid"]


def test_several_attempts_and_both_interfaces() -> None:
    env = ReasoningGymEnv(
        datasets="chain_sum", num_attempts=2, interface="text", config={"min_terms": 2, "max_terms": 2}
    )
    said = env.reset(seed=1)[0][0].text
    assert said.endswith("between <answer> and </answer>. You may answer 2 times.")
    key = env.state_key()
    assert not env.step("")[4]["is_valid"] and env.state_key() == key
    observation, reward, terminated, _, _ = env.step("I think <answer>-1</answer>")
    assert "1 answer is left" in observation[0].text and (reward, terminated) == (0.0, False)
    assert env.state_key() != key
    _, reward, terminated, _, info = env.step(env.oracle())
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    env.close()


def test_what_cannot_be_is_refused(env: ReasoningGymEnv) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'chain_sum'"):
        env.reset(options={"task": problem_of("chain_sums")})
    with pytest.raises(UsageError, match="num_legs"):
        env.reset(options={"task": problem_of("chain_sum", num_legs=4)})
    with pytest.raises(UsageError, match="one data set"):
        ReasoningGymEnv(config={"min_terms": 2})
    with pytest.raises(UsageError, match="num_attempts"):
        ReasoningGymEnv(num_attempts=0)
    with pytest.raises(ResetNeededError):
        ReasoningGymEnv().state_key()


@pytest.mark.parametrize(
    "kwargs",
    [{"datasets": ["chain_sum", "spiral_matrix"]}, {"datasets": "countdown", "interface": "text", "num_attempts": 2}],
)
def test_the_contract_is_kept(kwargs: dict[str, Any]) -> None:
    report = check_env(lambda: ReasoningGymEnv(**kwargs), num_episodes=2)
    assert report.passed, report.failures
