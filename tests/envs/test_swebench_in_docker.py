"""A made-up repository in SWE-bench's schema, converted and played in an image of its own."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from testkit.swebench_rows import FILES, row, write_repository

from agentgym.envs.code.shared_pool import close_shared_pools
from agentgym.envs.code.swe import SWEEnv
from agentgym.envs.code.swebench import read_instances, write_harbor_task
from agentgym.types import Message, ToolCall

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    context = tmp_path_factory.mktemp("context")
    write_repository(context / "repository")
    (context / "Dockerfile").write_text("FROM agentgym-sandbox:1\nCOPY repository /testbed\n")
    image = f"agentgym-test-swebench:{uuid.uuid4().hex[:8]}"
    subprocess.run(["docker", "build", "-q", "-t", image, str(context)], check=True, capture_output=True)
    rows = context / "rows.jsonl"
    rows.write_text(json.dumps(row(context / "repository", image_name=image)) + "\n")
    (instance,) = read_instances(rows)
    write_harbor_task(instance, context / "tasks")
    yield context / "tasks"
    close_shared_pools(lambda kind: kind.image != image)
    subprocess.run(["docker", "rmi", "-f", image], check=False, capture_output=True)


@pytest.fixture
def env(tasks: Path) -> Iterator[SWEEnv]:
    made = SWEEnv(source="harbor", harbor_path=tasks, sandbox="docker", max_sandboxes=2)
    yield made
    made.close()


def handed_in(env: SWEEnv, *commands: str) -> tuple[bool, str]:
    """Return success and patch after some shell commands."""
    env.reset(options={"task": 0})
    for command in commands:
        env.step(Message("assistant", "", (ToolCall("bash", {"command": command}, "0"),)))
    _, _, terminated, _, info = env.step("submit")
    assert terminated
    return info["success"], info["patch"]


FIX = "sed -i 's#9 / 5#9 / 5 + 32#' src/scales/convert.py"


def test_the_gold_patch_resolves_it_and_the_start_does_not(env: SWEEnv) -> None:
    said = env.reset(options={"task": 0})[0][0].text
    assert "water freezes at 32" in said
    listed = env.step("bash: ls -A")[0][0].text.split()
    assert ".git" not in listed and {"src", "tests", "setup.cfg"} <= set(listed)
    _, _, is_over, _, info = env.step(env.oracle())
    while not is_over:
        _, _, is_over, _, info = env.step(env.oracle())
    assert info["success"]
    assert "+    return celsius * 9 / 5 + 32" in info["patch"] and ".agentgym.patch" not in info["patch"]
    assert handed_in(env) == (False, "")


def test_a_fix_of_the_agents_own_counts_and_half_of_one_does_not(env: SWEEnv) -> None:
    assert handed_in(env, FIX)[0]
    assert not handed_in(env, f"{FIX}; sed -i 's/273/274/' src/scales/convert.py")[0], "PASS_TO_PASS fails"
    assert not handed_in(env, "sed -i 's#9 / 5#9 / 5 + 33#' src/scales/convert.py")[0]
    assert not handed_in(env, "echo 'broken(' > src/scales/convert.py")[0]


def test_tests_of_the_agents_making_do_not_count(env: SWEEnv) -> None:
    easy = "def test_fahrenheit(): pass\ndef test_kelvin(): pass\n"
    assert not handed_in(env, f"printf '{easy}' > tests/test_convert.py")[0]
    assert handed_in(env, FIX, "rm tests/test_convert.py")[0], "the hidden tests are put in place"
    lie = "print('PASSED tests/test_convert.py::test_fahrenheit[0]'); import os; os._exit(0)"
    assert not handed_in(env, f'echo "{lie}" > conftest.py')[0], "the file is put back as it was"
    assert FILES["setup.cfg"].startswith("[tool:pytest]")
