"""CodeRepair-v0 on the fast kind of sandbox: what is paid for what, and that sources and options do what they say."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym import make
from agentgym.check import check_env
from agentgym.env.env import Env
from agentgym.envs.code.bugs import FILE, PUBLIC_TESTS
from agentgym.envs.code.code_repair import CodeRepairEnv
from agentgym.envs.code.problems import edits
from agentgym.errors import UnknownNameError, UsageError
from agentgym.types import Message, RewardRole, ToolCall

EXERCISE = {
    "slug": "double",
    "instructions": "# Instructions\n\nDouble a number; words are said twice.\n",
    "stub": {"double.py": "def double(n):\n    pass\n"},
    "tests": {
        "double_test.py": "import unittest\n\nfrom double import double\n\n\nclass DoubleTest(unittest.TestCase):\n"
        "    def test_nothing(self):\n        self.assertIsNone(double(None))\n\n"
        "    def test_number(self):\n        self.assertEqual(double(4), 8)\n\n"
        "    def test_word(self):\n        self.assertEqual(double('no'), 'nono')\n"
    },
    "example": {"double.py": "def double(n):\n    return None if n is None else 2 * n\n"},
}


@pytest.fixture
def exercises(tmp_path: Path) -> Path:
    path = tmp_path / "exercises.jsonl"
    path.write_text(json.dumps({**EXERCISE, "blurb": ""}) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def env() -> Iterator[CodeRepairEnv]:
    made = CodeRepairEnv(level=0, sandbox="process")
    yield made
    made.close()


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments),))


def parts_of(info: dict[str, Any]) -> dict[str, tuple[str, float]]:
    return {part.name: (part.role.value, part.value) for part in info["reward_parts"]}


def play_oracle(env: Env) -> tuple[list[str], dict[str, Any]]:
    names = []
    for _ in range(12):
        action = env.oracle()
        names += [call.name for call in action.calls if isinstance(call, ToolCall)]
        _, _, terminated, _, info = env.step(action)
        if terminated:
            return names, info
    raise AssertionError(f"the oracle never submits: {names}")


SOLVED = {
    "edit_made": (RewardRole.PROCESS.value, 0.05),
    "tests_collected": (RewardRole.PROCESS.value, 0.05),
    "tests_passed": (RewardRole.OUTCOME.value, 1.0),
}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"level": 0}, ["edit_file", "run_tests", "submit"]),
        ({"level": 1, "public_tests": "none"}, ["edit_file", "submit"]),
        ({"level": 2, "shows_file": False, "public_tests": "pass"}, ["read_file", "edit_file", "run_tests", "submit"]),
        ({"level": 3}, ["edit_file", "edit_file", "run_tests", "submit"]),
    ],
)
def test_the_oracle_is_paid_in_full(options: dict[str, Any], names: list[str]) -> None:
    env = make("agentgym/CodeRepair-v0", sandbox="process", **options)
    try:
        env.reset(seed=5)
        done, info = play_oracle(env)
        assert done == names
        assert info["success"] is True
        assert parts_of(info) == SOLVED
    finally:
        env.close()


def test_work_as_it_was_given_earns_nothing(env: CodeRepairEnv) -> None:
    env.reset(seed=1)
    _, reward, terminated, _, info = env.step(call("submit"))
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert parts_of(info) == {"tests_passed": ("outcome", 0.0)}


def test_what_cannot_be_loaded_is_an_edit_and_no_more(env: CodeRepairEnv) -> None:
    env.reset(seed=1)
    env.step(call("write_file", path=FILE, content="def f(:\n"))
    observation, _, _, _, info = env.step(call("submit"))
    assert "could not be loaded" in observation[0].text
    assert parts_of(info) == {"edit_made": ("process", 0.05), "tests_passed": ("outcome", 0.0)}


def test_other_files_are_no_edit(env: CodeRepairEnv) -> None:
    env.reset(seed=1)
    env.step(call("write_file", path=PUBLIC_TESTS, content="def test_nothing(): pass\n"))
    env.step(call("write_file", path="test_hidden.py", content="def test_nothing(): pass\n"))
    _, _, _, _, info = env.step(call("submit"))
    assert parts_of(info) == {"tests_passed": ("outcome", 0.0)}


def test_costs_are_parts_of_their_own() -> None:
    env = CodeRepairEnv(level=0, sandbox="process", rewards={"turn_cost": 0.01})
    try:
        env.reset(seed=1)
        info = env.step(call("edit_file", path=FILE, old="not there", new="x"))[4]
        assert parts_of(info) == {"invalid_turn": ("format", -0.02), "turn_cost": ("cost", -0.01)}
        assert info["is_valid"] is False
    finally:
        env.close()


@pytest.mark.parametrize("outcome", ["all", "share"])
def test_half_a_repair_earns_its_share_or_nothing(outcome: Any) -> None:
    env = CodeRepairEnv(level=3, outcome=outcome, sandbox="process")
    try:
        env.reset(seed=2)
        problem = env.problem
        first, *_ = edits(problem.files[FILE], problem.solution[FILE])
        env.step(call("edit_file", path=FILE, old=first.old, new=first.new))
        observation, _, _, _, info = env.step(call("submit"))
        num_passed, num_tests = (int(word) for word in observation[0].text.split() if word.isdigit())
        assert problem.num_passing_at_start is not None
        share = (num_passed - problem.num_passing_at_start) / (num_tests - problem.num_passing_at_start)
        assert 0 < share < 1
        role, paid = parts_of(info)["tests_passed"]
        assert (role, paid) == ("outcome", share if outcome == "share" else 0.0)
        assert info["success"] is False
    finally:
        env.close()


def test_the_visible_tests_say_the_same_each_time(env: CodeRepairEnv) -> None:
    env.reset(seed=1)
    first, again = (env.step(call("run_tests"))[0][0].text for _ in range(2))
    assert first == again
    assert "FAIL test_" in first
    assert "AssertionError" in first
    assert first.endswith("of 3 tests pass\n[exit code 1]")


def test_a_snapshot_holds_the_work(env: CodeRepairEnv) -> None:
    env.reset(seed=1)
    start = env.snapshot()
    env.step(env.oracle())
    edited = env.snapshot()
    assert edited.state_key != start.state_key
    env.restore(start)
    assert [step.name for step in env.oracle().calls if isinstance(step, ToolCall)] == ["edit_file"]
    env.restore(edited)
    assert play_oracle(env)[1]["success"] is True


def test_a_task_is_the_same_in_every_environment(env: CodeRepairEnv) -> None:
    other = CodeRepairEnv(level=2, public_tests="none", sandbox="process")
    try:
        task = env.tasks("train")[7]
        assert other.problem_of(task) == env.problem_of(task)
        assert other.tasks("train")[7].content_hash != task.content_hash
    finally:
        other.close()


def test_an_exercise(exercises: Path) -> None:
    env = CodeRepairEnv(source="exercism", exercism_path=exercises, outcome="share", sandbox="process")
    try:
        split = next(split for split in ("train", "valid", "test") if len(env.tasks(split)))
        observation, _ = env.reset(seed=0, options={"split": split})
        assert "words are said twice" in observation[0].text
        assert "def double(n):" in observation[0].text
        assert env.step(call("run_tests"))[0][0].text == "There are no visible tests."
        names, info = play_oracle(env)
        assert (names[-1], info["success"], parts_of(info)) == ("submit", True, SOLVED)

        # the stub passes one test of three; half of the others is half of the outcome
        env.reset(seed=0, options={"split": split})
        half = "def double(n):\n    return None if n is None else n + n if isinstance(n, int) else n\n"
        env.step(call("write_file", path="double.py", content=half))
        info = env.step(call("submit"))[4]
        assert parts_of(info)["tests_passed"] == ("outcome", 0.5)
    finally:
        env.close()


def test_an_exercise_with_its_tests_in_sight(exercises: Path) -> None:
    env = CodeRepairEnv(source="exercism", exercism_path=exercises, public_tests="fail", sandbox="process")
    try:
        split = next(split for split in ("train", "valid", "test") if len(env.tasks(split)))
        env.reset(seed=0, options={"split": split})
        assert "1 of 3 tests pass" in env.step(call("run_tests"))[0][0].text
        assert "test_word" in env.step(call("read_file", path="double_test.py"))[0][0].text
        names, info = play_oracle(env)
        assert (names[-2:], info["success"]) == (["run_tests", "submit"], True)
    finally:
        env.close()


PARAMETRISED = """import pytest
from add import add

