"""Harbor's verifiers: a grader that broke gives no reward, and nothing of a task directory is lost on its way."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from testkit.harbor import RUNGS, MakeTask, make_task, outcome, run

from agentgym.errors import EnvError
from agentgym.types import Message, ToolCall

__all__ = ["make_task"]

# ---------------------------------------------------------------------------------------------- broken verifiers

_NO_NETWORK = """
curl -LsSf https://astral.example/uv/install.sh | sh
uvx -p 3.13 -w pytest==8.4.1 pytest /tests/test_state.py -rA
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
BROKEN = {
    "a program that is missing": (
        "set -e\nno_such_program_xyz --check /app\necho 1 > /logs/verifier/reward.txt",
        "no reward",
    ),
    "an empty reward": (": > /logs/verifier/reward.txt", "empty reward.txt"),
    "a reward that is no number": ("echo PASS > /logs/verifier/reward.txt", "no number"),
    "a reward that is not finite": ("echo nan > /logs/verifier/reward.txt", "no finite number"),
    "an infinite reward": ("echo '{\"reward\": 1e999}' > /logs/verifier/reward.json", "no finite number"),
    "a text in JSON": ('echo \'{"reward": "1"}\' > /logs/verifier/reward.json', "no finite number"),
    "no value in JSON": ("echo '{}' > /logs/verifier/reward.json", "without a value"),
    "half a JSON": ("echo '{\"rew' > /logs/verifier/reward.json", "no number"),
    "a broken JSON beside a text": (
        "echo '{' > /logs/verifier/reward.json; echo 1 > /logs/verifier/reward.txt",
        "no number",
    ),
    "a folder": ("mkdir /logs/verifier/reward.txt", "cannot be read"),
    "an interpreter that is missing": ("#!/no/such/interpreter\necho 1 > /logs/verifier/reward.txt", "no reward"),
    "a syntax error": ("if then\n", "no reward"),
    "a check that stops": ("set -e\npython3 /tests/gone.py\necho 1 > /logs/verifier/reward.txt", "no reward"),
    "packages of a network": (_NO_NETWORK, "without a report of their runner"),
    "a runner that is not installed": (
        "python3 -m pytest_of_another_image -m pytest /tests && echo 1 > /logs/verifier/reward.txt "
        "|| echo 0 > /logs/verifier/reward.txt",
        "without a report of their runner",
    ),
}


@pytest.mark.filterwarnings("ignore:.*loads from a network")
@pytest.mark.parametrize("broken", BROKEN)
def test_a_verifier_that_broke_gives_no_reward(make_task: MakeTask, broken: str) -> None:
    script, words = BROKEN[broken]
    env = make_task({"tests/test.sh": script})
    with pytest.raises(EnvError, match=words):
        outcome(env)


@pytest.mark.parametrize("rung", RUNGS)
def test_a_verifier_that_broke_gives_no_reward_on_any_rung(make_task: MakeTask, rung: str) -> None:
    env = make_task({"tests/test.sh": BROKEN["a program that is missing"][0]}, sandbox=rung)
    with pytest.raises(EnvError, match="has a broken verifier"):
        outcome(env)


_UNGUARDED = """
set -e
cd /app
python3 -c 'import work'
if python3 -c 'import work; assert work.answer() == 42'; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
_IF_FILE = """
if [ -f /app/hello.txt ]; then
    python3 -m unittest discover -s /tests -p 'check*.py' && echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""


@pytest.mark.parametrize(
    "command",
    [
        "echo 'import os, signal; os.kill(os.getppid(), signal.SIGKILL)' > work.py",
        "echo 'raise SystemExit(3)' > work.py",
        "echo 'def answer(): return 41' > work.py",
        "rm work.py",
    ],
)
def test_work_that_ends_a_sound_verifier_earns_nothing(make_task: MakeTask, command: str) -> None:
    files = {"tests/test.sh": _UNGUARDED, "environment/work.py": "def answer(): return 1\n"}
    env = make_task(files | {"environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /app\nCOPY work.py .\n"})
    assert outcome(env, command)[0] == 0.0
    assert outcome(env, "echo 'def answer(): return 42' > work.py")[0] == 1.0


@pytest.mark.parametrize(
    ("is_works_fault", "script"), [(True, "[ ! -f /app/loop ] || sleep 600"), (False, "sleep 600")]
)
def test_tests_that_run_out_of_time_are_graded_only_if_the_work_is_why(
    make_task: MakeTask, is_works_fault: bool, script: str
) -> None:
    script += "\necho 0 > /logs/verifier/reward.txt\n"
    env = make_task({"tests/test.sh": script, "task.toml": "[verifier]\ntimeout_sec = 5.0\n"})
    if is_works_fault:
        assert outcome(env, "touch loop")[0] == 0.0
    else:
        with pytest.raises(EnvError, match="ran out of time"):
            outcome(env, "touch loop")


def test_a_runner_that_was_not_needed_is_not_missed(make_task: MakeTask) -> None:
    checks = "import unittest\nclass T(unittest.TestCase):\n    def test(self): assert open('hello.txt').read()\n"
    env = make_task({"tests/test.sh": _IF_FILE, "tests/checks.py": checks})
    assert outcome(env, "true")[0] == 0.0
    assert outcome(env)[0] == 1.0


