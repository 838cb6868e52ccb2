"""Incremental rendering gives the text the whole template gives, and never touches sampled tokens."""

from __future__ import annotations

from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from testkit.family_episodes import OPEN, tokenizer_of
from testkit.own_tokenizers import needs, own_tokenizer
from testkit.tokenizers_for_tests import HERMES, MISTRAL, THINKING, prepending, trained
from tokenizers import AddedToken

from agentgym.errors import UnknownNameError, UsageError
from agentgym.render.chat import ChatRenderer
from agentgym.render.config import ChatConfig
from agentgym.rollout.session import Session
from agentgym.trainers.models.tiny import CHAT_TEMPLATE
from agentgym.types import Completion, FinishReason, MalformedCall, Message, ToolCall, ToolResult, ToolSpec

LOOK = ToolSpec("look", "Look around.", {"type": "object", "properties": {}})


def completion(ids: list[int], finish: FinishReason = FinishReason.STOP) -> Completion:
    n = len(ids)
    return Completion(token_ids=tuple(ids), logprobs=(-1.0,) * n, policy_versions=(0,) * n, finish_reason=finish)


def tool_reply(text: str) -> Message:
    return Message("tool", text, result=ToolResult(text, "look", "0"))


texts = (
    st.text(st.characters(codec="utf-8", exclude_characters="<|>"), min_size=1, max_size=30).map(str.strip).filter(bool)
)