@pytest.mark.parametrize('a', [1])
def test_add(a):
    assert add(a) == 2
"""


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        (PARAMETRISED, ""),
        ("from add import add\n\ndef test_add(case=None, *, more):\n    assert add(1) == 2\n", "0 of 1 hidden tests"),
        ("from add import add\n\ndef test_add():\n    assert add(1) == 3\n", "0 of 1 hidden tests"),
        ("from add import add\n", "0 of 0 hidden tests"),
    ],
)  # fmt: skip
def test_an_exercise_whose_tests_cannot_run_is_refused(tests: str, why: str, tmp_path: Path) -> None:
    """As a failure of the agent it would be one whatever the agent does."""
    row = {
        "slug": "add",
        "instructions": "Add one.",
        "stub": {"add.py": "def add(n):\n    pass\n"},
        "example": {"add.py": "def add(n):\n    return n + 1\n"},
        "tests": {"add_test.py": tests},
    }
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row) + "\n")
    env = CodeRepairEnv(source="exercism", exercism_path=path, sandbox="process")
    try:
        split = next(split for split in ("train", "valid", "test") if len(env.tasks(split)))
        with pytest.raises(UsageError, match=f"'add': its tests do not pass on its own example .*{why}.*Harbor"):
            env.reset(options={"split": split})
    finally:
        env.close()


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTGYM_SHARED_DATA", raising=False)
    with pytest.raises(UnknownNameError, match="unknown source 'exercisms'; did you mean 'exercism'"):
        CodeRepairEnv(source="exercisms")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown outcome 'some'"):
        CodeRepairEnv(outcome="some")
    with pytest.raises(UsageError, match="level must be from 0 to 3"):
        CodeRepairEnv(level=9)
    with pytest.raises(UsageError, match="set AGENTGYM_SHARED_DATA"):
        CodeRepairEnv(source="exercism")


@pytest.mark.slow
def test_it_keeps_the_contract_and_no_cheat_scores() -> None:
    report = check_env(lambda: CodeRepairEnv(sandbox="process", max_turns=4), num_episodes=1)
    assert {check.name: check.detail for check in report.failures} == {}
    found = {check.name: check.detail for check in report.checks}
    assert found["cheats"].startswith("none of 11 scores")
