"""Every environment in every tool-call format: what its oracle does and says reaches the environment unchanged."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from testkit.oracle_worlds import WITH_ARGUMENTS, arguments
from testkit.tokenizers_for_tests import trained

from agentgym.env.env import Env
from agentgym.errors import UnknownNameError
from agentgym.registry import entries, find, make
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.render.families import FORMATS
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.data.demos import collect_demos
from agentgym.types import Message, Task, ToolCall, ToolSpec

OUTSIDE = {
    "ALFWorld-v0": "its games are files of another package; tests/envs/test_alfworld.py plays its experts",
    "BrowserGym-v0": "plays tasks of another package; tests/interop/test_browsergym.py",
    "OpenEnv-v0": "plays another package's server, which has no oracle; tests/interop/test_openenv.py",
    "Verifiers-v0": "plays task sets of another package, which have no oracle; tests/interop/test_verifiers_env.py",
}
"""Environments of other packages whose tasks are not of this repository, each with the reason."""
MOVES = {"KuhnPoker-v0": "bet"}
"""Environments without an oracle: whoever moves says this, and the game must go as it goes without a model."""
SLOW = (
    *("Code-v0", "CodeRepair-v0", "CodeSelfPlay-v0", "PythonMath-v0", "SWE-v0", "MathTools-v0", "AgentFlow-v0"),
    *("WebApp-v0", "WebForms-v0", "WebShopGUI-v0", "MiniWoB-v0", "WebArena-v0", "GAIA-v0", "AppWorld-v0"),
)
"""Environments that start sandboxes, servers or browsers."""
NAMES = [entry.id.removeprefix("agentgym/") for entry in entries() if entry.id.startswith("agentgym/")]
IDS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in NAMES
    if name not in OUTSIDE and name not in MOVES
]


def test_every_environment_is_in_the_grid_or_has_a_reason() -> None:
    assert not {*OUTSIDE} & {*NAMES} ^ {*OUTSIDE}, "a reason for an environment that does not exist"
    missing = [name for name in NAMES if find(f"agentgym/{name}").needs and name not in WITH_ARGUMENTS | {*OUTSIDE}]
    assert missing == [], "make its arguments in testkit/oracle_worlds.py, or name a reason in OUTSIDE"


@cache
def renderer(codec: str) -> ChatRenderer:
    return ChatRenderer(trained(), ChatConfig(codec=codec))


def played(env_id: str, kwargs: dict[str, Any], codec: str) -> list[bool]:
    async def play() -> list[bool]:
        pool = EnvPool(lambda: make(env_id, **kwargs), 1)
        try:
            probe = make(env_id, **kwargs)
            tasks = [(0, first_task(probe))]
            probe.close()
            demos = await collect_demos(
                tasks,
                pool,
                renderer(codec),
                noise=0.0,
                max_context_tokens=400_000,
                max_new_tokens=2000,
                group=GroupConfig(num_envs=1),
                seed=0,
            )
            return [bool(demo.success) for demo in demos]
        finally:
            await pool.close()

    return asyncio.run(play())


def first_task(env: Env) -> Task:
    """Return the first task of the first split that has one; benchmarks may have no split to train on."""
    for split in ("train", "valid", "test"):
        with suppress(UnknownNameError):
            if len(tasks := env.tasks(split)):
                return tasks[0]
    raise AssertionError(f"{env.env_id} has no task")


@pytest.mark.parametrize("name", IDS)
def test_the_oracle_wins_in_every_format(name: str, tmp_path: Path) -> None:
    entry = find(f"agentgym/{name}")
    if not entry.is_available:
        pytest.skip(f"needs {entry.extra or entry.requires}")
    with arguments(name, tmp_path) as kwargs:
        probe = make(entry.id, **kwargs)
        probe.reset(options={"task": first_task(probe)})
        has_tools = bool(probe.tools)
        probe.close()
        codecs = [codec for codec in FORMATS if codec != "text" or not has_tools]  # `text` writes no calls
        assert {codec: all(won) and bool(won) for codec in codecs for won in [played(entry.id, kwargs, codec)]} == (
            dict.fromkeys(codecs, True)
        )


@pytest.mark.parametrize("name", MOVES)
def test_moves_reach_a_game_without_an_oracle_in_every_format(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same chips are won and lost in every format as by the moves themselves."""
    kind, move = type(make(f"agentgym/{name}")), MOVES[name]
    monkeypatch.setattr(kind, "oracle", lambda env: env.parse_action(move))
    env = make(f"agentgym/{name}")
    env.reset(options={"task": first_task(env)})
    won, is_over = 0.0, False
    while not is_over:
        _, reward, is_over, _, info = env.step(env.oracle())
        won += reward
        assert info["is_valid"]
    assert won != 0
    has_tools = bool(env.tools)
    codecs = [codec for codec in FORMATS if codec != "text" or not has_tools]
    assert {codec: played(f"agentgym/{name}", {}, codec) for codec in codecs} == {codec: [won > 0] for codec in codecs}


# ----------------------------------------------------------------------------------------- words in the compact format

LOOK = ToolSpec("look", "", {"type": "object", "properties": {}})
SEARCH = ToolSpec("search", "", {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]})


@pytest.mark.parametrize(
    "words",
    [
        *("look", "look around", "search: tallest tower", "look:", "Hello,\nsearch: x\nand bye.", 'He said "no".'),
        *('"look"', '"quoted" words', '"a"\n"b"', "a: b; c=d", "1. look\n2. search", "The answer is \\boxed{5}."),
    ],
)
def test_words_are_words(words: str) -> None:
    """Also words that a line of a call would be, beside a call and alone."""
    spoken, tools = renderer("compact").for_words(True), (LOOK, SEARCH)
    read = spoken.read(spoken.action_ids(Message("assistant", words), tools), tools)
    assert (read.text, read.calls) == (words, ())
    call = ToolCall("search", {"query": "a; b"})
    read = spoken.read(spoken.action_ids(Message("assistant", words, (call,), answer=words), tools), tools)
    assert read.text == words
    assert [(one.name, one.arguments) for one in read.calls if isinstance(one, ToolCall)] == [
        (call.name, call.arguments)
    ]


def test_without_words_each_line_is_a_call() -> None:
    plain = renderer("compact")
    assert plain.for_words(False) is plain and plain.for_words(True).for_words(False).format.name == "compact"
    read = plain.read_text("Hello there!", (LOOK,))
    assert len(read.calls) == 1 and not isinstance(read.calls[0], ToolCall)
    assert renderer("hermes").for_words(True) is renderer("hermes")
