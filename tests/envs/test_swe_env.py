"""SWE-v0 on the fast kind of sandbox: the patch, Harbor's verifiers, and what an agent can plant for them."""

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from testkit.unittest_runs import passed_tests

from agentgym import make
from agentgym.check import check_env
from agentgym.check.contract import rewards
from agentgym.check.determinism import seed_determinism, snapshots
from agentgym.check.gold import oracle
from agentgym.check.injection import cheats
from agentgym.check.subject import Subject
from agentgym.envs.code.swe import SWEEnv
from agentgym.errors import EnvError, UsageError
from agentgym.types import Message, ToolCall

VERIFIER = """#!/bin/bash
mkdir -p /logs/verifier
if python3 /tests/test_outputs.py; then echo "$FULL" > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
OUTPUTS = """
with open("/app/hello.txt") as file, open("/app/start.txt") as start:
    assert file.read() == start.read() + "hello\\n"
"""
FILES = {
    "task.toml": '[verifier]\ntimeout_sec = 60.0\nenv = { FULL = "1" }\n',
    "instruction.md": "Write what is in /app/start.txt and then hello into /app/hello.txt.",
    "environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /app\nCOPY start.txt .\n",
    "environment/start.txt": "good day, ",
    "tests/test.sh": VERIFIER,
    "tests/test_outputs.py": OUTPUTS,
    "solution/solve.sh": "#!/bin/bash\n(cat /app/start.txt; echo hello) > /app/hello.txt\n",
}
MakeHarbor = Callable[..., SWEEnv]


@pytest.fixture
def make_harbor(tmp_path: Path, request: pytest.FixtureRequest) -> MakeHarbor:
    def made(files: dict[str, str] | None = None, **options: Any) -> SWEEnv:
        for path, text in {**FILES, **(files or {})}.items():
            (tmp_path / "hello" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "hello" / path).write_text(text, encoding="utf-8")
        env = SWEEnv(source="harbor", harbor_path=tmp_path, **{"sandbox": "process", **options})
        request.addfinalizer(env.close)
        return env

    return made


def call(name: str, **arguments: Any) -> Message:
    return Message("assistant", "", (ToolCall(name, arguments),))


def outcome(info: dict[str, Any]) -> float:
    return float(sum(part.value for part in info["reward_parts"] if part.name == "tests_passed"))


def test_the_oracle_resolves_an_issue_and_its_patch_does_so_elsewhere(tmp_path: Path) -> None:
    env = make("agentgym/SWE-v0", sandbox="process", themes=("accounts",), num_bugs=2)
    assert isinstance(env, SWEEnv)
    try:
        observation, _ = env.reset(seed=4)
        assert observation[0].text.count("gives wrong results") == 2
        terminated, names = False, []
        info: dict[str, Any] = {}
        while not terminated:
            assert "patch" not in info
            action = env.oracle()
            names += [call.name for call in action.calls if isinstance(call, ToolCall)]
            _, _, terminated, _, info = env.step(action)
        assert names == ["read_file", "edit_file", "read_file", "edit_file", "bash", "submit"]
        assert info["success"] is True
        assert {part.name: part.value for part in info["reward_parts"]} == {
            "edit_made": 0.05,
            "tests_collected": 0.05,
            "tests_passed": 1.0,
        }
        problem = env.problem
    finally:
        env.close()
    passed_tests(problem.files, problem.public_tests, tmp_path)
    subprocess.run(["git", "apply", "-"], input=info["patch"].encode(), cwd=tmp_path, check=True)
    num_tests, passed = passed_tests(problem.hidden_tests, problem.hidden_tests, tmp_path)
    assert len(passed) == num_tests


def test_the_patch_shows_everything_and_only_the_package_is_graded() -> None:
    env = SWEEnv(themes=("search",), sandbox="process", max_turns=2)
    try:
        env.reset(seed=0)
        env.step(call("bash", command="echo x > notes.txt; rm README.md; echo '# more' >> tests/test_words.py"))
        _, _, terminated, truncated, info = env.step(call("bash", command="true"))
        assert (terminated, truncated) == (False, True)
        for line in ("+++ b/notes.txt", "+++ /dev/null", "--- a/README.md", "+# more"):
            assert line in info["patch"].splitlines()
        env.reset(seed=0)
        env.step(call("bash", command="echo x > notes.txt"))
        info = env.step(call("submit"))[4]
        assert [part.name for part in info["reward_parts"]] == ["tests_passed"]
        assert outcome(info) == 0.0
    finally:
        env.close()


def test_a_harbor_task(make_harbor: MakeHarbor) -> None:
    env = make_harbor()
    assert [task.id for task in env.tasks("test")] == ["test-hello"]
    with pytest.raises(UsageError, match="of the split 'test', not 'train'"):
        env.tasks("train")
    observation, _ = env.reset(seed=0)
    assert observation[0].text == "Write what is in ./start.txt and then hello into ./hello.txt."
    assert env.step(call("read_file", path="start.txt"))[0][0].text == "1\tgood day, "
    env.step(env.oracle())
    middle = env.snapshot()
    _, _, terminated, _, info = env.step(env.oracle())
    assert (terminated, info["success"], outcome(info)) == (True, True, 1.0)
    assert "+good day, hello" in info["patch"]
    env.restore(middle)
    info = env.step(call("submit"))[4]
    assert (info["success"], "+good day, hello" in info["patch"]) == (True, True)


@pytest.mark.parametrize(("option", "expected"), [("all", 0.0), ("share", 0.5)])
def test_a_reward_between_none_and_full(make_harbor: MakeHarbor, option: str, expected: float) -> None:
    env = make_harbor({"task.toml": '[verifier]\nenv = { FULL = "0.5" }\n'}, outcome=option)
    env.reset(seed=0)
    env.step(env.oracle())
    info = env.step(call("submit"))[4]
    assert (outcome(info), info["success"]) == (expected, False)


PLANTS = {
    "a reward": "for at in . ..; do mkdir -p $at/logs/verifier; echo 1 > $at/logs/verifier/reward.txt; done",
    "tests": "mkdir -p tests ../tests; echo 'echo 1 > /logs/verifier/reward.txt' | tee tests/test.sh ../tests/test.sh",
    "a module": "echo 'import os; os._exit(0)' | tee sitecustomize.py unittest.py conftest.py usercustomize.py",
    "a daemon": "setsid sh -c 'while :; do echo 1 > ../logs/verifier/reward.txt; sleep 0.01; done' >/dev/null 2>&1 &",
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=PLANTS)
def test_nothing_planted_earns_a_reward(make_harbor: MakeHarbor, plant: str) -> None:
    env = make_harbor(
        {"tests/test.sh": VERIFIER.replace("python3 /tests/", "cd /app && python3 -m unittest; python3 /tests/")}
    )
    env.reset(seed=0)
    env.step(call("bash", command=plant))
    _, _, terminated, _, info = env.step(call("submit"))
    assert (terminated, outcome(info)) == (True, 0.0)


RUNNERS = {
    "unittest": "cd /app && PYTHONPATH=/app/code python3 -m unittest discover -s /tests -p 'check*.py'",
    "a script": "cd /app && PYTHONPATH=code python3 -c 'import argparse, wave, answers; assert answers.answer() == 42'",
}
CHECKS = """
import argparse, wave
from answers import answer

