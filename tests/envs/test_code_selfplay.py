"""Programs that the policy writes and reasons about: the rules, the two rewards, and faults of the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from agentgym.check.conformance import CHECKS
from agentgym.check.episodes import play
from agentgym.check.policies import oracle_action
from agentgym.check.subject import Subject
from agentgym.env.env import Env
from agentgym.envs.code.shared_pool import SandboxKind, SharedPool
from agentgym.envs.selfplay.code import LIMITS, CodeSelfPlayEnv
from agentgym.envs.selfplay.programs import REASONS, Program, check_program, flaw_of_text, read_arguments
from agentgym.envs.selfplay.roles import PROPOSER, VALID
from agentgym.errors import SandboxDeadError, UnknownNameError, UsageError
from agentgym.rollout.agent import Agent, ScriptedAgent
from agentgym.rollout.match import play_task
from agentgym.rollout.request import EpisodeLimits, RolloutRequest
from agentgym.types import Message, Status, Task, ToolCall, Trajectory

TASK = Task(id="t-0", split="train", seed=11, data={})
Policy = Callable[[CodeSelfPlayEnv], Message]
KIT = ("tool schemas", "order of calls", "rewards", "async path", "snapshots", "state keys", "cheats", "leaks")


def code_env(**arguments: Any) -> CodeSelfPlayEnv:
    return CodeSelfPlayEnv(sandbox="process", max_sandboxes=2, **arguments)


@pytest.fixture(scope="module")
def pool() -> Iterator[SharedPool]:
    opened = SharedPool(SandboxKind(backend="process", limits=LIMITS, max_open=1))
    yield opened
    opened.close()


@pytest.mark.parametrize("name", KIT)
def test_the_kit_finds_nothing_wrong(name: str) -> None:
    (check,) = (check for check in CHECKS if check.name == name)
    check.function(Subject(code_env, None, 1, 0))


@pytest.mark.parametrize("mode", ["deduction", "abduction"])
@pytest.mark.parametrize("opponent", ["self", "oracle"])
def test_the_oracle_proposes_and_solves(mode: str, opponent: str) -> None:
    env = code_env(mode=mode, opponent=opponent, level=3)
    for task in env.tasks("valid")[:3]:
        episode = play(env, oracle_action, task, np.random.default_rng(0))
        assert episode.is_success and episode.steps[-1].info["proposal"] == VALID, task
    env.close()


# ------------------------------------------------------------------------------------------------------- the rules

DOUBLE = "def f(x):\n    return 2 * x"


def test_a_valid_program_is_shown_without_comments_and_with_its_output(pool: SharedPool) -> None:
    code = "from math import gcd\n\ndef f(a, b):\n    # not 4\n    return [gcd(a, b), {'sum': (a + b, None)}]"
    found = check_program(pool, code, " 8, 12 ")
    assert isinstance(found, Program)
    assert (found.arguments, found.output, found.shown_arguments) == ((8, 12), [4, {"sum": (20, None)}], "8, 12")
    assert "#" not in found.code


BROKEN = {
    "too_long": ("def f(x):\n    return x" + " " * 2_000, "1"),
    "no_program": ("def g(x):\n    return x", "1"),
    "forbidden": ("import random\ndef f(x):\n    return random.random()", "1"),
    "bad_input": (DOUBLE, "open('x')"),
    "copied": ("def f(x): return x + 1  # mine", "1"),
    "failed": ("def f(x):\n    return x / 0", "1"),
    "bad_output": ("def f(x):\n    return {x}", "1"),
    "not_deterministic": ("def f(x):\n    return str(object())", "1"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_each_rule_refuses_a_program_that_breaks_it(reason: str, pool: SharedPool) -> None:
    code, given = BROKEN[reason]
    assert check_program(pool, code, given, example="def f(x):\n    return x + 1\n") == reason


@pytest.mark.parametrize(
    "code",
    [
        *("import os", "import os.path", "from os import path", "from . import x", "import math, sys"),
        *("open('/etc/passwd')", "eval('1')", "__import__('os')", "().__class__", "x = __builtins__"),
    ],
)
def test_modules_files_and_hidden_names_are_forbidden_anywhere(code: str) -> None:
    assert flaw_of_text(f"def f(x):\n    {code}\n    return x", "1") == "forbidden"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def f(x):\n    while True:\n        pass", "failed"),
        ("def f(x):\n    raise SystemExit(0)", "failed"),
        ("def f(x):\n    return f(x)", "failed"),
        ("def f(x):\n    return f", "failed"),
        ("def f(x):\n    return x * 1000", "bad_output"),
        ("def f(x):\n    return float('nan')", "bad_output"),
    ],
)
def test_programs_that_do_not_end_or_give_no_literal_are_mistakes_of_their_author(
    code: str, reason: str, pool: SharedPool
) -> None:
    assert check_program(pool, code, "'a'") == reason


@pytest.mark.parametrize("text", ["", "x", "f(1)", "{1}", "1 +", "(" * 300, "'" + "a" * 600 + "'"])
def test_inputs_that_are_no_literals_are_none(text: str) -> None:
    assert read_arguments(text) is None


# ----------------------------------------------------------------------------------------------- rewards in a match


def calling(name: str, **arguments: object) -> Policy:
    return lambda env: Message("assistant", "", (ToolCall(name, dict(arguments), "0"),))


def oracle(env: CodeSelfPlayEnv) -> Message:
    return env.oracle()


def match(env: CodeSelfPlayEnv, *policies: Policy) -> tuple[Trajectory, ...]:
    def make_agent(seat: Env, seed: int) -> Agent:
        return ScriptedAgent(lambda observation: policies[env.player](env))

    limits = EpisodeLimits(reset_timeout_s=60.0, step_timeout_s=120.0)
    return asyncio.run(play_task(env, RolloutRequest(task=TASK, make_agent=make_agent, limits=limits, seed=1)))


def rewards(played: tuple[Trajectory, ...]) -> list[dict[str, float]]:
    return [{part.name: part.value for turn in one.turns for part in turn.reward_parts} for one in played]


SQUARE = calling("propose", code="def f(x):\n    return x * x", input="-3")


@pytest.mark.parametrize(
    ("mode", "answer", "score"),
    [
        ("deduction", "9", 1.0),
        ("deduction", " 9 ", 1.0),
        ("deduction", "9.0", 0.0),
        ("deduction", "-3 * -3", 0.0),
        ("abduction", "-3", 1.0),
        ("abduction", "3", 1.0),
        ("abduction", "3.0", 0.0),
        ("abduction", "'a'", 0.0),
        ("abduction", "", 0.0),
    ],
)
def test_any_input_that_leads_to_the_output_is_right_and_the_proposer_earns_the_rest(
    mode: str, answer: str, score: float
) -> None:
    played = match(code_env(mode=mode), SQUARE, calling("answer", text=answer))
    assert rewards(played) == [{"unsolved": 1.0 - score}, {"answer": score}]
    assert [one.success for one in played] == [True, score == 1.0]


def test_the_solver_sees_the_program_and_either_its_input_or_its_output() -> None:
    said = [match(code_env(mode=mode), SQUARE, oracle)[1].observation[0].text for mode in ("deduction", "abduction")]
    assert said == [
        "What does f(-3) return?\ndef f(x):\n    return x * x",
        "Give arguments for which f returns 9.\ndef f(x):\n    return x * x",
    ]


def test_an_invalid_program_costs_its_author_and_reaches_nobody() -> None:
    played = match(code_env(invalid_penalty=0.5), calling("propose", code="import os", input="1"), oracle)
    assert rewards(played) == [{"invalid_proposal": -0.5}, {}]
    assert [one.status for one in played] == [Status.COMPLETED] * 2


@pytest.mark.parametrize("role", ["proposer", "solver"])
def test_a_sandbox_that_fails_is_no_reward_for_either_role(role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = code_env(mode="abduction")
    real = SharedPool.acquire

    def acquire(pool: SharedPool) -> Any:
        if role == "proposer" or env.player != PROPOSER:
            raise SandboxDeadError("the daemon is gone")
        return real(pool)

    monkeypatch.setattr(SharedPool, "acquire", acquire)
    played = match(env, SQUARE, oracle)
    assert [one.reward for one in played] == [None, None]
    assert any(one.status is Status.ENV_ERROR and "the daemon is gone" in str(one.error) for one in played)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="mode"):
        code_env(mode="induction")
    with pytest.raises(UsageError, match="level"):
        code_env(level=9)
