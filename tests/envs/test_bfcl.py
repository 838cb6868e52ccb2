"""BFCL's own data and classes, played through the adapter; skipped where bfcl-eval is not installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentgym.check import check_env
from agentgym.envs.adapters.bfcl import BFCLEnv
from agentgym.envs.adapters.bfcl_data import CATEGORIES, call_of, functions_of, problems, read_data
from agentgym.errors import ResetNeededError, UnknownNameError, UsageError
from agentgym.types import Message, ToolCall

NEEDED = "needs the package bfcl-eval (the extra bfcl, or pip install --no-deps bfcl-eval) and mpmath"
bfcl_eval = pytest.importorskip("bfcl_eval", reason=NEEDED)
pytest.importorskip("mpmath", reason=NEEDED)


def end_of(env: BFCLEnv, name: str, dropped: tuple[int, int] | None = None) -> float:
    """What the gold calls are worth, without the call ``dropped`` (user's turn, place) if one is given."""
    problem = problems(name.rpartition("_")[0].removeprefix("multi_turn_"))[name]
    env.reset(options={"task": name})
    terminated, outcome = False, 0.0
    while not terminated:
        action = env.oracle()
        users_turn = env._world.users_turn
        if dropped is not None and users_turn == dropped[0] and action.calls:
            kept = tuple(call for place, call in enumerate(action.calls) if place != dropped[1])
            if not kept:  # nothing is left to call in this turn
                env._world.has_called = False
                action = Message("assistant", "Done.")
            else:
                action = Message("assistant", "", kept)
        _, reward, terminated, _, info = env.step(action)
        outcome += reward
        assert terminated == ("success" in info) and problem.id == name
    return outcome


@pytest.mark.parametrize("category", CATEGORIES)
def test_gold_calls_score_one(category: Any) -> None:
    env = BFCLEnv(category=category, num_train=0)
    tasks = env.tasks("test")
    assert len(tasks) == 200
    assert [task.id for task in tasks if end_of(env, task.id) != 1.0] == []


def test_all_functions_of_the_classes_are_offered_as_bfcl_does() -> None:
    """The data name ``excluded_function`` for some tasks, and the official code never reads it."""
    official = Path(bfcl_eval.__file__).parent.rglob("*.py")
    assert [path.name for path in official if "excluded_function" in path.read_text(encoding="utf-8")] == []
    excluding = [entry for entry in read_data("BFCL_v4_multi_turn_base.json") if entry.get("excluded_function")]
    assert len(excluding) == 18
    env = BFCLEnv(category="base", num_train=0)
    for entry in excluding:
        env.reset(options={"task": entry["id"]})
        documented = {name for owner in entry["involved_classes"] for name in functions_of(owner)}
        assert {tool.name for tool in env.tools} == documented >= set(entry["excluded_function"])


def test_one_dropped_call_scores_zero() -> None:
    env = BFCLEnv(num_train=0)
    for number, task in enumerate(env.tasks("test")):
        problem = problems("base")[task.id]
        places = [(turn, place) for turn, calls in enumerate(problem.answers) for place in range(len(calls))]
        turn, place = places[(7 * number) % len(places)]
        assert end_of(env, task.id, (turn, place)) == 0.0, (task.id, turn, place)


def test_a_verdict_is_bfcls_checkers() -> None:
    """The package's whole checker, on the same calls, with one of them wrong or none."""
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    env = BFCLEnv(num_train=0)
    verdicts = set()
    for number, task in enumerate(env.tasks("test")[:40]):
        problem = problems("base")[task.id]
        gold = [list(calls) for calls in problem.answers]
        given = [list(calls) for calls in gold]
        if number % 2:
            changed = given[number % len(given)]
            if changed:
                changed.pop(number % len(changed))
        entry = {"initial_config": problem.config, "involved_classes": problem.classes, "id": task.id}
        steps = [[calls] if calls else [] for calls in given]
        expected = multi_turn_checker(steps, gold, entry, "multi_turn_base", f"test{number}")["valid"]
        env.reset(options={"task": task})
        terminated, outcome = False, 0.0
        while not terminated:
            calls = given[env._world.users_turn]
            if calls and not env._world.has_called:
                env.step(Message("assistant", "", tuple(call_of(text, env._world.instances) for text in calls)))
            _, outcome, terminated, _, _ = env.step("That is all.")
        assert outcome == float(expected), task.id
        verdicts.add(expected)
    assert verdicts == {True, False}


def test_the_users_requests_and_functions_come_in_turn() -> None:
    env = BFCLEnv(category="miss_func", num_train=0)
    observation, _ = env.reset(options={"task": "multi_turn_miss_func_1"})
    assert observation[0].text.startswith("I am alex. Check if the current directory is under my name")
    names = {spec.name for spec in env.tools}
    assert {"ls", "cp"} <= names and "mv" not in names
    env.step("ls: true")
    assert env.step("Here you are.")[0][0].text.startswith("Go to workspace directory and move")
    said = env.step("I have no function that moves files.")[0][0].text
    assert said.startswith("There are more functions now") and '"name": "mv"' in said
    env.step("cd: workspace")
    move = ToolCall("mv", {"source": "log.txt", "destination": "archive"})
    assert env.step(Message("assistant", "", (move,)))[4]["is_valid"]


def test_a_turn_of_too_many_steps_and_a_turn_of_none_fail() -> None:
    env = BFCLEnv(max_steps=3)
    env.reset(options={"task": 0})
    for _ in range(3):
        assert not env.step("pwd")[2]
    _, reward, terminated, _, info = env.step("pwd")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    env.reset(options={"task": 0})
    _, reward, terminated, _, info = env.step("I would rather not.")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


def test_what_an_api_cannot_do_is_an_error_for_the_model() -> None:
    env = BFCLEnv()
    env.reset(options={"task": 0})
    before = env.state_key()
    for text, error_type in (
        ("cd: nowhere", None),  # the API says so itself
        ("cd: place=nowhere", "tool_error"),
        ("fly: home", "unknown_tool"),
    ):
        call = env.parse_action(text).calls or (ToolCall("fly", {}),)
        (message,), _, _, _, _ = env.step(Message("assistant", text, call))
        assert message.result is not None and message.result.error_type == error_type
    assert env.state_key() != before  # something was called
    (message,), _, _, _, _ = env.step(Message("assistant", "", (ToolCall("power", {"base": 9, "exponent": 10**9}),)))
    assert message.result is not None and message.result.is_error


def test_states_are_told_apart_by_what_is_in_them() -> None:
    env = BFCLEnv()

    def things() -> str:  # without what has been said, which is of the state since it is graded
        return str(json.loads(env.state_key())[3])

    env.reset(options={"task": 0})
    env.step("cd: document")
    in_folder = env.state_key()
    seen = [things()]
    for call in ("cd: ..", "cd: document", "touch: new.txt", "rm: new.txt"):
        env.step(call)
        seen.append(things())
    assert seen[0] == seen[2] == seen[4] and len(set(seen)) == 3
    env.reset(options={"task": 0})
    env.step("cd: document")
    assert env.state_key() == in_folder
    snapshot = env.snapshot()
    assert snapshot.native is not None
    env.step("touch: other.txt")
    env.restore(snapshot)
    assert env.state_key() == in_folder


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="miss_func"):
        BFCLEnv(category="miss_funk")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="num_train"):
        BFCLEnv(num_train=201)
    env = BFCLEnv(num_train=150)
    assert [len(env.tasks(split)) for split in ("train", "test")] == [150, 50]
    with pytest.raises(UnknownNameError, match="split"):
        env.tasks("valid")
    with pytest.raises(ResetNeededError):
        env.state_key()


@pytest.mark.parametrize("category", ["base", "miss_func"])
def test_the_contract_is_kept(category: Any) -> None:
    report = check_env(lambda: BFCLEnv(category=category), num_episodes=1)
    assert report.passed, report.failures
