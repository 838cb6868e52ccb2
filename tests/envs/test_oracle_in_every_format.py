"""Every environment in every tool-call format: what its oracle does and says reaches the environment unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from testkit.math_files import write_math
from testkit.tokenizers_for_tests import trained

from agentgym.registry import entries, find, make
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.render.families import FORMATS
from agentgym.rollout.group import GroupConfig
from agentgym.rollout.pool import EnvPool
from agentgym.trainers.data.demos import collect_demos
from agentgym.types import Message, ToolCall, ToolSpec

FILES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "Math-v0": lambda folder: {"problems": str(write_math(folder / "math"))},
    "MathTools-v0": lambda folder: {"problems": str(write_math(folder / "math"))},
}
"""Arguments of environments whose tasks come from files."""
WITHOUT_ORACLE = ("KuhnPoker-v0", "MiniWoB-v0")
SLOW = (
    *("Code-v0", "CodeRepair-v0", "CodeSelfPlay-v0", "PythonMath-v0", "SWE-v0", "MathTools-v0", "AgentFlow-v0"),
    *("WebApp-v0", "WebForms-v0", "WebShopGUI-v0"),
)
"""Environments that start sandboxes or browsers."""
IDS = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else [])
    for name in (entry.id.removeprefix("agentgym/") for entry in entries() if entry.id.startswith("agentgym/"))
    if name not in WITHOUT_ORACLE and (name in FILES or not find(f"agentgym/{name}").needs)
]


@cache
def renderer(codec: str) -> ChatRenderer:
    return ChatRenderer(trained(), ChatConfig(codec=codec))


def played(env_id: str, kwargs: dict[str, Any], codec: str) -> list[bool]:
    async def play() -> list[bool]:
        pool = EnvPool(lambda: make(env_id, **kwargs), 1)
        try:
            probe = make(env_id, **kwargs)
            tasks = [(0, probe.tasks("train")[0])]
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


@pytest.mark.parametrize("name", IDS)
def test_the_oracle_wins_in_every_format(name: str, tmp_path: Path) -> None:
    entry = find(f"agentgym/{name}")
    if not entry.is_available:
        pytest.skip(f"needs {entry.extra or entry.requires}")
    kwargs = FILES[name](tmp_path) if name in FILES else {}
    probe = make(entry.id, **kwargs)
    probe.reset(options={"task": probe.tasks("train")[0]})
    has_tools = bool(probe.tools)
    probe.close()
    codecs = [codec for codec in FORMATS if codec != "text" or not has_tools]  # `text` writes no calls
    assert {codec: all(won) and bool(won) for codec in codecs for won in [played(entry.id, kwargs, codec)]} == (
        dict.fromkeys(codecs, True)
    )


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
