"""The environment around the household: tools and text, what may be typed, arguments, the ends of episodes."""

from __future__ import annotations

import asyncio
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from agentgym.envs.household.commands import TOOLS, call_of, parse_command
from agentgym.envs.household.env import HouseholdEnv
from agentgym.errors import ResetNeededError, UsageError
from agentgym.registry import make
from agentgym.tool import CONTROL_VERBS
from agentgym.types import MalformedCall, Message, ToolCall


def household(**kwargs: Any) -> HouseholdEnv:
    env = make("agentgym/Household-v0", **kwargs)
    assert isinstance(env, HouseholdEnv)
    return env


def calling(*calls: ToolCall | MalformedCall) -> Message:
    return Message("assistant", "", calls)


# ------------------------------------------------------------------------------------------------------------ tools


def test_tools_are_declared_cheaply_and_completely() -> None:
    env = household()
    assert [spec.name for spec in env.tools] == [
        "go_to",
        "open_receptacle",
        "close_receptacle",
        "take",
        "move",
        "heat",
        "clean",
        "cool",
        "use",
        "examine",
        "look",
        "inventory",
    ]
    assert env.tools is TOOLS
    assert not CONTROL_VERBS & {spec.name for spec in env.tools}
    take = env.tools[3]
    assert list(take.parameters["properties"]) == take.parameters["required"] == ["object", "receptacle"]
    assert all(spec.description and spec.parameters["additionalProperties"] is False for spec in env.tools)


def test_calls_of_a_turn_run_in_order_each_with_its_result() -> None:
    env = household()
    first, _ = env.reset(options={"task": 0})
    assert first[0].role == "user"
    observation, _, _, _, info = env.step(
        calling(ToolCall("go_to", {"receptacle": "countertop 2"}, "a"), ToolCall("look", {}, "b"))
    )
    assert [message.role for message in observation] == ["tool", "tool"]
    results = [message.result for message in observation]
    assert [(result.name, result.call_id, result.error_type) for result in results if result] == [
        ("go_to", "a", None),
        ("look", "b", None),
    ]
    assert observation[1].text == "You are facing the countertop 2. Next to it, you see nothing."
    assert info["is_valid"]


@pytest.mark.parametrize(
    ("call", "error_type", "words"),
    [
        (ToolCall("goto", {"receptacle": "fridge 1"}), "unknown_tool", "Did you mean go_to?"),
        (
            ToolCall("take", {"object": "mug 1"}),
            "invalid_arguments",
            "missing receptacle. Usage: take(object: string, ",
        ),
        (ToolCall("look", {"at": "mug 1"}), "invalid_arguments", "unknown at. Usage: look()"),
        (ToolCall("go_to", {"place": "desk 1"}), "invalid_arguments", "missing receptacle"),
        (ToolCall("go_to", {"receptacle": 3}), "invalid_arguments", "receptacle must be text"),
        (ToolCall("go_to", {"receptacle": ""}), "invalid_arguments", "receptacle must be text"),
        (MalformedCall((0, 5), "expected a name", "take!"), "malformed_call", "could not read the call 'take!'"),
    ],
)
def test_bad_calls_give_typed_errors_and_do_not_stop_good_ones(
    call: ToolCall | MalformedCall, error_type: str, words: str
) -> None:
    env = household()
    env.reset(options={"task": 0})
    observation, reward, _, _, info = env.step(calling(call, ToolCall("inventory")))
    assert observation[0].result is not None and observation[0].result.error_type == error_type
    assert words in observation[0].text
    assert observation[1].text == "You are not carrying anything."
    assert (reward, info["is_valid"]) == (0.0, False)


def test_an_impossible_call_is_refused_without_an_error() -> None:
    env = household()
    env.reset(options={"task": 0})
    observation, _, _, _, info = env.step(calling(ToolCall("take", {"object": "mug 9", "receptacle": "desk 1"})))
    assert observation[0].text == "Nothing happens."
    assert observation[0].result is not None and observation[0].result.error_type is None
    assert not info["is_valid"]


def test_a_turn_without_a_call_is_refused_with_a_hint() -> None:
    env = household()
    env.reset(options={"task": 0})
    observation, _, _, _, info = env.step(Message("assistant", "I would like to go to the fridge."))
    assert observation[0].role == "user"
    assert observation[0].text.startswith("Call one of the tools: go_to, ")
    assert not info["is_valid"]


def test_calls_after_the_end_are_not_run() -> None:
    env = household()
    env.reset(options={"task": 0})
    while True:
        action = env.oracle()
        before = env.snapshot()
        if env.step(action)[2]:
            break
    env.restore(before)
    observation, reward, terminated, _, info = env.step(calling(*action.calls, ToolCall("look", {}, "late")))
    assert (reward, terminated, info["success"]) == (1.0, True, True)
    assert observation[1].result is not None and observation[1].result.error_type == "episode_over"


# ------------------------------------------------------------------------------------------------------------- text


def test_text_takes_the_last_line_that_is_not_empty() -> None:
    env = household(interface="text")
    assert env.tools == ()
    env.reset(options={"task": 0})
    observation, _, _, _, info = env.step(Message("assistant", "I think I should look.\n\n  look \n\n"))
    assert observation == (
        Message("user", "You are in the middle of a room. Looking quickly around you, you see nothing."),
    )
    assert info["is_valid"]


@pytest.mark.parametrize(
    ("text", "said"), [("dance", "Nothing happens."), ("  \n", "Write a command on the last line")]
)
def test_text_that_is_no_command_is_refused(text: str, said: str) -> None:
    env = household(interface="text")
    env.reset(options={"task": 0})
    observation, _, _, _, info = env.step(Message("assistant", text))
    assert observation[0].text.startswith(said)
    assert not info["is_valid"]


