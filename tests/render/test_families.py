"""Conversations in the chat templates of real models: what is rendered, what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from testkit.family_episodes import BEGIN, DIFFERS, END, NAMES, OPEN, TEMPLATES, UNKNOWN, play, table, tokenizer_of

from agentgym.errors import UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig, ToolsStyle
from agentgym.render.families import FAMILIES, FORMATS, family_of
from agentgym.render.tool_texts import tools_text
from agentgym.rollout.session import Session
from agentgym.types import Completion, FinishReason, Message, ToolCall, ToolSpec

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("thinks", [False, True], ids=["without thinking", "with thinking"])
@pytest.mark.parametrize("name", sorted(set(NAMES) - set(UNKNOWN)))
def test_a_session_reads_as_the_template_renders_the_whole_conversation(name: str, thinks: bool) -> None:
    played = play(name, thinks=thinks)
    assert played.num_read == 5
    if name not in DIFFERS:
        assert played.differs_after == ()


@pytest.mark.parametrize("name", sorted(DIFFERS))
def test_templates_that_contradict_themselves_are_named(name: str) -> None:
    assert play(name, thinks=False).differs_after != ()


@pytest.mark.parametrize("name", sorted(UNKNOWN))
def test_what_no_format_reads_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="chat template is unknown"):
        play(name, thinks=False)


def test_training_templates_are_of_the_same_family() -> None:
    for name in NAMES:
        training = TEMPLATES / f"{name}_training.jinja"
        if training.exists():
            one, other = (
                family_of(path.read_text(encoding="utf-8")) for path in (TEMPLATES / f"{name}.jinja", training)
            )
            assert one == other, name


def test_every_family_has_a_format_and_can_be_met() -> None:
    assert all(family.format in FORMATS for family in FAMILIES)
    for family in FAMILIES:
        assert family_of(" ".join(family.marks)) in FAMILIES


def test_the_page_has_the_table_that_the_templates_give() -> None:
    page = (DOCS / "models.md").read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0].strip() == table()


def test_thinking_can_be_switched_off_by_the_templates_own_variable() -> None:
    tokenizer = tokenizer_of("qwen3")
    asked = (Message("user", "Go."),)
    on, off = ChatRenderer(tokenizer), ChatRenderer(tokenizer, ChatConfig(template_args={"enable_thinking": False}))
    assert off.template.render(asked, ()) == on.template.render(asked, ()) + "<think>\n\n</think>\n\n"


def test_a_compact_description_of_tools_is_shorter_and_says_the_same() -> None:
    tokenizer = tokenizer_of("qwen2_5")
    asked = (Message("user", "Go."),)
    full, short = (ChatRenderer(tokenizer, ChatConfig(tools_style=style)) for style in ("schema", "compact"))
    text = short.template.render(asked, [OPEN])
    assert "open_box(number: integer, note?: string): Open a box." in text
    assert '<tool_call>\n{"name": "open_box", "arguments": {"number": 1}}\n</tool_call>' in text
    assert 2 * len(short.prompt_ids(asked, [OPEN])) < len(full.prompt_ids(asked, [OPEN]))


def test_history_can_be_kept_where_the_template_would_drop_thinking() -> None:
    tokenizer = tokenizer_of("qwen3")
    segments = []
    for keeps in (False, True):
        renderer = ChatRenderer(tokenizer, ChatConfig(keeps_history=keeps))
        session = Session(renderer, [OPEN], (Message("user", "Go."),))
        ids = tokenizer.encode("<think>\nHm.\n</think>\n\nDone.<|im_end|>", add_special_tokens=False)
        zeros = (0,) * len(ids)
        session.add_completion(
            Completion(
                token_ids=tuple(ids), logprobs=(0.0,) * len(ids), policy_versions=zeros, finish_reason=FinishReason.STOP
            )
        )
        session.add_replies((Message("user", "And now?"),))
        segments.append((session.num_segments, "Hm." in str(tokenizer.decode(list(session.prompt_ids)))))
    assert segments == [(2, False), (1, True)]


def test_what_a_template_leaves_out_is_said() -> None:
    assert ChatRenderer(tokenizer_of("qwen3")).notes == ()
    (tools, system, results) = ChatRenderer(tokenizer_of("gemma")).notes
    assert "no tools" in tools and "no system message" in system and "no tool results" in results


def test_a_template_that_writes_todays_date_is_noted_until_the_date_is_given() -> None:
    tokenizer, given = tokenizer_of("llama3_2"), {"date_string": "26 Jul 2024"}
    assert any("writes today's date" in note and "date_string" in note for note in ChatRenderer(tokenizer).notes)
    fixed = ChatRenderer(tokenizer, ChatConfig(template_args=given))
    assert not any("date" in note for note in fixed.notes)
    assert "26 Jul 2024" in str(tokenizer.decode(list(fixed.prompt_ids([Message("user", "Hello")], ()))))


@pytest.mark.parametrize("style", ["schema", "compact"])
def test_arguments_of_any_type_are_described(style: ToolsStyle) -> None:
    tool = ToolSpec("note", "Note.", {"properties": {"text": True, "why": {"type": []}}, "required": ["text", "why"]})
    told = tools_text(FORMATS["hermes"], [tool], style)
    assert '"arguments": {"text": "...", "why": "..."}' in told
    assert style == "schema" or "note(text: any, why: any): Note." in told


@pytest.mark.parametrize("codec", ["react", "json", "compact", "qwen_xml"])
def test_a_format_that_is_named_is_told_written_and_read(codec: str) -> None:
    renderer = ChatRenderer(tokenizer_of("qwen3"), ChatConfig(codec=codec))
    wanted = ToolCall("open_box", {"number": 3}, "0")
    assert renderer.read(renderer.action_ids(Message("assistant", calls=(wanted,)), [OPEN]), [OPEN]).calls == (wanted,)
    told = renderer.template.render((Message("user", "Go."),), [OPEN])
    assert renderer.format.format([ToolCall("open_box", {"number": 1})], [OPEN]) in told
    assert "<tools>" not in told
