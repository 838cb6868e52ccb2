"""Code-v0 and PythonMath-v0: tasks, rewards, states, and what becomes of sandboxes."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from testkit.skips import KILLED_FROM_OUTSIDE
from testkit.tokenizers_for_tests import trained

from agentgym.check.conformance import CHECKS
from agentgym.check.injection import cheats
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.envs.code.env import SOLUTION, CodeEnv
from agentgym.envs.code.functions import LEVELS, make_function
from agentgym.envs.code.math_env import PythonMathEnv
from agentgym.envs.code.math_problems import LEVELS as MATH_LEVELS
from agentgym.envs.code.math_problems import make_problem
from agentgym.envs.code.sandbox_env import SandboxEnv
from agentgym.errors import ConfigError, CorruptDataError, SandboxDeadError, UnknownNameError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.rollout.agent import DemonstrationAgent
from agentgym.rollout.group import GroupConfig, GroupPlayer
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import Message, RewardRole, Status, TrajectoryGroup

KIT = (
    "tool schemas",
    "order of calls",
    "closing",
    "rewards",
    "async path",
    "snapshots",
    "state keys",
    "hostile actions",
    "leaks",
)


def code_env(**arguments: Any) -> CodeEnv:
    return CodeEnv(sandbox="process", max_sandboxes=2, **arguments)


def math_env(**arguments: Any) -> PythonMathEnv:
    return PythonMathEnv(sandbox="process", max_sandboxes=2, **arguments)


def play(env: Env, actions: Sequence[str]) -> list[Any]:
    """Turns by call syntax; what each step gave."""
    return [env.step(action) for action in actions]


def oracle_wins(env: Env, task: int, split: str = "train") -> bool:
    env.reset(options={"task": task, "split": split})
    while True:
        _, _, terminated, truncated, info = env.step(env.oracle())
        assert info["is_valid"]
        if terminated or truncated:
            return bool(info["success"])


# ------------------------------------------------------------------------------------------------- made from a seed


@pytest.mark.parametrize("level", LEVELS)
def test_reference_solutions_do_what_is_asked(level: int) -> None:
    for seed in range(200):
        function = make_function(seed, "train", level)
        names: dict[str, Any] = {}
        exec(function.source, names)
        arguments = function.examples + function.hidden
        assert [names["f"](x) for x in arguments] == [function.run(x) for x in arguments]
        assert len({repr(x) for x in arguments}) == len(arguments)
        assert len({repr(function.run(x)) for x in arguments}) >= 4


@pytest.mark.parametrize("level", LEVELS)
def test_no_function_is_in_two_splits(level: int) -> None:
    sources = {
        split: {make_function(seed, split, level).source for seed in range(150)} for split in ("train", "valid", "test")
    }
    assert not sources["train"] & (sources["valid"] | sources["test"])
    assert not sources["valid"] & sources["test"]


def test_level_0_is_one_short_line() -> None:
    lines = {make_function(seed, "train", 0).source for seed in range(300)}
    assert max(map(len, lines)) <= 35
    assert len(lines) > 100


@pytest.mark.parametrize("level", MATH_LEVELS)
def test_code_of_a_problem_gives_its_answer(level: int) -> None:
    for seed in range(60):
        problem = make_problem(seed, level)
        *statements, expression = problem.code.splitlines()
        names: dict[str, Any] = {}
        exec("\n".join(statements), names)
        assert eval(expression, names) == problem.answer, problem


# ------------------------------------------------------------------------------------------------------- an episode


@pytest.mark.parametrize("level", LEVELS)
def test_the_oracle_wins(level: int) -> None:
    env = code_env(level=level)
    assert oracle_wins(env, 1) and oracle_wins(env, 2, "test")
    env.close()


@pytest.mark.parametrize("level", MATH_LEVELS)
def test_the_oracle_solves(level: int) -> None:
    env = math_env(level=level)
    assert oracle_wins(env, 1) and oracle_wins(env, 2, "test")
    env.close()


def test_parts_of_the_reward() -> None:
    env = code_env(rewards={"turn_cost": 0.01})
    env.reset(options={"task": 0})
    assert env.step("read_file: nothing.py")[4]["reward_parts"][0].name == "invalid_turn"
    *_, last = play(env, [f'write_file: {SOLUTION}; "def f(x): return 0"', "submit"])
    found = {part.name: (part.value, part.role) for part in last[4]["reward_parts"]}
    assert found == {
        "edit_made": (0.05, RewardRole.PROCESS),
        "tests_collected": (0.05, RewardRole.PROCESS),
        "tests_passed": (0.0, RewardRole.OUTCOME),
        "turn_cost": (-0.01, RewardRole.COST),
    }
    assert (last[2], last[4]["success"]) == (True, False)
    env.reset(options={"task": 0})
    last = env.step("submit")
    assert [part.name for part in last[4]["reward_parts"]] == ["tests_passed", "turn_cost"]
    env.close()


def test_visible_tests_inform_and_do_not_pay() -> None:
    env = code_env()
    env.reset(options={"task": 0})
    said, reward, *_ = env.step("run_tests")
    assert said[0].text.endswith("0 of 3 examples are right") and reward == 0
    env.step(env.oracle())
    said, reward, *_ = env.step("run_tests")
    assert (said[0].text, reward) == ("3 of 3 examples are right", 0)
    env.close()


def test_an_answer_must_be_a_number_and_right() -> None:
    env = math_env()
    env.reset(options={"task": 3})
    said, _, terminated, _, info = env.step("submit: about five")
    assert said[0].result is not None and said[0].result.error_type == "not_a_number"
    assert not terminated and not info["is_valid"]
    assert env.step("submit: 4,216,061,523")[4]["success"]
    env.reset(options={"task": 3})
    assert not env.step("submit: 4216061524")[4]["success"]
    assert env.tasks("train")[3].answers == ("4216061523",)
    env.close()


def test_state_is_the_workspace() -> None:
    env = code_env()
    keys = []
    for actions in (["write_file: a; 1", "write_file: b; 2"], ["write_file: b; 2", "run_tests", "write_file: a; 1"]):
        env.reset(options={"task": 0})
        play(env, actions)
        keys.append(env.state_key())
    assert keys[0] == keys[1]
    env.step("submit")
    assert env.state_key() != keys[1]
    env.close()


def test_snapshots_bring_files_and_variables_back() -> None:
    env = math_env()
    env.reset(options={"task": 3})
    env.step('python: "x = 5"')
    before = env.snapshot()
    env.step('python: "x = 6"')
    other = math_env()
    for one in (env, other):
        one.restore(before)
        assert one.step("python: x")[0][0].text == "5"
        one.restore(before)
        assert one.step("submit: 4216061523")[4]["success"]
        one.restore(one.snapshot())  # a point after the end
        one.close()


def test_what_the_agent_locks_is_looked_at_all_the_same() -> None:
    env = PythonMathEnv(sandbox="process", max_sandboxes=2)
    env.reset(options={"task": 3})
    before = env.state_key()
    env.step(
        "python: " + json.dumps("import os\nopen('locked', 'w').close()\nos.chmod('locked', 0)\nos.mkfifo('pipe')")
    )
    assert env.state_key() != before
    env.close()


# --------------------------------------------------------------------------------------------------------- sandboxes


def test_it_says_which_sandbox_it_got_and_refuses_what_is_not_to_be_had() -> None:
    env = code_env()
    assert env.reset(seed=0)[1]["sandbox"] == "process"
    env.close()
    with pytest.raises(UsageError, match="does not give network"):
        CodeEnv(sandbox="process", require=["network"]).reset(seed=0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"sandbox": "podman"}, UnknownNameError),
        ({"rewards": {"edits": 1.0}}, ConfigError),
        ({"rewards": {"edit_made": -1.0}}, ConfigError),
        ({"tool_timeout_s": 0}, ConfigError),
        ({"max_sandboxes": 0}, ConfigError),
        ({"level": 9}, UsageError),
        ({"source": "mbpp"}, UsageError),
        ({"source": "humaneval", "data": "/nowhere/HumanEval.jsonl.gz"}, UsageError),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        CodeEnv(**arguments)


@KILLED_FROM_OUTSIDE
def test_a_dead_sandbox_is_a_failure_of_the_infrastructure() -> None:
    env = code_env()
    env.reset(options={"task": 0})
    kill_sandbox(env)
    with pytest.raises(SandboxDeadError):
        env.step("run_tests")
    assert oracle_wins(env, 0)  # the pool has replaced it
    env.close()


def kill_sandbox(env: SandboxEnv) -> None:
    env.sandbox._sandbox._worker.kill()  # type: ignore[attr-defined]


class DiesOnce(CodeEnv):
    """Its first sandbox dies in the first turn."""

    has_died = False

    async def arespond(self, action: Message) -> Any:
        if not DiesOnce.has_died:
            DiesOnce.has_died = True
            kill_sandbox(self)
        return await super().arespond(action)


def play_group(make_env: Any, num_envs: int) -> TrajectoryGroup:
    renderer = ChatRenderer(trained(CHAT_TEMPLATE))

    def oracle(env: Env, seed: int) -> DemonstrationAgent:
        return DemonstrationAgent(lambda observation: env.oracle(), renderer, 100_000)

    async def run() -> TrajectoryGroup:
        pool = EnvPool(make_env, num_envs)
        config = GroupConfig(group_size=num_envs, num_envs=num_envs, min_valid=1)
        task = code_env().tasks("train")[0]
        group = await GroupPlayer(pool, oracle, config, seed=0).play(0, task)
        await pool.close()
        return group

    return asyncio.run(run())


@KILLED_FROM_OUTSIDE
def test_a_spoilt_episode_is_played_again_in_a_fresh_sandbox() -> None:
    group = play_group(lambda: DiesOnce(sandbox="process", max_sandboxes=2), 2)
    assert [trajectory.status for trajectory in group.trajectories] == [Status.COMPLETED] * 2
    assert sum(trajectory.num_retries for trajectory in group.trajectories) == 1
    for trajectory in group.trajectories:
        parts = [part for turn in trajectory.turns for part in turn.reward_parts]
        assert sum(part.value for part in parts if part.role is RewardRole.OUTCOME) == 1.0


def test_many_environments_on_one_sandbox_wait_for_each_other() -> None:
    group = play_group(lambda: CodeEnv(sandbox="process", max_sandboxes=1), 5)
    assert [trajectory.success for trajectory in group.trajectories] == [True] * 5


def test_a_left_episode_holds_no_sandbox() -> None:
    one, other = (CodeEnv(sandbox="process", max_sandboxes=1) for _ in range(2))
    one.reset(options={"task": 0})
    asyncio.run(one.aend_episode())
    assert oracle_wins(other, 0)
    one.close()
    other.close()


# -------------------------------------------------------------------------------------------------------- HumanEval

PROBLEM = {
    "task_id": "HumanEval/0",
    "prompt": (
        'def helper(x):\n    return x + 1\n\ndef up(x: int) -> int:\n    """One more.\n    >>> up(1)\n    2\n    """\n'
    ),
    "canonical_solution": "    return helper(x)\n",
    "test": "def check(candidate):\n    assert candidate(1) == helper(1)\n    assert candidate(-1) == 0\n",
    "entry_point": "up",
}


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(PROBLEM).encode()))
    return str(path)


def test_problems_in_humaneval_format(data: str) -> None:
    env = code_env(source="humaneval", data=data)
    assert len(env.tasks("test")) == 1
    with pytest.raises(UsageError, match="its only split is test"):
        env.tasks("train")
    env.reset(seed=0)
    assert "expected" in env.step("run_tests")[0][0].text.lower()
    assert not env.step("submit")[4]["success"]
    assert oracle_wins(env, 0, "test")
    env.close()


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"question": 1}\n')
    with pytest.raises(CorruptDataError, match="task_id"):
        CodeEnv(source="humaneval", data=str(path))


# -------------------------------------------------------------------------------------------------------- the kit


@pytest.mark.slow
@pytest.mark.parametrize("check", [check for check in CHECKS if check.name in KIT], ids=lambda check: check.name)
@pytest.mark.parametrize("factory", [code_env, math_env])
def test_the_kit_passes(factory: Any, check: Any) -> None:
    check.function(Subject(factory, None, 1, 0))


@pytest.mark.slow
def test_no_cheat_scores() -> None:
    assert cheats(Subject(code_env, None, 1, 0)).startswith("none of 12 scores")
