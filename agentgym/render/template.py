"""A chat template and its abilities, which are found by rendering small conversations.

Templates differ in the messages that they accept. Some ignore tools, reject system messages or tool results, accept one
call per message, or expect arguments as JSON text. :class:`ChatTemplate` finds this out once and converts messages
accordingly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from agentgym.errors import UsageError
from agentgym.render.config import ToolsStyle
from agentgym.render.families import FORMATS, Family
from agentgym.render.guard import ContentGuard
from agentgym.render.images import PromptVision, as_parts, digests_of, marked_text, with_marks, with_written
from agentgym.render.rows import (
    Chat,
    merged,
    with_joined_turns,
    with_late_as_user,
    with_one_system,
    with_results,
    with_results_first,
    with_system_text,
    without_system,
)
from agentgym.render.tool_texts import result_text, tools_text
from agentgym.types import Message, ToolCall, ToolSpec


class Tokenizer(Protocol):
    """The required methods of a Hugging Face tokenizer."""

    chat_template: Any
    eos_token_id: Any

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render a conversation with the chat template."""

    def __call__(self, text: object, **kwargs: object) -> object: ...
    def encode(self, text: Any, **kwargs: Any) -> Any:
        """Encode text to token ids."""

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Decode token ids to text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """The abilities of a chat template."""

    tools: bool
    """It renders the tools that are passed to it."""
    system: bool
    """It accepts a system message."""
    system_alone: bool
    """It renders a system message that no user message follows."""
    systems: bool
    """It accepts two system messages at the beginning."""
    late_system: bool
    """It renders a system message after others, in its place."""
    turns: bool
    """It accepts two assistant messages in a row."""
    calls: Literal["many", "one", "none"]
    """Number of calls that it renders per assistant message."""
    text_beside_calls: bool
    """It renders the text of an assistant message that also has calls."""
    arguments: Literal["object", "text"]
    """Type in which it expects the arguments of a call."""
    results: bool
    """It renders tool results, as messages of the role ``tool``."""
    results_alone: bool
    """It renders tool results after a message without calls."""
    repeats: bool
    """It accepts two user messages in a row."""
    user_after_call: bool
    """It renders a user message in place of a call's result."""
    result_after_user: bool
    """It renders a tool result that a user message separates from its call."""
    user_after_result: bool
    """It renders a user message after a tool result."""
    thinking: bool
    """It renders the thinking of the last assistant message."""
    drops_thinking: bool
    """It leaves thinking out of the text of earlier assistant messages."""
    parts: bool
    """It expects content as a list of parts instead of text."""


