"""What an agent's own calls use up is evidence: a tool error or a failed submission, and no failure of the rollout."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from agentgym.envs.code.sandbox_env import LIMITS
from agentgym.envs.code.swe import SWEEnv
from agentgym.rollout.request import EpisodeLimits
from agentgym.sandboxes import cgroups, namespaces
from agentgym.types import Message, ToolCall

NO_OOM = namespaces.why_not() or cgroups.why_not()
# Small processes hold the memory and begin when the first one is small, too: the kernel ends the largest, the worker.
SPENDS_MEMORY = """
import os
open("/proc/self/oom_score_adj", "w").write("0")
wait, go = os.pipe()
for _ in range(40):
    if os.fork() == 0:
        os.close(go), os.read(wait, 1), os.dup2(os.memfd_create("x"), 1)
        os.execvp("sh", ["sh", "-c", "head -c 60000000 /dev/zero; sleep 60"])
os.execvp("sleep", ["sleep", "60"])
"""


def turn(*calls: tuple[str, dict[str, Any]]) -> Message:
    return Message("assistant", "", tuple(ToolCall(name, arguments) for name, arguments in calls))


def bash(command: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command}


SUBMIT: tuple[str, dict[str, Any]] = ("submit", {})


@pytest.fixture(scope="module")
def env() -> Iterator[SWEEnv]:
    made = SWEEnv(sandbox="process", tool_timeout_s=0.6)
    made.turn_timeout_s = 1.0
    yield made
    made.close()


def errors(observation: Any) -> list[str]:
    return [message.result.error_type for message in observation if message.result is not None]


def test_the_calls_of_a_turn_share_its_time(env: SWEEnv) -> None:
    env.reset(seed=0)
    observation, _, terminated, truncated, info = env.step(turn(*[bash("sleep 29")] * 4, bash("echo late")))
    assert errors(observation) == ["timeout"] * 5
    assert "killed: still running after 0.6 s" in observation[0].text
    assert "killed: the calls of this turn have used up its time" in observation[1].text
    assert "this one was not run" in observation[-1].text
    assert (terminated, truncated, info["is_valid"]) == (False, False, False)
    observation = env.step(turn(bash("echo on")))[0]
    assert observation[0].text == "on"
    terminated = env.step(turn(*[bash("sleep 29")] * 4, SUBMIT))[2]
    assert terminated  # handing in is not refused


def test_a_rollout_waits_for_what_an_environment_limits_itself(env: SWEEnv) -> None:
    assert EpisodeLimits().of(env).step_timeout_s > SWEEnv.turn_timeout_s + LIMITS.wall_s
    assert EpisodeLimits(step_timeout_s=1000.0).of(env).step_timeout_s == 1000.0


@pytest.mark.parametrize(
    "command",
    [
        "touch \"$(printf '\\377')\" \"$(printf 'a\\nb')\"; ln -s / root; mkfifo pipe",
        'python3 -c \'import os\nfor _ in range(1100): os.mkdir("deep"); os.chdir("deep")\'',
        "i=0; while [ $i -lt 300 ]; do mkdir $i; chmod 000 $i; i=$((i+1)); done; chmod 000 .",
        "chmod 000 .",  # the line above may be ended by its time before it comes to this
        "for f in socket json decimal tarfile weakref selectors; do echo 'raise SystemExit(1)' > $f.py; done",
        "truncate -s 64M sparse; rm -rf *; ln -s /dev/zero solution.py",
    ],
    ids=["names", "depth", "modes", "closed", "modules", "links"],
)
def test_what_lies_in_the_workspace_fails_no_rollout(env: SWEEnv, command: str) -> None:
    env.reset(seed=0)
    env.step(turn(bash(command)))
    _, _, terminated, _, info = env.step(turn(SUBMIT))
    assert (terminated, info["success"]) == (True, False)


@pytest.mark.skipif(bool(NO_OOM) or os.getuid() != 0, reason=NO_OOM or "needs root for control groups")
def test_a_sandbox_that_was_spent_is_replaced_and_the_work_goes_on() -> None:
    env = SWEEnv(sandbox="namespaces", tool_timeout_s=10.0, max_sandboxes=2)
    try:
        env.reset(seed=0)
        env.step(turn(bash("echo kept > kept")))
        # without exec, the shell would be the first to be killed, and its death may end the call in time
        spend = f"exec python3 -c '{SPENDS_MEMORY}'"
        observation, _, terminated, _, _ = env.step(turn(bash(spend), bash("echo gone")))
        assert (errors(observation), terminated) == (["sandbox_spent", "sandbox_spent"], False)
        assert env.step(turn(bash("cat kept")))[0][0].text == "kept"
        path = next(path for path in env.assignment.files if env.assignment.is_editable(path))
        _, _, terminated, _, info = env.step(turn(("write_file", {"path": path, "content": SPENDS_MEMORY}), SUBMIT))
        assert (terminated, info["success"]) == (True, False)
    finally:
        env.close()


def test_an_agent_is_told_that_its_workspace_counts_as_empty(env: SWEEnv) -> None:
    env.reset(seed=0)
    hoarded, *_ = env.step(turn(bash("for i in 1 2 3 4 5; do truncate -s 60M sparse$i; done")))
    assert "Warning: the files of the workspace have more than" in hoarded[-1].text
    assert "counts as empty as long as it is so" in hoarded[-1].text
    key = env.state_key()
    tidied, *_ = env.step(turn(bash("rm sparse*")))
    assert "Warning" not in tidied[-1].text
    assert env.state_key() != key