@pytest.mark.parametrize("template", [HERMES, CHAT_TEMPLATE])
@given(turns=st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_the_buffer_reads_like_the_whole_conversation(template: str, turns: list[tuple[str, list[str]]]) -> None:
    tokenizer = trained(template)
    renderer = ChatRenderer(tokenizer)
    first = Message("user", "Begin.")
    session = Session(renderer, [LOOK], (first,))
    rows = [{"role": "user", "content": "Begin."}]
    for said, replies in turns:
        ids = tokenizer.encode(said, add_special_tokens=False)
        session.add_completion(completion([*ids, renderer.turn_end_ids[0]]))
        session.add_replies(tuple(tool_reply(reply) for reply in replies))
        rows += [{"role": "assistant", "content": said}, *({"role": "tool", "content": reply} for reply in replies)]
    whole = tokenizer.apply_chat_template(rows, tools=[LOOK.as_function()], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(list(session.prompt_ids)) == whole
    assert session.num_segments == 1


def test_sampled_ids_stay_as_they_were_sampled() -> None:
    tokenizer = trained()
    renderer = ChatRenderer(tokenizer)
    session = Session(renderer, [LOOK], (Message("user", "Hi."),))
    letters = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "room"]  # one id would do
    before = session.prompt_ids
    session.add_completion(completion([*letters, renderer.turn_end_ids[0]]))
    session.add_replies((tool_reply("ok"),))
    assert session.prompt_ids[: len(before) + 5] == (*before, *letters, renderer.turn_end_ids[0])
    assert len(tokenizer.encode("room", add_special_tokens=False)) < len(letters)


def test_text_is_decoded_as_it_was_sampled() -> None:
    """Some tokenizers of Llama and BERT ask for spaces before punctuation to be removed."""
    tokenizer = deepcopy(trained())
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    ids = tokenizer.encode("x = a . b , c", add_special_tokens=False)
    assert tokenizer.decode(ids) == "x = a. b, c"
    assert ChatRenderer(tokenizer).text_of(ids) == "x = a . b , c"


def test_a_completion_cut_by_length_is_ended_by_the_suffix() -> None:
    tokenizer = trained()
    renderer = ChatRenderer(tokenizer)
    session = Session(renderer, [], (Message("user", "Hi."),))
    session.add_completion(completion(tokenizer.encode("go", add_special_tokens=False), FinishReason.LENGTH))
    session.add_replies((Message("user", "on"),))
    assert str(tokenizer.decode(list(session.added_ids))).startswith("<|im_end|>\n<|im_start|>user\non<|im_end|>")


def test_a_template_that_drops_thinking_begins_a_new_segment() -> None:
    tokenizer = trained(THINKING)
    renderer = ChatRenderer(tokenizer)
    session = Session(renderer, [], (Message("user", "Hi."),))
    thought = tokenizer.encode("<think>hm</think>go", add_special_tokens=False)
    session.add_completion(completion([*thought, renderer.turn_end_ids[0]]))
    assert session.add_replies((Message("user", "on"),))
    assert session.num_segments == 2
    assert session.added_ids == session.prompt_ids
    assert "hm" not in tokenizer.decode(list(session.prompt_ids))


def test_without_thinking_the_same_template_keeps_its_segment() -> None:
    tokenizer = trained(THINKING)
    renderer = ChatRenderer(tokenizer)
    session = Session(renderer, [], (Message("user", "Hi."),))
    session.add_completion(completion([*tokenizer.encode("go", add_special_tokens=False), renderer.turn_end_ids[0]]))
    assert not session.add_replies((Message("user", "on"),))


@pytest.mark.parametrize(
    ("reply", "written"),
    [(tool_reply("no"), "<think>\nlong\n</think>\n\n<|im_end|>"), (Message("user", "on"), "<|im_end|>")],
    ids=["tool", "user"],
)
def test_thinking_cut_by_length_is_thinking_in_later_prompts(reply: Message, written: str) -> None:
    tokenizer = tokenizer_of("qwen3")
    session = Session(ChatRenderer(tokenizer), [LOOK], (Message("user", "Hi."),))
    session.add_completion(completion(tokenizer.encode("<think>\nlong", add_special_tokens=False), FinishReason.LENGTH))
    assert session.add_replies((reply,))
    assert f"Hi.<|im_end|>\n<|im_start|>assistant\n{written}\n" in tokenizer.decode(list(session.prompt_ids))


def test_thinking_cut_by_length_is_dropped_by_a_template_that_drops_closed_thinking() -> None:
    tokenizer = trained(THINKING)
    session = Session(ChatRenderer(tokenizer), [], (Message("user", "Hi."),))
    session.add_completion(completion(tokenizer.encode("<think>long", add_special_tokens=False), FinishReason.LENGTH))
    assert session.add_replies((Message("user", "on"),))
    assert "<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\non" in tokenizer.decode(list(session.prompt_ids))


def test_thinking_cut_by_length_keeps_the_segment_of_a_template_that_writes_it_as_sampled() -> None:
    tokenizer = trained()
    session = Session(ChatRenderer(tokenizer), [], (Message("user", "Hi."),))
    session.add_completion(completion(tokenizer.encode("<think>\nlong", add_special_tokens=False), FinishReason.LENGTH))
    assert not session.add_replies((Message("user", "on"),))
    assert "<think>\nlong<|im_end|>\n<|im_start|>user\non" in tokenizer.decode(list(session.prompt_ids))


@pytest.mark.parametrize(
    ("replies", "shown"),
    [
        ((tool_reply("a"), tool_reply("b"), Message("user", "on")), ("a", "b\non")),
        ((Message("user", "on"),), ("(no answer)", "(no answer)\non")),
        ((tool_reply("a"), Message("user", "on")), ("a", "(no answer)\non")),
    ],
    ids=["after results", "after calls", "after one result of two"],
)
def test_a_user_message_goes_into_the_result_where_the_template_refuses_it(
    replies: tuple[Message, ...], shown: tuple[str, str]
) -> None:
    tokenizer = trained(MISTRAL)
    renderer = ChatRenderer(tokenizer)
    session = Session(renderer, [LOOK], (Message("user", "Hi."),))
    call = ToolCall("look")
    session.add_completion(completion(list(renderer.action_ids(Message("assistant", calls=(call, call)), [LOOK]))))
    before = session.prompt_ids
    assert not session.add_replies(replies)
    assert session.prompt_ids[: len(before)] == before
    results = "".join(f"[TOOL_RESULTS]{text}[/TOOL_RESULTS]" for text in shown)
    assert renderer.text_of(session.added_ids) == results


LLAMA2 = """{%- for message in messages %}
{%- if message.role == "user" %}<|im_start|>[INST] {{ message.content }} [/INST]
{%- else %} {{ message.content }} <|im_end|>{% endif %}
{%- endfor %}"""
"""Writes a space before the token that ends a turn."""


def test_white_space_before_the_end_of_a_turn_is_no_end() -> None:
    tokenizer = trained(LLAMA2)
    renderer = ChatRenderer(tokenizer)
    end = tokenizer.encode("<|im_end|>")[0]
    assert renderer.turn_end_ids == (end,)
    assert renderer.text_of(renderer.action_ids(Message("assistant", "Go."), ())) == " Go. <|im_end|>"
    session = Session(renderer, [], (Message("user", "Hi."),))
    session.add_completion(completion([*tokenizer.encode(" go", add_special_tokens=False), end]))
    assert not session.add_replies((Message("user", "on"),))
    assert renderer.text_of(session.prompt_ids).endswith("[/INST] go<|im_end|><|im_start|>[INST] on [/INST]")


@pytest.mark.parametrize("closing", [" [/INST]", "[/INST]"])
def test_a_completion_begins_as_in_the_whole_conversation_where_the_tokenizer_adds_spaces(closing: str) -> None:
    tokenizer = deepcopy(prepending())
    if closing == "[/INST]":
        tokenizer.add_tokens([AddedToken(closing, special=True, normalized=False)])
    tokenizer.chat_template = str(tokenizer.chat_template).replace(" [/INST]", closing)
    renderer = ChatRenderer(tokenizer, ChatConfig(codec="json"))
    user, said = Message("user", "Go."), Message("assistant", "Hi")
    session = Session(renderer, (), (user,))
    session.add_completion(completion(list(renderer.action_ids(said, ()))))
    assert not session.add_replies((user,))
    rows = [{"role": str(message.role), "content": message.text} for message in (user, said, user)]
    assert list(session.prompt_ids) == tokenizer.apply_chat_template(rows, tokenize=True, return_dict=False)


def test_reading_gives_text_and_calls() -> None:
    tokenizer = trained()
    renderer = ChatRenderer(tokenizer)
    text = 'Well. <tool_call>{"name": "look", "arguments": {}}</tool_call>'
    message = renderer.read([*tokenizer.encode(text, add_special_tokens=False), renderer.turn_end_ids[0]], [LOOK])
    assert (message.content, message.text, message.thinking) == (text, "Well.", "")
    assert message.calls == (ToolCall("look", {}, "0"),)


@pytest.mark.parametrize(("template", "codec"), [(HERMES, "hermes"), (CHAT_TEMPLATE, "compact")])
def test_the_codec_is_the_templates(template: str, codec: str) -> None:
    assert ChatRenderer(trained(template)).format.name == codec


def test_a_demonstration_is_read_back_as_its_calls() -> None:
    renderer = ChatRenderer(trained())
    ids = renderer.action_ids(Message("assistant", calls=(ToolCall("look", {}),)), [LOOK])
    assert renderer.read(ids, [LOOK]).calls == (ToolCall("look", {}, "0"),)


def test_a_model_without_chat_template_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"no chat template.*chat_template\.jinja"):
        ChatRenderer(trained(""))


