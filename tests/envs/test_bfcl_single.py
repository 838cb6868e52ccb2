"""BFCL's single-turn data and checker, played through the adapter; skipped where bfcl-eval is not installed."""

from __future__ import annotations

import sys

import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.bfcl_single import CATEGORIES, BFCLSingleEnv
from agentgym.errors import ResetNeededError, UnknownNameError, UsageError
from agentgym.evals.suites import load_suite, open_suite
from agentgym.types import MalformedCall, Message, Task, ToolCall

NEEDED = "needs the package bfcl-eval (the extra bfcl, or pip install --no-deps bfcl-eval) and mpmath"
pytest.importorskip("bfcl_eval", reason=NEEDED)
pytest.importorskip("mpmath", reason=NEEDED)

REFUSED_BY_BFCL = {
    "parallel_multiple_26",  # the answer has an argument that the function does not
    "live_simple_106-63-0",  # required arguments without a right value
    "live_simple_112-68-0",
    "live_multiple_862-181-3",  # an argument that the function does not have
    "live_multiple_964-207-0",  # a required argument is not among the answers
}


def outcome(env: BFCLSingleEnv, name: str, *calls: ToolCall, text: str = "") -> float:
    env.reset(options={"task": name})
    _, reward, terminated, _, info = env.step(Message("assistant", text, calls))
    assert terminated and info["success"] == (reward == 1.0)
    return float(reward)


@pytest.mark.parametrize("category", CATEGORIES)
def test_right_calls_score_one(category: str) -> None:
    env = BFCLSingleEnv(category=category, num_train=0)
    wrong = set()
    for task in env.tasks("test"):
        env.reset(options={"task": task.id})
        assert env.task_type == category
        if not env.step(env.oracle())[4]["success"]:
            wrong.add(task.id)
    assert wrong == {name for name in REFUSED_BY_BFCL if name in {task.id for task in env.tasks("test")}}


def test_wrong_calls_score_nothing() -> None:
    env = BFCLSingleEnv(num_train=0)
    name, tool = "simple_python_0", "calculate_triangle_area"
    right = {"base": 10, "height": 5}
    assert outcome(env, name, ToolCall(tool, right)) == 1.0
    assert outcome(env, name, ToolCall(tool, {**right, "unit": "units"})) == 1.0, "a default may be spelt out"
    assert outcome(env, name, ToolCall(tool, {**right, "unit": "miles"})) == 0.0
    assert outcome(env, name, ToolCall(tool, {"base": 10})) == 0.0, "an argument is missing"
    assert outcome(env, name, ToolCall(tool, {"base": "10", "height": 5})) == 0.0, "of another type"
    assert outcome(env, name, ToolCall("area", right)) == 0.0
    assert outcome(env, name, ToolCall(tool, right), ToolCall(tool, right)) == 0.0, "one call is asked for"
    assert outcome(env, name, text="25") == 0.0
    env.reset(options={"task": name})
    broken = Message("assistant", "tri(", (MalformedCall((0, 4), "no end", "tri("),))
    _, reward, terminated, _, info = env.step(broken)
    assert (reward, terminated, info["is_valid"], info["success"]) == (0.0, True, False, False)


def test_where_no_function_fits_words_are_right() -> None:
    env = BFCLSingleEnv(category=["irrelevance", "live_relevance"], num_train=0)
    assert outcome(env, "irrelevance_0", text="No function can do that.") == 1.0
    assert outcome(env, "irrelevance_0", ToolCall(env.tools[0].name, {})) == 0.0
    relevant = next(task.id for task in env.tasks("test") if task.id.startswith("live_relevance"))
    assert outcome(env, relevant, text="I do not know.") == 0.0
    assert outcome(env, relevant, ToolCall(env.tools[0].name, {})) == 1.0, "any call, as in BFCL"


def test_parallel_calls_count_in_any_order() -> None:
    env = BFCLSingleEnv(category="parallel", num_train=0)
    wanted = (("Maroon 5", 15), ("Taylor Swift", 20))
    play = [ToolCall("spotify_play", {"artist": who, "duration": minutes}) for who, minutes in wanted]
    assert {tool.name for tool in env.tools} == {"spotify_play"}, "a dot in a name is an underscore"
    assert outcome(env, "parallel_0", *play) == 1.0
    assert outcome(env, "parallel_0", play[0]) == 0.0


def test_the_checker_comes_without_the_clients_of_providers() -> None:
    outcome(BFCLSingleEnv(), "simple_python_0")
    assert "bfcl_eval.constants.model_config" not in sys.modules or "anthropic" in sys.modules


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="simple_python"):
        BFCLSingleEnv(category="simple_pyton")
    with pytest.raises(UsageError, match="num_train"):
        BFCLSingleEnv(num_train=-1)
    env = BFCLSingleEnv(category=["multiple", "parallel"], num_train=50)
    assert [len(env.tasks(split)) for split in ("train", "test")] == [100, 300]
    few = BFCLSingleEnv(category="live_parallel")
    assert [len(few.tasks(split)) for split in ("train", "test")] == [8, 8]
    with pytest.raises(UnknownNameError, match="split"):
        env.tasks("valid")
    with pytest.raises(ResetNeededError):
        env.state_key()
    with pytest.raises(UsageError, match="no task 'x'"):
        env.reset(options={"task": Task(id="x", split="test", seed=0, data={"problem": "x"})})


def test_the_suites_hold_all_tasks() -> None:
    for name, size in (("bfcl-single", 1240), ("bfcl-live", 2251)):
        assert sum(len(part.tasks) for part in open_suite(load_suite(name)).parts) == size


@pytest.mark.parametrize("category", ["simple_python", "live_parallel_multiple"])
def test_the_contract_is_kept(category: str) -> None:
    report = check_env(lambda: BFCLSingleEnv(category=category), num_episodes=1)
    assert report.passed, report.failures


def test_doing_nothing_wins_where_no_function_fits() -> None:
    report = check_env(lambda: BFCLSingleEnv(category="irrelevance"), num_episodes=1)
    assert [failed.name for failed in report.failures] == ["no-op policy"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No function here can do that.", 1.0),
        ("I know NAME, but it does not fit (NAME has no such argument).", 1.0),
        ('<tool_call>\n<tool_call name="NAME" arguments={"a": 1}/>\n</tool_call>', 0.0),
        ('<tool_call>{"name": "NAME", "arguments": {"a": 1', 0.0),
        ("[NAME(a=1, b=", 0.0),
        ("  NAME (a=1)", 0.0),
        ('```json\n{"name": "NAME", "parameters": {}}\n```', 0.0),
        ("<function=NAME><parameter=a>1</parameter></function>", 0.0),
        ("[TOOL_CALLS][{", 0.0),
        ('functools[{"n', 0.0),
    ],
)
def test_a_call_that_cannot_be_read_is_no_abstention(text: str, expected: float) -> None:
    env = BFCLSingleEnv(category="irrelevance", num_train=0)
    env.reset(seed=0)
    for name in {env.tools[0].name, env._current().functions[0]["name"]}:
        env.reset(seed=0)
        _, reward, _, _, info = env.step(Message("assistant", text.replace("NAME", name)))
        assert (reward, info["is_valid"]) == (expected, expected == 1.0)