@pytest.mark.parametrize("seed", range(12))
def test_tools_and_text_lead_to_the_same_world(seed: int) -> None:
    tools, text = household(max_turns=60), household(max_turns=60, interface="text")
    rng = np.random.default_rng(seed)
    assert tools.reset(options={"task": seed})[0] == text.reset(options={"task": seed})[0]
    for _ in range(60):
        actions = [action for action in text.admissible_actions() if action != "help"]
        assert sorted(actions) == list(tools.admissible_actions())
        line = actions[int(rng.integers(len(actions)))] if rng.random() < 0.8 else "take mug 7 from desk 7"
        called, written = tools.step(line), text.step(line)
        assert [message.text for message in called[0]] == [message.text for message in written[0]]
        assert called[1:] == written[1:]
        assert tools.state_key() == text.state_key()
        if called[2] or called[3]:
            break


@pytest.mark.parametrize(
    "typed", ["go to fridge 1", "go_to: fridge 1", "GO TO  fridge 1", "go_to: receptacle=fridge 1"]
)
def test_a_person_may_type_commands_or_calls(typed: str) -> None:
    action = household().parse_action(typed)
    call = ToolCall("go_to", {"receptacle": "fridge 1"}, "0")
    assert action.calls == (call,)
    assert household(interface="text").parse_action(typed) == Message("assistant", "go to fridge 1")


def test_what_a_person_types_is_shown_as_the_model_would_write_it() -> None:
    action = household().parse_action("put mug 1 in/on desk 1")
    assert action == Message(
        "assistant", "move: mug 1; desk 1", (ToolCall("move", {"object": "mug 1", "receptacle": "desk 1"}, "0"),)
    )


def test_every_line_that_is_typed_is_a_call() -> None:
    action = household().parse_action("go to desk 1\n\nlook\n")
    assert action.text == "go_to: desk 1\nlook"
    assert [call.id for call in action.calls if isinstance(call, ToolCall)] == ["0", "1"]


def test_what_is_neither_stays_as_it_is() -> None:
    assert isinstance(household().parse_action("what now?").calls[0], MalformedCall)
    assert household(interface="text").parse_action("what now?") == Message("assistant", "what now?")
    assert household(interface="text").parse_action("fly: desk 1").text == "fly: desk 1"


@pytest.mark.parametrize("interface", ["tools", "text"])
def test_admissible_actions_are_exactly_the_possible_ones(interface: str) -> None:
    env = household(interface=interface, num_objects=12)
    rng = np.random.default_rng(0)
    for index in range(30):
        env.reset(options={"task": index})
        for _ in range(12):
            actions = env.admissible_actions()
            assert list(actions) == sorted(set(actions))
            before = env.snapshot()
            for action in actions:
                assert env.step(action)[4]["is_valid"], action
                env.restore(before)
            if env.step(actions[int(rng.integers(len(actions)))])[2]:
                break


# -------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"num_receptacles": 2}, "num_receptacles is a whole number from 3 to 30, got 2"),
        ({"num_receptacles": 31}, "from 3 to 30"),
        ({"num_objects": 2}, "num_objects is a whole number from 3 to 60, got 2"),
        ({"num_objects": 8.0}, "got 8.0"),
        ({"num_objects": True}, "got True"),
        ({"task_types": ()}, "non-empty sequence of pick_and_place_simple, look_at_obj_in_light"),
        ({"task_types": "pick_and_place_simple"}, "non-empty sequence"),
        ({"task_types": 3}, "non-empty sequence"),
        ({"task_types": ("pick_and_place",)}, "did you mean 'pick_and_place_simple'"),
        ({"rooms": ("kitchn",)}, "did you mean 'kitchen'"),
        ({"rooms": ("bathroom",)}, "look_at_obj_in_light needs one of the rooms living room, bedroom; got bathroom"),
        ({"max_turns": 0}, "max_turns must be at least 1"),
        ({"interface": "speech"}, "interface must be one of tools, text, got 'speech'"),
        ({"num_rooms": 3}, "num_rooms"),
    ],
)
def test_bad_arguments_are_refused_with_what_is_allowed(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        household(**kwargs)
    assert words in str(caught.value)


def test_nothing_works_before_reset() -> None:
    env = household()
    for use in (env.state_key, env.oracle, env.admissible_actions, lambda: env.step("look")):
        with pytest.raises(ResetNeededError):
            use()


def test_an_episode_is_truncated_after_its_turns() -> None:
    env = household(max_turns=2)
    env.reset(options={"task": 0})
    assert env.step("look")[2:4] == (False, False)
    _, reward, terminated, truncated, info = env.step("look")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)


def test_gymnasium_accepts_it() -> None:
    check_env(gymnasium.make("agentgym/Household-v0").unwrapped, skip_render_check=True)


def test_it_runs_as_coroutines_too() -> None:
    async def play() -> bool:
        env = household()
        await env.areset(options={"task": 0})
        while True:
            _, _, terminated, _, info = await env.astep(env.oracle())
            if terminated:
                return bool(info["success"])

    assert asyncio.run(play())


def test_commands_and_calls_name_the_same_tools() -> None:
    lines = ["go to bed 1", "open safe 1", "take pen 1 from bed 1", "use desklamp 1", "examine pen 1", "look"]
    commands = [parse_command(line) for line in lines]
    names = {call_of(command).name for command in commands if command is not None}
    assert names <= {spec.name for spec in TOOLS} and len(names) == len(lines)
