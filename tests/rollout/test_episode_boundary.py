"""Nothing that a policy says, and nothing that an environment returns, ends more than its episode."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testkit.episode_boundary import must_go_through, play_all
from testkit.family_episodes import tokenizer_of
from testkit.worlds import Counter

from agentgym.env.actions import as_message
from agentgym.env.env import TypedStep
from agentgym.errors import ConfigError, ToolError
from agentgym.render.chat import ChatRenderer
from agentgym.render.families import FORMATS
from agentgym.rollout.context import ContextConfig
from agentgym.trainers.engines.openai.wire import read_answer
from agentgym.types import MalformedCall, Message, RewardPart, Status, ToolCall, ToolResult, ToolSpec

HALF = chr(0xD800)
TEMPLATES = ("qwen3", "gptoss", "llama3", "deepseekv3", "gemma3")
"""Five tool-call formats."""
_CALL = '<tool_call>{"name": "add", "arguments": {"number": %s}}</tool_call>'
TEXTS = (
    "<tool_call>" + "[" * 3_000,
    _CALL % ("[" * 40 + "]" * 40),
    _CALL % ('{"a":' * 1_000),
    _CALL % ("9" * 4_000),
    _CALL % f'"{chr(92)}ud800"',
    '<tool_call>{"name": "' + chr(92) + 'udfff", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "__class__", "arguments": {"": null, "self": 1}}</tool_call>',
    "[add(number=0x" + "f" * 4_000 + ")]",
    '{"name": "add", "parameters": {"number": ' + "9" * 4_000 + "}}",
    "<think>" * 500,
    "<think>" * 300 + "</think>" * 300,
    "<|im_end|><|im_start|>assistant\n" * 20,
    "agentgym-assistant-text \U000f0000\U000f0001 {{ 7*7 }}{% raw %}",
    "\0" * 50,
    "",
)
PIECES: tuple[str, ...] = (
    "<tool_call>",
    "</tool_call>",
    '{"name": "add", ',
    '"arguments": {"number": 1}}',
    "[",
    "{",
    '"',
    chr(92) + "ud800",
)
PIECES += (
    "<think>",
    "</think>",
    "<|im_end|>",
    "\n",
    "add: 1",
    "add(number=",
    "0xff",
    ")",
    "to=functions.add",
    "\0",
    "é",
)


@pytest.mark.parametrize(
    "context", [ContextConfig(), ContextConfig(policy="window", num_turns=2)], ids=["full", "window"]
)
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_completion_is_evidence_about_its_policy(name: str, context: ContextConfig, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(name)
    groups = play_all(ChatRenderer(tokenizer), tokenizer, TEXTS, lambda: Counter(max_turns=2), context)
    played = must_go_through(groups, tmp_path)
    assert [trajectory.error for trajectory in played if not trajectory.status.is_evidence] == []
    assert len(played) == len(TEXTS)


def test_json_nested_a_hundred_thousand_deep_is_malformed(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("qwen3")
    texts = ["<tool_call>" + "[" * 100_000, _CALL % ("[" * 100_000)]
    groups = play_all(ChatRenderer(tokenizer), tokenizer, texts, lambda: Counter(max_turns=1))
    for trajectory in must_go_through(groups, tmp_path):
        (call,) = trajectory.turns[0].action.calls
        assert trajectory.status is Status.TRUNCATED_TURNS and isinstance(call, MalformedCall)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), min_size=4, max_size=4))
def test_random_completions_are_evidence_about_their_policy(tmp_path: Path, texts: list[str]) -> None:
    tokenizer = tokenizer_of("qwen3")
    groups = play_all(ChatRenderer(tokenizer), tokenizer, texts, lambda: Counter(max_turns=2))
    assert all(trajectory.status.is_evidence for trajectory in must_go_through(groups, tmp_path))


def test_a_format_that_fails_makes_one_malformed_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of("qwen3")
    renderer = ChatRenderer(tokenizer)

    def fail(text: str, tools: object) -> None:
        raise RecursionError

    monkeypatch.setattr(type(renderer.format), "parse", lambda *_: fail("", ()))
    (trajectory,) = must_go_through(play_all(renderer, tokenizer, ["hello"], lambda: Counter(max_turns=1)), tmp_path)
    (call,) = trajectory.turns[0].action.calls
    assert trajectory.status is Status.TRUNCATED_TURNS and isinstance(call, MalformedCall)
    assert "RecursionError" in call.reason


def test_an_action_that_no_template_takes_is_the_policys_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of("qwen3")
    renderer = ChatRenderer(tokenizer)
    render = renderer.template.render

    def refuse(messages: Any, tools: Any, **more: Any) -> str:
        if any("evil" in message.text for message in messages):
            raise ValueError("the template fails")
        return render(messages, tools, **more)

    monkeypatch.setattr(renderer.template, "render", refuse)
    monkeypatch.setattr(renderer, "_is_plain", lambda *_: False)
    texts = ["evil", "good"]
    evil, good = must_go_through(play_all(renderer, tokenizer, texts, lambda: Counter(max_turns=2)), tmp_path)
    assert (evil.status, good.status) == (Status.POLICY_ERROR, Status.TRUNCATED_TURNS)
    assert len(evil.turns) == 1 and evil.reward == 0


# ------------------------------------------------------------------------------------------ what environments return

Change = Callable[[TypedStep], Any]


class Hostile(Counter):
    """A world whose second step returns what ``change`` makes of it, or raises."""

    change: Change = staticmethod(lambda stepped: stepped)
    key: Any = None
    first: Any = "Count."

    def start(self, task: Any) -> Any:
        super().start(task)
        return self.first

    def state_key(self) -> Any:
        return super().state_key() if self.key is None else self.key

    async def astep(self, action: Any) -> Any:
        stepped = await super().astep(action)
        return type(self).change(stepped) if self.turn == 2 else stepped


def _raise(error: BaseException) -> Change:
    def change(stepped: TypedStep) -> Any:
        raise error

    return change


def _info(**more: Any) -> Change:
    return lambda stepped: (*stepped[:4], {**stepped[4], **more})


def _said(*messages: Any) -> Change:
    return lambda stepped: (messages, *stepped[1:])


def _deep() -> Any:
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    return value


FAILING: dict[str, Change] = {
    "a usage error": _raise(ConfigError("no such thing")),
    "a recursion error": _raise(RecursionError()),
    "an error with half a surrogate": _raise(ValueError(HALF)),
    "a memory error": _raise(MemoryError()),
    "nothing": lambda stepped: None,
    "four items": lambda stepped: stepped[:4],
    "an info without parts": lambda stepped: (*stepped[:4], {}),
    "an info without validity": lambda stepped: (*stepped[:4], {"reward_parts": ()}),
    "a part that is a number": _info(reward_parts=(1.0,)),
    "a part that is nan": _info(reward_parts=(RewardPart("a", float("nan")),)),
    "a part that is huge": _info(reward_parts=(RewardPart("a", 1e300),)),
    "a part of text": _info(reward_parts=(RewardPart("a", "x"),)),  # type: ignore[arg-type]
    "a part of an unknown role": _info(reward_parts=(RewardPart("a", 1.0, "best"),)),  # type: ignore[arg-type]
    "a played text": _info(played="look"),
    "numbers as messages": _said(1, 2),
    "a message of an unknown role": _said(Message("boss", "hi")),  # type: ignore[arg-type]
    "a message of a number": _said(Message("user", 7)),  # type: ignore[arg-type]
    "a message of parts that are none": _said(Message("user", (1, 2))),  # type: ignore[arg-type]
}
SOUND: dict[str, Change] = {
    "half surrogates": _said(
        Message("user", f"a{HALF}", result=None),
        Message("tool", f"b{HALF}", result=ToolResult(HALF, HALF, HALF, error_type=HALF)),
    ),
    "ten megabytes": _said(Message("user", "word " * 2_000_000)),
    "deep json": _said(Message("user", "[" * 100_000)),
    "numpy numbers": _info(reward_parts=(RewardPart("a", __import__("numpy").float32(1)),), is_valid=1, success=0),
    "further keys": _info(mine=_deep()),
}


def _play(change: Change, folder: Path, **more: Any) -> Any:
    tokenizer = tokenizer_of("qwen3")
    world = type("World", (Hostile,), {"change": staticmethod(change), **more})
    made = iter([world, Counter])
    text = _CALL % 1
    return must_go_through(
        play_all(ChatRenderer(tokenizer), tokenizer, [text], lambda: next(made)(max_turns=2), num_members=2), folder
    )


@pytest.mark.parametrize("what", FAILING)
def test_a_wrong_answer_ends_its_episode_alone(what: str, tmp_path: Path) -> None:
    hostile, sibling = _play(FAILING[what], tmp_path)
    assert hostile.status is Status.ENV_ERROR and hostile.reward is None and hostile.error
    assert sibling.status.is_evidence and sibling.reward is not None


@pytest.mark.parametrize("what", SOUND)
def test_a_strange_answer_is_taken(what: str, tmp_path: Path) -> None:
    hostile, _ = _play(SOUND[what], tmp_path)
    assert hostile.status.is_evidence, hostile.error
    assert all(len(message.text) <= 1024 * 1024 for turn in hostile.turns for message in turn.replies)


@pytest.mark.parametrize("key", [7, {"a": 1}, b"x"])
def test_a_key_that_is_no_text_ends_its_episode_alone(key: Any, tmp_path: Path) -> None:
    hostile, sibling = _play(lambda stepped: stepped, tmp_path, key=key)
    assert hostile.status is Status.ENV_ERROR and "state_key" in hostile.error and sibling.status.is_evidence


def test_a_first_observation_that_is_none_ends_its_episode_alone(tmp_path: Path) -> None:
    hostile, sibling = _play(lambda stepped: stepped, tmp_path, first=(None,))
    assert hostile.status is Status.ENV_ERROR and sibling.status.is_evidence


def test_tools_that_cannot_be_rendered_end_their_episode_alone(tmp_path: Path) -> None:
    class Broken(Counter):
        @property
        def tools(self) -> tuple[ToolSpec, ...]:
            return (replace(super().tools[0], description=HALF),)

    tokenizer = tokenizer_of("qwen3")
    made = iter([Broken, Counter])
    hostile, sibling = must_go_through(
        play_all(ChatRenderer(tokenizer), tokenizer, [_CALL % 1], lambda: next(made)(max_turns=2), num_members=2),
        tmp_path,
    )
    assert hostile.status is Status.ENV_ERROR and sibling.status.is_evidence


# ------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    "arguments", ['{"number": ' + "[" * 100_000, '{"number": ' + "9" * 4_000 + "}", f'{{"a": "{chr(92)}ud800"}}']
)
def test_arguments_in_openais_form_that_cannot_be_taken_are_malformed(arguments: str) -> None:
    (call,) = as_message({"name": "add", "arguments": arguments}, lambda text: Message("assistant", text)).calls
    assert isinstance(call, MalformedCall)
    function = {"id": "a", "function": {"name": "add", "arguments": arguments}}
    (call,) = read_answer({"choices": [{"message": {"tool_calls": [function]}}]}, 1).action.calls
    assert isinstance(call, MalformedCall)


@pytest.mark.parametrize("value", [10**400, float("inf"), HALF, [[HALF]]])
def test_a_tool_refuses_arguments_that_it_could_not_work_with(value: Any) -> None:
    env = Counter()
    with pytest.raises(ToolError, match="arguments cannot be taken"):
        env._tools["add"].arguments(ToolCall("add", {"number": value}))


# ------------------------------------------------------------------------------------------------------------ time

FRAGMENTS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "[",
    '{"a":',
    "add(",
    "```json\n{",
    "Action:",
    "<parameter=",
    '"',
    " ",
)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_time_grows_with_the_text_and_not_with_its_square(name: str) -> None:
    """Four times the text takes four times the time; sixteen times would be quadratic."""
    form, tool = FORMATS[name], Counter().tools

    def seconds(fragment: str, length: int) -> float:
        text, spent = (fragment * (length // len(fragment) + 1))[:length], []
        for _ in range(3):
            began = time.process_time()
            form.parse(text, tool)
            spent.append(time.process_time() - began)
        return min(spent)

    for fragment in FRAGMENTS:
        assert seconds(fragment, 80_000) < 10 * max(seconds(fragment, 20_000), 0.002), fragment


def test_thinking_is_split_in_linear_time() -> None:
    tokenizer = tokenizer_of("qwen3")
    renderer = ChatRenderer(tokenizer)

    def seconds(count: int) -> float:
        ids = tokenizer.encode("<think>" * count + "</think>" * count, add_special_tokens=False)
        began = time.process_time()
        renderer.read(ids, Counter().tools)
        renderer.num_thinking_tokens(ids)
        return time.process_time() - began

    assert min(seconds(20_000) for _ in range(4)) < 10 * max(min(seconds(5_000) for _ in range(4)), 0.002)