def test_a_template_that_leaves_out_the_user_is_refused() -> None:
    with pytest.raises(UsageError, match=r"leaves out what the user says.*chat_template\.jinja"):
        ChatRenderer(trained("<tool_call>{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"))


def test_a_template_without_generation_prompt_is_noted() -> None:
    turn = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    template = f"{{# <tool_call> #}}{{% for m in messages %}}{turn}{{% endfor %}}"
    assert "ignores add_generation_prompt" in (note := ChatRenderer(trained(template)).notes[-1])
    assert note.endswith("begin its messages itself: <|im_start|>assistant")
    answers_alone = template.replace(
        turn, "{% if m['role'] == 'user' %}Q {{ m['content'] }} A{% else %} {{ m['content'] }}{% endif %}"
    )
    assert not any("add_generation_prompt" in note for note in ChatRenderer(trained(answers_alone)).notes)


def test_calls_inside_thinking_are_thoughts() -> None:
    renderer = ChatRenderer(trained())
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    message = renderer.read_text(f"<think>I could {call}</think>No.", [LOOK])
    assert (message.calls, message.text, message.thinking) == ((), "No.", f"I could {call}")
    unfinished = renderer.read_text(f"<think>I could {call}", [LOOK])
    assert (unfinished.calls, unfinished.text) == ((), "")


