"""Conversion of messages to token ids through a chat template, one suffix at a time, and of completions to messages.

The first prompt is rendered completely. After that, only new messages of the environment are rendered, as the text
after an assistant message. Sampled tokens are therefore never decoded and encoded again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

from agentgym.errors import UsageError
from agentgym.media import id_of
from agentgym.render.cache_keys import ActionKey, ReplyKey
from agentgym.render.config import ChatConfig
from agentgym.render.families import FORMATS, known_family
from agentgym.render.formats.cut import open_call
from agentgym.render.formats.harmony import Harmony
from agentgym.render.formats.plain import Compact, CompactOrWords
from agentgym.render.formats.reading import SHOWN, Reading, as_json
from agentgym.render.guard import INSIDE, ContentGuard, control_texts
from agentgym.render.images import IMAGE_MARK, PromptVision, expanded
from agentgym.render.template import ChatTemplate, Tokenizer
from agentgym.render.thinking import Thought, split_thinking
from agentgym.render.token_bytes import TokenBytes
from agentgym.types import MalformedCall, Message, Observation, Role, ToolCall, ToolResult, ToolSpec

_SENTINEL = "agentgym-assistant-text"
_LONGEST_KEPT = 4096
"""Longest replies, in characters, whose suffix is cached. 4,096 suffixes take tens of megabytes at most."""
_USER = Message("user", "?")


class ChatRenderer:
    """A renderer of conversations for one tokenizer, and parser of its completions.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        config: tool-call format, variables of the template, and the style of tool descriptions.
        end_ids: further tokens that end an assistant's message, beside those of the template and the tokenizer.
        takes_words: True for environments to which the policy also speaks (``Env.takes_words``), so that words are
            words in formats whose calls have no marks.
        vision: the image processor of a model that sees. Without it prompts hold the text of messages alone.

    Raises:
        UsageError: the tokenizer has no chat template, or its family is unknown and ``config.codec`` is ``auto``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        config: ChatConfig = ChatConfig(),  # noqa: B008  (frozen)
        end_ids: Sequence[int] = (),
        *,
        takes_words: bool = False,
        vision: PromptVision | None = None,
    ) -> None:
        self._tokenizer, self.vision = tokenizer, vision
        self.why_text_only = ""
        self._further_ends, self._takes_words = tuple(end_ids), takes_words
        self.config = config
        self.family = known_family(str(tokenizer.chat_template or ""), config.codec)
        form = FORMATS[self.family.format]
        self.format = CompactOrWords() if takes_words and isinstance(form, Compact) else form
        of_images = () if vision is None else (IMAGE_MARK, *vision.control_texts)
        self._guard = ContentGuard(tuple(dict.fromkeys((*of_images, *control_texts(tokenizer)))), (_SENTINEL,))
        self.template = ChatTemplate(
            tokenizer, self.family, config.template_args, config.tools_style, self._guard, vision
        )
        self._kept_suffix = lru_cache(maxsize=4096)(self._short_suffix)
        self._kept_action = lru_cache(maxsize=4096)(self._write_action)
        self._is_plain = lru_cache(maxsize=256)(self._probe_shape)
        self._kept_ids = lru_cache(maxsize=4096)(self._tokenized)
        pieces = [*self._encode_after(INSIDE, ""), *self._encode_after("a", "")]
        self._adds_spaces = pieces != self._encode_after(f"{INSIDE}a", "")
        first = self.template.render([_USER], ())
        self.opens_thinking = self._opens(first)
        self._end_of_prompt = self._guard.end_of(first)
        self._ends = self._find_ends()
        self.turn_end_ids = tuple(self._ends)
        self._guard.allow(self._own_marks())

    def __reduce__(self) -> tuple[object, ...]:
        # bound methods with a cache cannot be pickled
        return _renderer, (self._tokenizer, self.config, self._further_ends, self._takes_words, self.vision)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about features that the chat template lacks and their replacements."""
        return self.template.notes()

    def in_style(self, config: ChatConfig) -> ChatRenderer:
        """Return a renderer of the same tokenizer with other settings."""
        return _renderer(self._tokenizer, config, self._further_ends, self._takes_words, self.vision)

    def for_words(self, takes_words: bool) -> ChatRenderer:
        """Return the renderer for an environment that takes words, or for one that does not.

        They differ in formats whose calls have no marks (``compact``), where every line is a call unless words are
        taken.
        """
        is_same = takes_words == self._takes_words or not isinstance(self.format, Compact)
        return self if is_same else self._other

    @cached_property
    def _other(self) -> ChatRenderer:
        return _renderer(self._tokenizer, self.config, self._further_ends, not self._takes_words, self.vision)

    # ------------------------------------------------------------------------------------- messages to token ids

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """Return the token ids of a whole conversation, ready for the assistant's next message."""
        return self._encode(self.template.render(messages, tools))

    def suffix_ids(
        self, messages: Sequence[Message], replies: Observation, tools: Sequence[ToolSpec], end: int | None
    ) -> tuple[int, ...] | None:
        """Return the token ids that ``replies`` add to a conversation, ready for the assistant's next message.

        Args:
            messages: the conversation; the last message is the assistant's.
            replies: the messages to add.
            end: the sampled token that ended the last message; None if it was truncated.

        Returns:
            The token ids that follow the sampled ones. None if the template would change an earlier message in the
            whole conversation, so that a new segment must begin.
        """
        said = messages[-1]
        shape = (len(said.calls), tuple(reply.role for reply in replies))
        is_simple = not any(self._has_thinking(message) for message in messages if message.role == "assistant")
        is_simple = is_simple and not (said.text.strip() and self.template.renders_calls(said))
        if self.config.keeps_history or (is_simple and self._is_plain(shape, bool(tools))):
            names = tuple(call.name if isinstance(call, ToolCall) else "" for call in said.calls)
            is_short = sum(map(len, names)) + sum(len(str(reply.content)) for reply in replies) <= _LONGEST_KEPT
            suffix = self._kept_suffix if is_short else self._short_suffix
            text: str | None = suffix(names, tuple(ReplyKey(message) for message in replies))
        else:
            text = self._suffix_in_place(messages, replies, tools)
        if text is None:
            return None
        ids = self._encode(text, INSIDE)
        if end is not None and ids[:1] != (end,) and not self.config.keeps_history:
            return None
        return ids if end is None else ids[1:]

    # ------------------------------------------------------------------------------------- token ids to messages

    def opens_after(self, prompt_ids: Sequence[int]) -> bool:
        """Return True if a prompt ends with the opening mark of thinking, so that the completion begins inside it.

        Some templates open thinking only for the first message, or not after tool results.
        """
        think = self.family.think
        if not self.opens_thinking or think is None:
            return False
        num_last = len(self._encode(think[0])) + 1
        return self._opens(self.text_of(prompt_ids[-num_last:]))

    def read(
        self,
        token_ids: Sequence[int],
        tools: Sequence[ToolSpec],
        *,
        is_open: bool | None = None,
        is_cut: bool = False,
    ) -> Message:
        """Parse a completion into an assistant message with thinking, text and calls.

        Args:
            is_open: True if the prompt opened the thinking (:meth:`opens_after`); None for a first prompt.
            is_cut: the completion met the token limit. A call that may lack a part is then malformed.
        """
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self._ends else token_ids
        return self.read_text(self.text_of(ids), tools, is_open=is_open, is_cut=is_cut)

    def read_text(
        self, text: str, tools: Sequence[ToolSpec], *, is_open: bool | None = None, is_cut: bool = False
    ) -> Message:
        """Parse the text of a completion into a message. Text inside thinking is never a call."""
        thought = self._thought(text, is_open)
        reading = self._parsed(thought.rest, tools) if tools else Reading(thought.rest.strip())
        if is_cut:
            reading = self._without_cut_call(reading, thought.rest, tools)
        calls = reading.calls_after(len(text) - len(thought.rest))
        return Message("assistant", text, calls, thinking=thought.thinking, answer=reading.text)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """Decode token ids to text, special tokens included and images left out."""
        ids = list(token_ids) if self.vision is None else [one for one in token_ids if one >= 0]
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    @property
    def thinks_first(self) -> bool:
        """False for harmony, which may think between calls."""
        return not isinstance(self.format, Harmony)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """Bytes of single tokens."""
        return TokenBytes(self._tokenizer)

    def num_thinking_tokens(self, token_ids: Sequence[int], *, is_open: bool | None = None) -> int:
        """Return the number of thinking tokens at the start of a completion, including the thinking marks."""
        whole = self._thought(self.text_of(token_ids), is_open)
        if not whole.thinking or not self.thinks_first:
            return 0
        if not whole.is_closed:
            return len(token_ids)

        def is_closed(num_tokens: int) -> bool:
            thought = self._thought(self.text_of(token_ids[:num_tokens]), is_open)
            return bool(thought.thinking) and thought.is_closed

        return bisect_left(range(len(token_ids)), True, key=is_closed)

    def action_text(self, action: Message, tools: Sequence[ToolSpec], *, is_open: bool | None = None) -> str:
        """Return an action in the model's own format: its calls, or its text if it has none.

        Thinking is included if the family has a format for it, and text beside calls if the message holds it separately
        (``answer``).
        """
        return self._guard.shown(self._hidden_action(action, tools, is_open))

    def _hidden_action(self, action: Message, tools: Sequence[ToolSpec], is_open: bool | None) -> str:
        """Return the text of an action with placeholders for control texts that it quotes."""
        calls = tuple(call for call in action.calls if isinstance(call, ToolCall)) if tools else ()
        text = (action.answer or "") if calls else action.text
        if isinstance(self.format, CompactOrWords) and tools:
            text = self.format.written(text, tools)
        begins_inside = self.opens_thinking if is_open is None else is_open
        if begins_inside or action.thinking:
            return self._with_thinking(action.thinking, text, calls, tools, begins_inside)
        return self._plain_text(text, calls, tools)

    def action_ids(self, action: Message, tools: Sequence[ToolSpec], *, is_open: bool | None = None) -> tuple[int, ...]:
        """Return a demonstrated action as a completion: the tokens of :meth:`action_text` and the end-of-turn token."""
        key = ActionKey(action, tools, is_open)
        return self._kept_action(key) if key.size <= _LONGEST_KEPT else self._write_action(key)

    def _write_action(self, key: ActionKey) -> tuple[int, ...]:
        text = self._hidden_action(key.action, key.tools, key.is_open)
        return (*self._encode(text, self._end_of_prompt), self._end_after(key.action, key.tools))

    def spoken_ids(self, text: str, span: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return a text's token ids and the indices of those that contain characters of the half-open ``span``.

        Raises:
            UsageError: the tokenizer gives no character offsets.
        """
        encoded = self._with_offsets(text)
        first, last = span
        offsets = encoded["offset_mapping"]
        inside = tuple(index for index, (start, end) in enumerate(offsets) if start < last and end > first)
        return tuple(encoded["input_ids"]), inside

    def token_spans(self, token_ids: Sequence[int]) -> tuple[str, tuple[tuple[int, int], ...]]:
        """Return the text of rendered token ids and the half-open character range of each token.

        Raises:
            UsageError: the tokenizer gives no character offsets, or encodes the text as other ids.
        """
        text = self.text_of(token_ids)
        encoded = self._with_offsets(text)
        if tuple(encoded["input_ids"]) != tuple(token_ids):
            raise UsageError(
                "the model's tokenizer encodes the text of a prompt as other tokens, so the tokens of its messages "
                "cannot be found; leave sft.loss_roles as it is by default"
            )
        return text, tuple(encoded["offset_mapping"])

    # --------------------------------------------------------------------------------- private: suffixes

    def _suffix_in_place(
        self, messages: Sequence[Message], replies: Observation, tools: Sequence[ToolSpec]
    ) -> str | None:
        """Render the whole conversation and return the text after the assistant's last message."""
        said = messages[-1]
        before = self.template.render(messages[:-1], tools)
        whole = self.template.render([*messages, *replies], tools)
        marked = self.template.render([*messages[:-1], self._marked(said), *replies], tools)
        suffix = self._after_mark(marked)
        if suffix is None or not whole.startswith(before) or not whole.endswith(suffix):
            return None
        is_open = self._opens(before)
        text = self._guard.shown(whole[len(before) : len(whole) - len(suffix)])
        written = self.read_text(text, tools, is_open=is_open)
        if (written.thinking, written.text, _facts(written)) != (said.thinking, said.text, _facts(said)):
            return None
        if self._thought(text, is_open).is_closed != self._thought(str(said.content), is_open).is_closed:
            return None  # the template closes thinking that the token limit cut
        return suffix if self._has_thinking(written) == self._has_thinking(said) else None

    def _short_suffix(self, names: tuple[str, ...], replies: tuple[ReplyKey, ...]) -> str | None:
        """Return the suffix rendered after a short conversation, for templates whose suffix does not depend on earlier
        messages.
        """
        said = self._marked(Message("assistant", calls=tuple(ToolCall(name or "tool") for name in names)))
        return self._after_mark(self.template.render([_USER, said, *(reply.message for reply in replies)], ()))

    def _probe_shape(self, shape: tuple[int, tuple[Role, ...]], has_tools: bool) -> bool:
        """Return True if suffixes of this shape neither depend on nor change the earlier conversation."""
        num_calls, roles = shape
        tools = (_PROBE,) if has_tools else ()
        replies = tuple(_reply(role, f"probe {number}") for number, role in enumerate(roles))
        said = Message("assistant", "" if num_calls else "said", calls=tuple(_call(n) for n in range(num_calls)))
        called = (_USER, Message("assistant", calls=(_call(7),)), _reply("tool", "r"))
        longer = (Message("system", "s"), *called, Message("assistant", "a"), _USER)
        suffixes = set()
        for opening in ((_USER,), called, longer):
            try:
                before = self.template.render(opening, tools)
                whole = self.template.render([*opening, said, *replies], tools)
                suffixes.add(self._after_mark(self.template.render([*opening, self._marked(said), *replies], tools)))
            except UsageError:
                return False
            if not whole.startswith(before):
                return False
        names = tuple(_PROBE.name for _ in range(num_calls))
        suffixes.add(self._short_suffix(names, tuple(ReplyKey(reply) for reply in replies)))
        return len(suffixes) == 1 and None not in suffixes

    def _marked(self, said: Message) -> Message:
        """Return an assistant message with the sentinel as its last text."""
        calls = tuple(call for call in said.calls if isinstance(call, ToolCall))
        if not self.template.renders_calls(said):
            return Message("assistant", _SENTINEL)
        return Message("assistant", calls=(*calls[:-1], replace(calls[-1], arguments={"key": _SENTINEL})))

    def _after_mark(self, text: str) -> str | None:
        """Return the text after the marked assistant message, or None if the template omits the mark."""
        _, found, tail = text.rpartition(_SENTINEL)
        if not found:
            return None
        starts = [at for at in (tail.find(end) for end in self._ends.values()) if at >= 0]
        return tail[min(starts) :] if starts else None

    # ---------------------------------------------------------------------------------------------------- private

    def _with_offsets(self, text: str) -> Any:
        try:
            return self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        except NotImplementedError as error:
            raise UsageError(
                "the model's tokenizer gives no character offsets, so the tokens of a text cannot be found; "
                "use a model with a fast tokenizer (tokenizer.json in its folder)"
            ) from error

    def _parsed(self, text: str, tools: Sequence[ToolSpec]) -> Reading:
        try:
            return self.format.parse(text, tools)
        except Exception as error:  # a bug in a format becomes a malformed call and does not end the run
            reason = f"the call cannot be read ({type(error).__name__})"
            return Reading("", (MalformedCall((0, len(text)), reason, text[:SHOWN]),))

    def _without_cut_call(self, reading: Reading, text: str, tools: Sequence[ToolSpec]) -> Reading:
        """Return a parsed text in which a call that the token limit may have cut is malformed."""
        start = open_call(self.format.name, text)
        if start is None or not reading.calls or not self._parsed(text[start:], tools).calls:
            return reading
        cut = MalformedCall((start, len(text)), "the token limit cut the call", text[start : start + SHOWN])
        return replace(reading, calls=(*reading.calls[:-1], cut))

    def _plain_text(self, text: str, calls: tuple[ToolCall, ...], tools: Sequence[ToolSpec]) -> str:
        """Return the text of a completion without thinking."""
        said = Message("assistant", text, calls)
        if not calls:
            return self._written(said, tools) or self._guard.hidden_said(text)
        written = "\n".join([*([text] if text else []), self.format.format(calls, tools)])
        if self._quotes_marks(calls):  # templates write these texts unescaped, so that the call would end there
            return self._guard.hidden_said(written)
        if not self.template.renders_calls(said) or (text and not self.template.abilities.text_beside_calls):
            said = Message("assistant", written)
        return self._written(said, tools) or self._guard.hidden_said(written)

    def _quotes_marks(self, calls: tuple[ToolCall, ...]) -> bool:
        written = as_json([dict(call.arguments) for call in calls]) if self.format.marks else ""
        return any(mark in written for mark in self.format.marks)

    def _with_thinking(
        self, thinking: str, text: str, calls: tuple[ToolCall, ...], tools: Sequence[ToolSpec], is_open: bool
    ) -> str:
        """Return the text of a completion with thinking, in the template's format for a last message, else in the
        family's.
        """
        said = Message("assistant", text, calls, thinking=thinking, answer=text)
        is_plain = not self._quotes_marks(calls)
        if is_plain and is_open == self.opens_thinking and (not calls or self.template.renders_calls(said)):
            before = self.template.render([_USER], tools)
            whole = self.template.render([_USER, said], tools, more=False).rstrip()
            end = next((end for end in self._ends.values() if end and whole.endswith(end)), "")
            body = whole[len(before) : len(whole) - len(end)]
            read = self.read_text(self._guard.shown(body), tools)
            is_same = (read.thinking, read.text, _facts(read)) == (thinking.strip(), text.strip(), _facts(said))
            if whole.startswith(before) and is_same:
                return body
        plain = self._plain_text(text, calls, tools)
        if self.family.think is None:
            return plain
        opening, closing = (mark.strip() for mark in self.family.think)
        thought = f"{self._guard.hidden_said(thinking)}\n{closing}\n\n{plain}"
        return thought if is_open else f"{opening}\n{thought}"

    def _encode(self, text: str, before: str = "") -> tuple[int, ...]:
        return (self._kept_ids if len(text) <= _LONGEST_KEPT else self._tokenized)(text, before)

    def _tokenized(self, text: str, before: str) -> tuple[int, ...]:
        if self.vision is None or IMAGE_MARK not in text:
            return self._guard.encoded(text, self._encode_after, before)
        ids: list[int] = []
        for piece, digest, count in expanded(text, self.vision):
            ids += self._guard.encoded(piece, self._encode_after, before) if piece else ()
            if count:
                ids += [id_of(digest)] * count
                before = self.vision.pad
        return tuple(ids)

    def _encode_after(self, text: str, before: str) -> list[int]:
        """Encode a text that follows another one. Some tokenizers add a space to the start of every text."""
        if before and self._adds_spaces:
            known, whole = self._encode_after(before, ""), self._encode_after(before + text, "")
            if whole[: len(known)] == known:
                return whole[len(known) :]
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _has_thinking(self, message: Message) -> bool:
        """Return True if a message contains thinking or an empty thinking block, both of which templates may drop."""
        think = self.family.think
        return bool(message.thinking) or (think is not None and think[1].strip() in str(message.content))

    def _opens(self, prompt: str) -> bool:
        think = self.family.think
        return think is not None and prompt.rstrip().endswith(think[0].strip())

    def _thought(self, text: str, is_open: bool | None = None) -> Thought:
        if isinstance(self.format, Harmony):
            return Thought(self.format.thinking(text), text, True)
        return split_thinking(text, self.family.think, is_open=self.opens_thinking if is_open is None else is_open)

    def _written(self, said: Message, tools: Sequence[ToolSpec]) -> str | None:
        """Return an assistant message as the chat template writes it after a prompt; None if the prompt changes."""
        before = self.template.render([_USER], tools)
        whole = self.template.render([_USER, said, *self._after(said)], tools)
        suffix = self._suffix_after(said, tools)
        if suffix is None or not whole.startswith(before) or not whole.endswith(suffix):
            return None
        return whole[len(before) : len(whole) - len(suffix)]

    def _after(self, said: Message) -> Observation:
        """Return messages that may follow an assistant message: results of its calls, or a user message."""
        if self.template.renders_calls(said) and self.template.abilities.results:
            return tuple(_reply("tool", "?") for _ in said.calls)
        return (_USER,)

    def _suffix_after(self, said: Message, tools: Sequence[ToolSpec]) -> str | None:
        return self._after_mark(self.template.render([_USER, self._marked(said), *self._after(said)], tools))

    def _end_after(self, action: Message, tools: Sequence[ToolSpec]) -> int:
        """Return the token that ends an action. Some templates end calls and text with different tokens."""
        calls = tuple(call for call in action.calls if isinstance(call, ToolCall)) if tools else ()
        if not calls:
            return self.turn_end_ids[0]
        first = self._encode(self._suffix_after(Message("assistant", calls=calls), tools) or "")[:1]
        return first[0] if first and first[0] in self._ends else self.turn_end_ids[0]

    def _own_marks(self) -> frozenset[str]:
        """Return the control texts that completions need for thinking and calls, without those that end a turn."""
        if not self.family.takes_raw:
            return frozenset()
        example = self.format.format([_call(0), _call(1)], [_PROBE])
        needed = map(self._guard.found, (*(self.family.think or ()), *self.format.marks, example))
        return frozenset[str]().union(*needed).difference(self._ends.values())

    def _find_ends(self) -> dict[int, str]:
        """Return the tokens that end an assistant message with their texts, the template's own first."""
        _, _, tail = self.template.render([_USER, Message("assistant", _SENTINEL), _USER], ()).rpartition(_SENTINEL)
        # some templates write white space before the token that ends a turn
        ids = list(self._encode(self._guard.first(tail) or tail)[:1])
        for text in self.family.ends:
            encoded = self._encode(text)
            ids += encoded if len(encoded) == 1 else ()
        if self._tokenizer.eos_token_id is not None:
            ids.append(int(self._tokenizer.eos_token_id))
        ids += self._further_ends
        return {one: self.text_of([one]) for one in ids}


_PROBE = ToolSpec("probe_tool", "Probe.", {"type": "object", "properties": {"key": {"type": "string"}}})


def _call(number: int) -> ToolCall:
    return ToolCall(_PROBE.name, {"key": f"value {number}"})


def _reply(role: Role, text: str) -> Message:
    return Message(role, text, result=ToolResult(text, _PROBE.name) if role == "tool" else None)


def _facts(message: Message) -> list[tuple[str, object]]:
    return [(c.name, dict(c.arguments)) if isinstance(c, ToolCall) else ("", c.text) for c in message.calls]


def _renderer(
    tokenizer: Tokenizer, config: ChatConfig, end_ids: Sequence[int], takes_words: bool, vision: PromptVision | None
) -> ChatRenderer:
    return ChatRenderer(tokenizer, config, end_ids, takes_words=takes_words, vision=vision)