@pytest.mark.parametrize(
    ("script", "expected", "raw"),
    [
        ("echo 1.0 > /logs/verifier/reward.json", 1.0, {"reward": 1.0}),
        ('echo \'{"accuracy": 1.0, "speed": 0.8}\' > /logs/verifier/reward.json', 0.9, {"accuracy": 1.0, "speed": 0.8}),
        ('echo \'{"reward": 0.5, "cost": 7}\' > /logs/verifier/reward.json', 0.5, {"reward": 0.5, "cost": 7.0}),
        ("echo true > /logs/verifier/reward.json; echo 0 > /logs/verifier/reward.txt", 1.0, {"reward": 1.0}),
        ("echo -2 > /logs/verifier/reward.txt", 0.0, {"reward": -2.0}),
        ("printf ' 0.25 ' > /logs/verifier/reward.txt", 0.25, {"reward": 0.25}),
        ("#!/usr/bin/env python3\nopen('/logs/verifier/reward.txt', 'w').write('1')", 1.0, {"reward": 1.0}),
    ],
)
def test_rewards_that_harbor_takes(make_task: MakeTask, script: str, expected: float, raw: dict[str, float]) -> None:
    reward, info = outcome(make_task({"tests/test.sh": script}, outcome="share"))
    assert (reward, info["harbor_rewards"]) == (expected, raw)


def test_a_solution_that_goes_to_another_folder_finds_the_images(make_task: MakeTask) -> None:
    env = make_task({"solution/solve.sh": "cd /tmp\necho hello > /app/hello.txt\n"})
    env.reset(seed=0)
    total = 0.0
    while not env.episode.is_over:
        total += sum(part.value for part in env.step(env.oracle())[4]["reward_parts"] if part.name == "tests_passed")
    assert total == 1.0


def test_scripts_that_load_packages_are_named(make_task: MakeTask) -> None:
    env = make_task(
        {"tests/test.sh": "#!/bin/bash\n# pip install x\napt-get install -y curl\necho 1 > /logs/verifier/reward.txt\n"}
    )
    with pytest.warns(UserWarning, match=r"test\.sh, line 3 loads from a network"):
        env.reset(seed=0)


# ------------------------------------------------------------------------------------------- what a task brings along

_SHOWS = 'echo "[$GREETING] [$PLACE] [$LEVEL] [$MODE] [$QUIET]"; tool; cat link.txt'
_WHOLE: dict[str, str] = {
    "task.toml": """
[environment.env]
LEVEL = "${HOST_LEVEL:-7}"
[verifier.env]
MODE = "${JUDGE_MODE}"
[solution.env]
WORD = "hello /app"
""",
    "environment/Dockerfile": """
ARG BASE=agentgym-sandbox
FROM ${BASE}:1
ENV ROOT_DIR=/app \\
    # what to say
    GREETING='good day'
WORKDIR $ROOT_DIR
ENV PATH="/app/bin:$PATH" PLACE="${ROOT_DIR}/data" QUIET=${QUIET:-yes}
COPY . ./
""",
    "environment/.dockerignore": "*\n!bin\n!link.txt\n!kept\nkept/*.tmp\n",
    "environment/secret.txt": "the answer",
    "environment/kept/a.txt": "a",
    "environment/kept/b.tmp": "b",
    "environment/bin/tool": "#!/bin/sh\necho tool ran\n",
    "tests/helper": '#!/bin/sh\ntest "$MODE" = strict && test "$GREETING $PLACE" = "good day /app/data" && tool\n',
    "tests/test.sh": "cd /logs/verifier; echo 0 > reward.txt\n/tests/helper && echo 1 > reward.txt\n",
    "solution/solve.sh": 'echo "$WORD" > hello.txt\n',
}


@pytest.mark.parametrize("rung", RUNGS)
def test_variables_modes_and_links_reach_the_agent_and_the_tests(
    make_task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    monkeypatch.setenv("JUDGE_MODE", "strict")
    monkeypatch.delenv("HOST_LEVEL", raising=False)
    env = make_task(_WHOLE, executable=("environment/bin/tool", "tests/helper"), sandbox=rung)
    (tmp_path / "hello/environment/link.txt").symlink_to("kept/a.txt")
    env.reset(seed=0)
    said = run(env, _SHOWS)
    assert said == "[good day] [/workspace/data] [7] [] [yes]\ntool ran\na", (
        "the tests' own variables are not the agent's"
    )
    assert run(env, "find . -type f | sort") == "./bin/tool\n./kept/a.txt"
    env.step(env.oracle())
    assert run(env, "cat hello.txt") == "hello /workspace"
    info = env.step(Message("assistant", "", (ToolCall("submit", {}),)))[4]
    assert info["success"]


def test_a_variable_that_the_machine_lacks_is_named_before_the_episode(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_MODE", raising=False)
    env = make_task({"task.toml": '[verifier.env]\nMODE = "${JUDGE_MODE}"\n'})
    with pytest.raises(ValueError, match=r"MODE is \$\{JUDGE_MODE\}, and JUDGE_MODE is not set"):
        env.reset(seed=0)


def test_a_copied_mode_is_that_of_copy_chmod(make_task: MakeTask, tmp_path: Path) -> None:
    files = {
        "environment/Dockerfile": "FROM agentgym-sandbox:1\nWORKDIR /app\nCOPY --chmod=700 a.sh ./\nCOPY b.sh b\n",
        "environment/a.sh": "echo a",
        "environment/b.sh": "echo b",
    }
    env = make_task(files)
    env.reset(seed=0)
    assert run(env, "stat -c '%a %n' a.sh b") == "700 a.sh\n644 b"
    assert not stat.S_IMODE(os.stat(tmp_path / "hello/environment/a.sh").st_mode) & 0o111
