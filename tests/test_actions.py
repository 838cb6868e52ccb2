"""What step takes and what tools return: the forms that authors and callers have them in."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

import gymnasium
import numpy as np
import pytest
from pydantic import BaseModel

import agentgym
from agentgym import Env, Message, Task, ToolCall, ToolEnv, tool
from agentgym.call_syntax import format_call, parse_calls
from agentgym.env.actions import as_message
from agentgym.errors import EnvError, UnknownNameError, UsageError
from agentgym.tool import random_call, result_of, tool_of
from agentgym.types import ImagePart, MalformedCall, RewardRole, TextPart

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==")
IMAGE = ImagePart(base64.b64encode(PNG).decode())


class Point(BaseModel):
    x: int
    y: int = 0


@dataclass
class Parcel:
    to: Point
    on: date
    grams: float


class Desk(ToolEnv):
    """Counts."""

    max_turns = 9

    def start(self, task: Task) -> str:
        self.count = 0
        return "Count."

    @tool
    def add(self, number: int) -> str:
        """Add a number."""
        self.count += number
        self.award(0.5, "step", role="process")
        return str(self.count)

    @tool
    def move(self, to: Point) -> str:
        """Go there."""
        return f"{to.x} {to.y}"

    @tool
    def look(self) -> Any:
        """Look."""
        return ["a desk", IMAGE, {"drawers": 2}]

    @tool
    def win(self) -> str:
        """Win."""
        self.award(1.0, role="outcome")
        self.finish()
        return "Won."


def started() -> Desk:
    env = Desk()
    env.reset(seed=0)
    return env


CALL = {"id": "c7", "type": "function", "function": {"name": "add", "arguments": '{"number": 2}'}}


@pytest.mark.parametrize(
    "action",
    [
        "add: 2",
        Message("assistant", calls=(ToolCall("add", {"number": 2}),)),
        ToolCall("add", {"number": 2}),
        [ToolCall("add", {"number": 1}), ToolCall("add", {"number": 1})],
        {"name": "add", "arguments": {"number": 2}},
        CALL,
        [CALL],
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
    ],
    ids=str,
)
def test_step_takes_calls_in_every_form(action: Any) -> None:
    env = started()
    assert env.step(action)[0][-1].text == "2"
    assert env.step(action)[0][-1].text == "4"


def test_arguments_that_are_not_json_are_the_policys_mistake() -> None:
    env = started()
    observation, _, _, _, info = env.step({"name": "add", "arguments": "{number: 2"})
    assert "the arguments of add cannot be read: not JSON" in observation[0].text
    assert not info["is_valid"]
    assert isinstance(env.snapshot().actions[0].calls[0], MalformedCall)


@pytest.mark.parametrize("action", [None, 3, {"nam": "add"}, [3], {"role": "user", "content": "x"}, b"add: 2"])
def test_other_actions_are_refused_with_what_is_expected(action: Any) -> None:
    env = started()
    with pytest.raises(UsageError, match="an action is a"):
        env.step(action)
    assert env.turn == 0


def test_roles_may_be_words() -> None:
    env = started()
    assert env.step("add: 1")[4]["reward_parts"][0].role is agentgym.RewardRole.PROCESS is RewardRole.PROCESS
    _, reward, terminated, _, info = env.step("win")
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    with pytest.raises(EnvError, match="unknown reward role 'outcom'; did you mean 'outcome'"):
        env.award(1.0, role="outcom")


def test_unknown_options_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="option of Desk's reset: 'tasks'; did you mean 'task'"):
        Desk().reset(options={"tasks": 3})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is", "as it is"),
        (3, "3"),
        (None, "None"),
        ({"a": [1, 2.5, None, True]}, '{"a":[1,2.5,null,true]}'),
        ([Point(x=1), Point(x=2, y=3)], '[{"x":1,"y":0},{"x":2,"y":3}]'),
        (Parcel(Point(x=1), date(2026, 11, 22), float("nan")), '{"to":{"x":1,"y":0},"on":"2026-11-22","grams":null}'),
        ({1: np.float32(0.5), "b": np.arange(2)}, '{"1":0.5,"b":[0,1]}'),
        ((1, "x"), '[1,"x"]'),
        ([], "[]"),
    ],
    ids=str,
)
def test_returned_values_become_text_or_json(value: Any, text: str) -> None:
    assert result_of(ToolCall("t"), value).content == text


@pytest.mark.parametrize("value", [object(), b"GIF89a", {"a": object()}])
def test_values_without_a_text_are_the_environments_failure(value: Any) -> None:
    with pytest.raises(EnvError, match="tool t"):
        result_of(ToolCall("t"), value)


def test_images_become_parts() -> None:
    observation = started().step("look")[0]
    (message,) = observation
    assert message.content == (TextPart('a desk\n{"drawers":2}'), IMAGE)
    assert message.result is not None and (message.result.content, message.result.images) == (message.text, ())
    assert result_of(ToolCall("t"), PNG).images == (IMAGE,)


def test_pil_images_become_parts() -> None:
    image = pytest.importorskip("PIL.Image").new("L", (1, 1))
    (part,) = result_of(ToolCall("t"), image).images
    assert base64.b64decode(part.png_base64).startswith(b"\x89PNG")


def test_nested_arguments_in_the_compact_syntax() -> None:
    env = started()
    assert env.step('move: {"x": 1, "y": 2}')[0][0].text == "1 2"
    assert env.step('move: to={"x": 4}')[0][0].text == "4 0"
    assert "to is not a JSON {x: integer, y?: integer}: 'here'" in env.step("move: here")[0][0].text
    call = ToolCall("move", {"to": {"x": 3, "y": 5}}, "0")
    assert parse_calls(format_call(call, env.tools), env.tools) == (call,)
    drawn = random_call(tool_of(Desk.move).spec, np.random.default_rng(0))
    assert tool_of(Desk.move).arguments(drawn)["to"] == Point(**drawn.arguments["to"])


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments_need_no_flags(mode: str) -> None:
    envs = gymnasium.make_vec("agentgym/Household-v0", num_envs=2, vectorization_mode=mode)
    try:
        alone = agentgym.make("agentgym/Household-v0")
        first, _ = envs.reset(seed=3)
        assert [first[0], first[1]] == [alone.reset(seed=seed)[0] for seed in (3, 4)]
        looked, *_ = envs.step(["look", "inventory"])
        assert looked[1] == alone.step("inventory")[0] != looked[0]
        assert first[1] != looked[1]  # what was returned before does not change
    finally:
        envs.close()


def test_human_rendering_prints_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    env: Env = agentgym.make("agentgym/Household-v0", render_mode="human")
    first, _ = env.reset(seed=0)
    assert env.render() is None
    looked = env.step("look")[0]
    assert capsys.readouterr().out == f"{first[0].text}\n{looked[0].text}\n"


def test_a_mapping_of_another_class_is_json() -> None:
    class Frozen(Mapping[str, int]):
        def __getitem__(self, key: str) -> int:
            return {"a": 1}[key]

        def __iter__(self) -> Any:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    assert json.loads(result_of(ToolCall("t"), Frozen()).content) == {"a": 1}


@pytest.mark.parametrize("empty", ["", "  ", "{}", "null", None, {}])
def test_empty_arguments_are_none(empty: Any) -> None:
    message = as_message({"name": "look", "arguments": empty}, lambda text: Message("assistant", text))
    assert message.calls == (ToolCall("look", {}, "0"),)


@pytest.mark.parametrize(
    ("call", "key"),
    [
        ({"name": "add", "args": {"number": 2}}, "args"),
        ({"name": "add", "number": 2}, "number"),
        ({"name": "add", "arguments": {"number": 2}, "n": 1}, "n"),
        ({"name": "add", "arguments": {}, "parameters": {"number": 2}}, "parameters"),
    ],
)
def test_a_key_that_would_be_lost_is_named(call: dict[str, Any], key: str) -> None:
    observation, _, _, _, info = started().step(call)
    assert repr(key) in observation[0].text and not info["is_valid"]