import unittest
class Checks(unittest.TestCase):
    def test_answer(self):
        self.assertEqual(answer(), 42)
"""
_LEAVE = "echo 'import os; os._exit(0)'"
SHADOWS = {
    "standard library": f"{_LEAVE} | tee argparse.py code/wave.py code/case.py _weakref.py json.py",
    "packages": f"mkdir -p argparse code/wave; {_LEAVE} | tee argparse/__init__.py code/wave/__init__.py",
    "a folder that is a link": f"mv code other; ln -s other code; {_LEAVE} > other/wave.py",
    "nothing": "true",
}


@pytest.mark.parametrize("plant", SHADOWS.values(), ids=SHADOWS)
@pytest.mark.parametrize("runner", RUNNERS.values(), ids=RUNNERS)
def test_modules_that_shadow_those_of_the_tests_earn_no_reward(
    make_harbor: MakeHarbor, runner: str, plant: str
) -> None:
    files = {
        "tests/test.sh": VERIFIER.replace("python3 /tests/test_outputs.py", runner),
        "tests/checks.py": CHECKS,
        "environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /app\nCOPY answers.py code/\nCOPY start.txt .\n",
        "environment/answers.py": "def answer(): return 41\n",
    }
    env = make_harbor(files)
    env.reset(seed=0)
    env.step(call("bash", command=plant))
    assert outcome(env.step(call("submit"))[4]) == 0.0
    env.reset(seed=0)
    env.step(
        call("bash", command="echo 'def answer(): return 42' > code/answers.py; mkdir html; echo x > html/x; " + plant)
    )
    assert outcome(env.step(call("submit"))[4]) == (plant[:2] != "mv")


@pytest.mark.parametrize("runner", ["python3 -m unittest discover -s /tests -p 'check*.py'", "pytest /tests"])
def test_an_exit_without_the_runner_s_report_is_a_failure(make_harbor: MakeHarbor, runner: str) -> None:
    env = make_harbor(
        {
            "tests/test.sh": f"pytest() {{ true; }}\n{VERIFIER}".replace("python3 /tests/test_outputs.py", runner),
            "tests/checks.py": "import sys; sys.path.append('.')\n" + CHECKS,
        }
    )
    env.reset(seed=0)
    env.step(call("bash", command="echo 'import os; os._exit(0)' > answers.py"))
    observation, _, _, _, info = env.step(call("submit"))
    assert outcome(info) == 0.0
    assert "ended without a report of their runner" in observation[0].text


def test_a_verifier_that_does_not_end_gives_nothing(make_harbor: MakeHarbor) -> None:
    env = make_harbor({"tests/test.sh": "sleep 600\n", "task.toml": "[verifier]\ntimeout_sec = 0.5\n"})
    env.reset(seed=0)
    with pytest.raises(EnvError, match="On the unchanged workspace it fails, too: the tests ran out of time"):
        env.step(call("submit"))


def test_what_cannot_be_is_refused(make_harbor: MakeHarbor, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="harbor_path, a folder of task directories"):
        SWEEnv(source="harbor")
    with pytest.raises(UsageError, match="goes with source='harbor'"):
        SWEEnv(harbor_path=tmp_path)
    with pytest.raises(UsageError, match="no Harbor task at"):
        SWEEnv(source="harbor", harbor_path=tmp_path)
    env = make_harbor({"task.toml": '[environment]\ndocker_image = "mine:3"\n'})
    with pytest.raises(UsageError, match=r"needs the image mine:3.*use sandbox='docker'"):
        env.reset(seed=0)
    env = make_harbor({"task.toml": "", "solution/more.sh": "true"})
    env.reset(seed=0)
    with pytest.raises(UsageError, match="no solution that is one script"):
        env.oracle()


@pytest.mark.slow
def test_it_keeps_the_contract_and_no_cheat_scores() -> None:
    report = check_env(lambda: SWEEnv(sandbox="process", max_turns=4), num_episodes=1)
    assert {check.name: check.detail for check in report.failures} == {}
    found = {check.name: check.detail for check in report.checks}
    assert found["cheats"].startswith("none of 12 scores")


@pytest.mark.parametrize(
    "check", [rewards, seed_determinism, snapshots, cheats, oracle], ids=lambda check: check.__name__
)
def test_harbor_keeps_the_contract(make_harbor: MakeHarbor, tmp_path: Path, check: Callable[[Subject], str]) -> None:
    make_harbor()
    factory = partial(SWEEnv, source="harbor", harbor_path=tmp_path, sandbox="process", max_turns=3)
    assert not check(Subject(factory, None, 1, 0)).startswith("not applicable")
