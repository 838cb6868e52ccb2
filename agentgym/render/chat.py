"""Messages to token ids through a tokenizer's chat template, a suffix at a time.

A prompt is rendered once. After that only what the environment adds is rendered, as the text that follows an assistant
message, so that sampled tokens are never decoded and encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from agentgym.errors import UsageError
from agentgym.render.codecs import Codec, codec_named, codec_of_template
from agentgym.types import Call, Message, Observation, ToolSpec

_SENTINEL = "agentgym-assistant-text"


class Tokenizer(Protocol):
    """What is needed of a Hugging Face tokenizer."""

    chat_template: Any
    eos_token_id: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any: ...
    def __call__(self, text: Any, **kwargs: Any) -> Any: ...
    def encode(self, text: Any, **kwargs: Any) -> Any: ...
    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...


class ChatRenderer:
    """Renders conversations for one tokenizer and reads completions back.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        codec: name of the tool-call format, or ``auto`` to take the one the template asks for.

    Raises:
        UsageError: if the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Tokenizer, codec: str = "auto") -> None:
        template = tokenizer.chat_template
        if not template:
            raise UsageError(
                "the model has no chat template, so its conversations cannot be rendered; "
                "use an instruction-tuned model, or add chat_template.jinja to its folder"
            )
        self.codec: Codec = codec_of_template(str(template)) if codec == "auto" else codec_named(codec)
        self._tokenizer, self._codec_name = tokenizer, codec
        self._drops_thinking = "</think>" in str(template)
        self._suffix = lru_cache(maxsize=4096)(self._render_suffix)
        self.turn_end_ids = self._find_turn_end()

    def __reduce__(self) -> tuple[type[ChatRenderer], tuple[Any, str]]:
        return type(self), (self._tokenizer, self._codec_name)  # what is cached would not come along

    # ----------------------------------------------------------------------------------------------- to token ids

    def prompt_ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """The whole conversation, ready for the assistant's next message."""
        return self._encode(self._render([_as_dict(m) for m in messages], tools))

    def suffix_ids(self, replies: Observation, *, turn_ended: bool) -> tuple[int, ...]:
        """What ``replies`` add after an assistant message, ready for the next one.

        ``turn_ended`` says that the completion already holds the token that ends an assistant message.
        """
        ids = self._suffix(tuple(_Reply(message) for message in replies))
        return ids[1:] if turn_ended and ids[:1] == self.turn_end_ids[:1] else ids

    def keeps_prefix(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> bool:
        """False if the template, asked for the whole conversation, would change an assistant message in it.

        Templates of thinking models drop the thinking of earlier messages.
        """
        spoken = [m.text.strip() for m in messages if m.role == "assistant"]
        if not self._drops_thinking or not any("</think>" in text for text in spoken):
            return True
        rendered = self._render([_as_dict(m) for m in messages], tools)
        at = 0
        for text in spoken:
            at = rendered.find(text, at)
            if at < 0:
                return False
            at += len(text)
        return True

    # --------------------------------------------------------------------------------------------- from token ids

    def read(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Message:
        """A completion as the assistant message it is, with its calls."""
        ids = token_ids[:-1] if token_ids and token_ids[-1] in self.turn_end_ids else token_ids
        text = str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
        return Message("assistant", text, self.codec.parse(text, tools) if tools else ())

    def action_text(self, action: Message, tools: Sequence[ToolSpec]) -> str:
        """An action as a policy would write it: its calls in the codec's format, or its text if it has none."""
        calls = [call for call in action.calls if not _is_malformed(call)]
        return self.codec.format(calls, tools) if calls and tools else action.text  # type: ignore[arg-type]

    def action_ids(self, action: Message, tools: Sequence[ToolSpec]) -> tuple[int, ...]:
        """A demonstrated action as a completion: :meth:`action_text`, then the end of the turn."""
        return (*self._encode(self.action_text(action, tools)), self.turn_end_ids[0])

    def spoken_ids(self, text: str, span: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """A text that the assistant might say next, and which of its ids hold characters of the half-open ``span``.

        Raises:
            UsageError: the tokenizer cannot say which characters a token holds.
        """
        try:
            encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        except NotImplementedError as error:
            raise UsageError(
                "the model's tokenizer gives no character offsets, so the answer's tokens cannot be found; "
                "use a model with a fast tokenizer (tokenizer.json in its folder)"
            ) from error
        first, last = span
        offsets = encoded["offset_mapping"]
        inside = tuple(index for index, (start, end) in enumerate(offsets) if start < last and end > first)
        return tuple(encoded["input_ids"]), inside

    # ---------------------------------------------------------------------------------------------------- private

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False))

    def _render(self, conversation: list[dict[str, Any]], tools: Sequence[ToolSpec] = (), more: bool = True) -> str:
        schemas = [tool.as_function() for tool in tools] or None
        return str(
            self._tokenizer.apply_chat_template(conversation, tools=schemas, tokenize=False, add_generation_prompt=more)
        )

    def _render_suffix(self, replies: tuple[_Reply, ...]) -> tuple[int, ...]:
        opening = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _SENTINEL}]
        text = self._render([*opening, *(_as_dict(reply.message) for reply in replies)])
        return self._encode(text.partition(_SENTINEL)[2])

    def _find_turn_end(self) -> tuple[int, ...]:
        suffix = self._render_suffix((_Reply(Message("user", "?")),))
        ends = [suffix[0]] if suffix else []
        if self._tokenizer.eos_token_id is not None and self._tokenizer.eos_token_id not in ends:
            ends.append(int(self._tokenizer.eos_token_id))
        return tuple(ends)


class _Reply:
    """A message as a cache key: by what a template sees of it."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._key = (message.role, message.content, message.result.name if message.result else "")

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reply) and other._key == self._key


def _as_dict(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.text}
    if message.result is not None:
        row |= {"name": message.result.name, "tool_call_id": message.result.call_id}
    return row


def _is_malformed(call: Call) -> bool:
    return not hasattr(call, "arguments")