_PROBE_TOOL = ToolSpec(
    "probe_tool", "Probe.", {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
)
_PROBE_USER = {"role": "user", "content": "probe-user"}


def call_id(index: int) -> str:
    """Return the id of an episode's ``index``-th call: nine letters and digits, as Mistral's templates require.

    Example:
        >>> call_id(7)
        'call00007'
    """
    return f"call{index:05d}"


class ChatTemplate:
    """A renderer of messages to text with a tokenizer's chat template.

    Args:
        tokenizer: a Hugging Face tokenizer with a chat template.
        family: the template's family.
        args: variables for the template, for instance ``{"enable_thinking": False}``.
        tools_style: ``compact`` describes each tool in one line of the first message.
        guard: replaces control texts that do not come from the model; rendered texts contain its placeholders.
        vision: the image processor of a model that sees; None leaves images out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        family: Family,
        args: Mapping[str, Any] | None = None,
        tools_style: ToolsStyle = "schema",
        guard: ContentGuard | None = None,
        vision: PromptVision | None = None,
    ) -> None:
        self._guard, self._vision = guard or ContentGuard(()), vision
        self._tokenizer, self._family, self._args = tokenizer, family, dict(args or {})
        self._tools_style = tools_style
        self._takes_parts = self._probe_parts()
        self.abilities = self._probe()

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, more: bool = True) -> str:
        """Return the text of a conversation; with ``more``, ready for the assistant's next message."""
        tools = self._guard.hidden_tools(tools)
        return self._apply(self.as_chat(messages, tools), tools if self.passes_tools else (), more)

    def notes(self) -> tuple[str, ...]:
        """Return one sentence for each feature that the template lacks, with its replacement."""
        can, said = self.abilities, []
        if self._family.tells_tools and not self.passes_tools:
            why = "is not asked to describe tools" if can.tools else "takes no tools"
            said.append(f"the model's chat template {why}, so they are described in the first message")
        if not can.system:
            said.append("the model's chat template takes no system message, so its text goes into the first user one")
        elif not can.late_system:
            said.append("the model's chat template takes no later system message, so its text becomes the user's")
        if not can.results:
            said.append("the model's chat template takes no tool results, so they are user messages")
        if can.tools and can.calls == "one":
            said.append("the model's chat template takes one call a message, so messages with more are passed as text")
        if opening := self._unopened():
            why = "ignores add_generation_prompt, so the model has to begin its messages itself"
            said.append(f"the model's chat template {why}: {opening}")
        if "strftime_now" in (text := str(self._tokenizer.chat_template)) and "date_string" not in self._args:
            mend = "; fix it by template_args.date_string (docs/models.md)" if "date_string" in text else ""
            said.append(f"the model's chat template writes today's date, so prompts differ from day to day{mend}")
        return tuple(said)

    # ------------------------------------------------------------------------------------------ messages to dicts

    @property
    def passes_tools(self) -> bool:
        """True if the template describes tools itself; otherwise they are text of the first message."""
        if not self.abilities.tools or self._tools_style != "schema":
            return False
        # if the template shows another format than the one that is parsed, it misleads the model
        return self._family.writes_calls or not self._family.tells_tools

    def as_chat(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Chat:
        """Convert messages to the dicts that this template accepts."""
        can, rows, open_ids = self.abilities, list[dict[str, Any]](), list[tuple[str, str]]()
        num_calls = 0
        for message in messages:
            if message.role == "assistant":
                row = self._assistant(message, num_calls)
                own = [call.id for call in message.calls if isinstance(call, ToolCall)]
                open_ids = list(zip(own, [call["id"] for call in row.get("tool_calls", ())], strict=False))
                num_calls += len(open_ids)
            elif message.role == "tool":
                row = self._result(message, open_ids)
            else:
                row = {"role": message.role, "content": self._shown(message)}
            if row.get("tool_calls") and message.text and not can.text_beside_calls:
                rows.append({"role": "assistant", "content": self._guard.hidden_said(message.text)})
            rows.append(row)
        if tools and self._family.tells_tools and not self.passes_tools:
            rows = with_system_text(rows, tools_text(FORMATS[self._family.format], tools, self._tools_style))
        return self._accepted(rows)

    def _accepted(self, rows: Chat) -> Chat:
        """Return the rows in an order and in roles that this template accepts."""
        can = self.abilities
        if not can.system:
            rows = without_system(rows)
        if not can.systems:
            rows = with_one_system(rows)
        if not can.system_alone and all(row["role"] == "system" for row in rows):
            rows = [{**row, "role": "user"} for row in rows]
        if not can.late_system:
            rows = with_late_as_user(rows)
        if not can.turns:
            rows = with_joined_turns(rows)
        if not can.result_after_user:
            rows = with_results_first(rows)
        if not can.user_after_call:
            rows = with_results(rows)
        takes_user = {"user": can.repeats, "tool": can.user_after_result}
        return merged(rows, [role for role, is_taken in takes_user.items() if not is_taken])

    def renders_calls(self, message: Message) -> bool:
        """Return True if the template writes the calls of an assistant message; otherwise the message is passed as
        text.

        A message with a malformed call is passed as sampled, since no template can write it.
        """
        if (
            not self._family.writes_calls
            or not message.calls
            or not all(isinstance(call, ToolCall) for call in message.calls)
        ):
            return False
        return self.abilities.calls == "many" or (self.abilities.calls == "one" and len(message.calls) == 1)

    def _assistant(self, message: Message, first: int) -> dict[str, Any]:
        is_apart = bool(message.thinking) and self.abilities.thinking
        thinking: dict[str, Any] = {}
        if is_apart:
            thinking[self._family.thinking_key] = self._guard.hidden_said(message.thinking)
        if not self.renders_calls(message):
            said = self._guard.hidden_said(self._said(message, is_apart))
            return {"role": "assistant", "content": said, **thinking}
        return {
            "role": "assistant",
            "content": self._guard.hidden_said(message.text) if self.abilities.text_beside_calls else "",
            **thinking,
            "tool_calls": [
                {
                    "type": "function",
                    "id": call_id(first + number),
                    "function": {"name": self._guard.hidden(call.name), "arguments": self._arguments(call)},
                }
                for number, call in enumerate(message.calls)
                if isinstance(call, ToolCall)
            ],
        }

    def _said(self, message: Message, is_apart: bool) -> str:
        """Return the sampled text of an assistant message, without thinking that is passed separately."""
        if not self._family.takes_raw and message.calls and not message.text:
            calls = [call for call in message.calls if isinstance(call, ToolCall)]
            return FORMATS[self._family.format].format(calls, ())
        if not self._family.takes_raw or not isinstance(message.content, str) or not message.content:
            return message.text
        closing = self._family.think[1].strip() if self._family.think else ""
        if is_apart and closing:
            _, found, rest = message.content.rpartition(closing)
            return (rest if found else message.text).strip()  # without a closing mark, the token limit cut thinking
        if message.thinking and not message.text and closing not in message.content and self.abilities.drops_thinking:
            return message.content + closing  # the template drops closed thinking alone
        # templates that take parts write a space before them
        return message.content.strip() if self.abilities.parts else message.content

    def _arguments(self, call: ToolCall) -> object:
        arguments = self._guard.hidden_call(dict(call.arguments))  # templates may quote a page or escape its text
        return json.dumps(arguments, ensure_ascii=False) if self.abilities.arguments == "text" else arguments

    def _result(self, message: Message, open_ids: list[tuple[str, str]]) -> dict[str, object]:
        """Return the row of a tool result.

        Args:
            open_ids: the policy's and the row's id of each call without a result; the answered one is removed. Results
                whose id is unknown answer the first call.
        """
        can, text = self.abilities, self._shown(message)
        if not can.results or (not open_ids and not can.results_alone):
            return {"role": "user", "content": result_text(text)}
        name = self._guard.hidden(message.result.name) if message.result else ""
        own = message.result.call_id if message.result else ""
        place = next((at for at, (id, _) in enumerate(open_ids) if id == own), 0)
        found = open_ids.pop(place)[1] if open_ids else call_id(0)
        return {"role": "tool", "content": text, "name": name, "tool_call_id": found}

    # ---------------------------------------------------------------------------------------------------- private

    def _shown(self, message: Message) -> str:
        """Return the text of a message from outside, with marks for its images if the model sees."""
        return self._guard.hidden(message.text) if self._vision is None else marked_text(message, self._guard.hidden)

    def _apply(self, chat: Chat, tools: Sequence[ToolSpec], more: bool) -> str:
        digests = digests_of(row["content"] for row in chat) if self._vision is not None else []
        if self._vision is None or not digests:
            return self._filled(chat, tools, more)
        whole = [as_parts(row["content"]) if digests_of([row["content"]]) else row["content"] for row in chat]
        with suppress(UsageError):  # a template that takes text alone
            text = self._filled(
                [{**row, "content": parts} for row, parts in zip(chat, whole, strict=True)], tools, more
            )
            if (marked := with_marks(text, self._vision.slot, digests)) is not None:
                return marked
        written = [{**row, "content": with_written(row["content"], self._vision.written)} for row in chat]
        return self._filled(written, tools, more)

    def _filled(self, chat: Chat, tools: Sequence[ToolSpec], more: bool) -> str:
        schemas = [tool.as_function() for tool in tools] or None
        if self._takes_parts:
            chat = [
                {**row, "content": [{"type": "text", "text": row["content"]}]}
                if isinstance(row["content"], str)
                else row
                for row in chat
            ]
        try:
            text = self._tokenizer.apply_chat_template(
                chat, tools=schemas, tokenize=False, add_generation_prompt=more, **self._args
            )
        except Exception as error:  # a template may raise any exception
            roles = " ".join(row["role"] for row in chat)
            raise UsageError(f"the model's chat template refuses the messages {roles}: {error}") from error
        return str(text)

    def _probe_parts(self) -> bool:
        refusals = []
        for self._takes_parts in (False, True):
            try:
                if "probe-user" in self._apply([_PROBE_USER], (), more=True):
                    return self._takes_parts
            except UsageError as error:
                refusals.append(error)
        if len(refusals) > 1:
            raise refusals[0]
        raise UsageError(
            "the model's chat template leaves out what the user says, so the model would play without seeing anything; "
            "mend chat_template.jinja in its folder"
        )

    def _unopened(self) -> str:
        """Return what comes before an assistant's text, where the template does not end a prompt with it."""
        said = {"role": "assistant", "content": "probe-said"}
        with suppress(UsageError):
            prompt = self._apply([_PROBE_USER], (), more=True)
            before, is_found, _ = self._apply([_PROBE_USER, said], (), more=False).partition("probe-said")
            if is_found and before.startswith(prompt) and self._apply([_PROBE_USER], (), more=False) == prompt:
                return before.removeprefix(prompt).strip()
        return ""

    def _probe(self) -> Abilities:
        user = _PROBE_USER

        def shows(chat: Chat, *wanted: str, tools: Sequence[ToolSpec] = ()) -> bool:
            try:
                text = self._apply(chat, tools, more=True)
            except UsageError:
                return False
            places = [text.find(word) for word in wanted]
            return all(text.count(word) == 1 for word in wanted) and places == sorted(places)

        def calling(count: int, content: str = "", as_text: bool = False) -> dict[str, Any]:
            arguments: Any = [{"key": f"probe-value-{number}"} for number in range(count)]
            calls = [
                {
                    "type": "function",
                    "id": call_id(number),
                    "function": {"name": "probe_tool", "arguments": json.dumps(value) if as_text else value},
                }
                for number, value in enumerate(arguments)
            ]
            return {"role": "assistant", "content": content, "tool_calls": calls}

        def result(number: int) -> dict[str, Any]:
            content = f"probe-result-{number}"
            return {"role": "tool", "content": content, "name": "probe_tool", "tool_call_id": call_id(number)}

        def takes_calls(count: int, as_text: bool) -> bool:
            chat = [user, calling(count, as_text=as_text), *(result(number) for number in range(count))]
            return shows(chat, *(f"probe-value-{number}" for number in range(count)), tools=[_PROBE_TOOL])

        as_text = not takes_calls(1, False) and takes_calls(1, True)
        calls: Literal["many", "one", "none"] = (
            "many" if takes_calls(2, as_text) else "one" if takes_calls(1, as_text) else "none"
        )
        asked = calling(1, as_text=as_text) if calls != "none" else {"role": "assistant", "content": "probe-said"}
        spoken = calling(1, "probe-said", as_text)
        second = [{**spoken["tool_calls"][0], "id": call_id(1)}]
        alone = [user, {"role": "assistant", "content": "probe-said"}, result(0)]
        thinking: dict[str, Any] = {self._family.thinking_key: "probe-thought"}
        again = {"role": "user", "content": "probe-again"}
        system = {"role": "system", "content": "probe-system"}
        late = {"role": "system", "content": "probe-late"}
        answer = {"role": "assistant", "content": "probe-said"}
        more = {"role": "assistant", "content": "probe-more"}
        results = shows([user, asked, result(0)], "probe-result-0", tools=[_PROBE_TOOL])
        marks = self._family.think or ("", "")
        thought = {"role": "assistant", "content": f"{marks[0]}probe-thought{marks[1]}probe-said"}
        return Abilities(
            tools=shows([user], "probe-user", tools=[_PROBE_TOOL])
            and "probe_tool" in self._apply([user], [_PROBE_TOOL], more=True),
            system=shows([system, user], "probe-system", "probe-user"),
            system_alone=shows([system], "probe-system"),
            systems=shows([system, late, user], "probe-system", "probe-late", "probe-user"),
            late_system=shows([user, late], "probe-user", "probe-late")
            and shows([system, user, answer, late, again], "probe-system", "probe-said", "probe-late", "probe-again")
            and (not results or shows([user, asked, result(0), late], "probe-late", tools=[_PROBE_TOOL])),
            turns=shows([user, answer, more, again], "probe-said", "probe-more", "probe-again"),
            calls=calls,
            text_beside_calls=calls != "none"
            and shows([user, spoken, result(0)], "probe-said", "probe-value-0")
            and shows([user, spoken, result(0), more, again], "probe-said", "probe-value-0", "probe-more")
            and shows([user, asked, result(0), {**spoken, "tool_calls": second}, result(1)], "probe-said"),
            arguments="text" if as_text else "object",
            results=results,
            results_alone=shows(alone, "probe-result-0", tools=[_PROBE_TOOL]),
            repeats=shows([user, again], "probe-user", "probe-again"),
            user_after_call=not results or shows([user, asked, again], "probe-again", tools=[_PROBE_TOOL]),
            result_after_user=not results
            or shows([user, asked, again, result(0)], "probe-again", "probe-result-0", tools=[_PROBE_TOOL]),
            user_after_result=not results
            or shows([user, asked, result(0), again], "probe-result-0", "probe-again", tools=[_PROBE_TOOL]),
            thinking=shows([user, {**asked, **thinking}, *([result(0)] if calls != "none" else [])], "probe-thought"),
            drops_thinking=shows([user, thought, again], "probe-said")
            and not shows([user, thought, again], "probe-thought"),
            parts=self._takes_parts,
        )