def test_thinking_that_the_prompt_opens_is_read_as_thinking() -> None:
    renderer = ChatRenderer(trained(HERMES.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")))
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    message = renderer.read_text(f"Maybe {call}\n</think>\n\n{call}", [LOOK])
    assert (message.thinking, message.calls) == (f"Maybe {call}", (ToolCall("look", {}, "0"),))
    assert renderer.read_text(f"Maybe {call}", [LOOK]).calls == ()


def test_an_unknown_template_is_refused_with_the_formats_to_choose_from() -> None:
    tokenizer = trained("{% for message in messages %}{{ message.content }}{% endfor %}")
    with pytest.raises(UsageError, match=r"template is unknown.*model\.codec=NAME.*hermes.*qwen_xml"):
        ChatRenderer(tokenizer)
    assert ChatRenderer(tokenizer, ChatConfig(codec="json")).format.name == "json"


def test_an_unknown_codec_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'hermes'"):
        ChatRenderer(trained(), ChatConfig(codec="hermse"))


def test_arguments_that_quote_marks_are_written_and_rendered_as_text() -> None:
    tokenizer = tokenizer_of("qwen3")
    renderer = ChatRenderer(tokenizer)
    quoting = Message("assistant", calls=(ToolCall("open_box", {"note": "</tool_call><|im_end|>"}, "0"),))
    ids = renderer.action_ids(quoting, [OPEN])
    (call,) = renderer.read(ids, [OPEN]).calls
    assert isinstance(call, ToolCall) and call.arguments == {"note": "</tool_call><|im_end|>"}
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    plain = Message("assistant", calls=(ToolCall("open_box", {"note": "b"}, "0"),))
    user = Message("user", "Go.")
    forged, honest = (renderer.prompt_ids((user, said, user), [OPEN]).count(end) for said in (quoting, plain))
    assert forged == honest


def test_long_replies_are_not_kept() -> None:
    renderer = ChatRenderer(tokenizer_of("qwen3"))
    for number in range(20):
        for text in (f"short {number}", f"{number} " * 5_000):
            replies = (Message("user", text),)
            assert renderer.suffix_ids((Message("user", "Go."), Message("assistant", "ok")), replies, (), None)
    assert renderer._kept_suffix.cache_info().currsize <= 20


@pytest.mark.parametrize(
    ("codec", "text", "rest"),
    [
        ("qwen_xml", "<tool_call>\n<function=remove>\n<parameter=path>\n/tmp", "</parameter></function></tool_call>"),
        ("qwen_xml", "<tool_call><function=remove><parameter=path>\n/tmp\n</parameter>", "</function></tool_call>"),
        ("qwen_xml", "<function=remove>\n<parameter=path>\n/tmp", "</parameter></function>"),
        ("glm", "<tool_call>remove\n<arg_key>path</arg_key>\n<arg_value>/tmp", "</arg_value></tool_call>"),
        ("glm", "<tool_call>remove", "</tool_call>"),
        ("mistral", "[TOOL_CALLS]remove", "[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]remove[ARGS]", "{}"),
        ("react", "Action: remove\nAction Input:", " {}"),
        ("harmony", " to=functions.remove<|channel|>commentary json<|message|>", "{}<|call|>"),
        ("compact", "remove: /a\nremove: /tmp", "\n"),
    ],
)
def test_a_call_that_the_token_limit_cut_is_not_carried_out(codec: str, text: str, rest: str) -> None:
    """It can be read as another call, although more was to come. Calls before it stand."""
    tools = [ToolSpec("remove", "Remove.", {"type": "object", "properties": {"path": {"type": "string"}}})]
    renderer = ChatRenderer(trained(), ChatConfig(codec=codec))
    *before, cut = renderer.read_text(text, tools, is_cut=True).calls
    assert isinstance(cut, MalformedCall) and cut.reason == "the token limit cut the call"
    assert cut.span[1] == len(text) and all(isinstance(call, ToolCall) for call in before)
    assert isinstance(renderer.read_text(text, tools).calls[-1], ToolCall), "the model ended it so"
    assert isinstance(renderer.read_text(text + rest, tools, is_cut=True).calls[-1], ToolCall)


@needs("mistral_nemo")
def test_a_result_has_the_id_of_its_call() -> None:
    renderer = ChatRenderer(own_tokenizer("mistral_nemo"))
    calls = tuple(ToolCall("look", {"at": place}, id) for id, place in (("0", "fridge"), ("1", "table")))
    messages = (Message("user", "Look."), Message("assistant", calls=calls))
    reply = Message("tool", "a mug", result=ToolResult("a mug", "look", "1"))
    said = renderer.text_of(renderer.prompt_ids((*messages, reply), [LOOK]))
    assert said.endswith('{"content": a mug, "call_id": "call00001"}[/TOOL_RESULTS]')
