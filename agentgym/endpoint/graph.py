"""The requests of one episode as a graph of shared prefixes, from which training rows are made.

If the messages of a call continue an earlier call, its prompt is the earlier call's exact tokens and the rendered new
messages. The graph recognises an assistant message that the endpoint has returned and uses the tokens that were sampled
for it. A history that was rewritten, compacted or continued twice begins a new segment, in which earlier tokens belong
to the prompt. Each sampled token is therefore trained once, in the segment in which it was sampled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentgym.canonical import canonical
from agentgym.render.chat import ChatRenderer
from agentgym.types import Call, Completion, FinishReason, MalformedCall, Message, ToolCall, ToolResult, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """A completion in the graph."""

    ordinal: int
    """Index among the episode's completions, in the order of sampling."""
    segment: int
    depth: int
    is_main: bool
    added_ids: tuple[int, ...]
    """Prompt tokens since the segment's last completion; the whole prompt if it begins a segment."""
    completion: Completion
    action: Message
    """Message parsed from the completion, malformed calls included."""
    returned: Message
    """Message as the agent received it."""
    history: tuple[Message, ...]
    """All messages up to and including ``action``."""
    tokens: tuple[int, ...]
    """Prompt and completion, shape ``[T]``."""

    @property
    def end(self) -> int | None:
        """Token that ended the message; None if the token limit did."""
        ids = self.completion.token_ids
        return ids[-1] if ids and self.completion.finish_reason is FinishReason.STOP else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The prompt of a call, before sampling."""

    chain: str
    """Digest of the tools and of all messages."""
    tools: tuple[ToolSpec, ...]
    messages: tuple[Message, ...]
    token_ids: tuple[int, ...]
    added_ids: tuple[int, ...]
    segment: int
    """Index of the segment that it continues; -1 if it begins one."""
    depth: int
    """Number of earlier completions in its conversation."""
    is_main: bool
    """True in the episode's first conversation, as long as its history is neither changed nor continued twice."""
    parent: int = -1
    """Ordinal of the completion that only this prompt continues; -1 if there is none."""


class CallGraph:
    """The requests of one episode.

    Example (two linear calls, then one with another history)::

        prompt A | completion 0 | suffix | completion 1      segment 0
        prompt B | completion 2                              segment 1
    """

    def __init__(self, renderer: ChatRenderer) -> None:
        self._renderer = renderer
        self.sampled: list[Sampled] = []
        self.num_segments = 0
        self._tails: dict[int, int] = {}
        """Ordinal of each segment's last completion. A segment is missing while a call that continues it is being
        sampled."""
        self._has_main = False
        self._by_chain: dict[str, list[Sampled]] = {}
        self._by_key: dict[tuple[Any, ...], Message] = {}
        self._calls: dict[str, ToolCall] = {}

    def prompt(self, messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> Prompt:
        """Return the prompt of a call and reserve the segment that it continues until :meth:`add` or :meth:`drop`.

        Raises:
            UsageError: the chat template does not accept the messages.
        """
        chains = _chains(messages, tools)
        for num_known in range(len(messages) - 1, 0, -1):
            found = self._by_chain.get(chains[num_known])
            rest = messages[num_known:]
            if found and all(message.role != "assistant" for message in rest):
                return self._continued(self._free_of(found), rest, tools, chains[-1])
        own = tuple(self._own(message, tools) for message in messages)
        token_ids = self._renderer.prompt_ids(own, tools)
        is_main, self._has_main = not self._has_main, True
        return Prompt(
            chain=chains[-1], tools=tools, messages=own, token_ids=token_ids, added_ids=token_ids, segment=-1, depth=0,
            is_main=is_main,
        )  # fmt: skip

    def add(
        self, prompt: Prompt, completion: Completion, returned: Message, action: Message, stop: str = ""
    ) -> Sampled:
        """Add the completion of a prompt and return its node in the graph.

        Args:
            returned: the message as the agent receives it, with the endpoint's call ids.
            action: the message as the renderer parsed it.
            stop: the stop text that ended the completion; some agents append it when they send the message back.
        """
        segment = prompt.segment
        if segment < 0:
            segment, self.num_segments = self.num_segments, self.num_segments + 1
        one = Sampled(
            ordinal=len(self.sampled),
            segment=segment,
            depth=prompt.depth,
            is_main=prompt.is_main,
            added_ids=prompt.added_ids,
            completion=completion,
            action=action,
            returned=returned,
            history=(*prompt.messages, action),
            tokens=(*prompt.token_ids, *completion.token_ids),
        )
        self.sampled.append(one)
        self._tails[segment] = one.ordinal
        for seen in (returned, replace(returned, content=returned.text + stop)) if stop else (returned,):
            self._by_chain.setdefault(_linked(prompt.chain, seen), []).append(one)
            self._by_key[_key(seen)] = action
        wire = [call for call in returned.calls if isinstance(call, ToolCall)]
        read = [call for call in action.calls if isinstance(call, ToolCall)]
        self._calls |= {seen.id: own for seen, own in zip(wire, read, strict=True)}
        return one

    def drop(self, prompt: Prompt) -> None:
        """Drop a prompt without a completion, so that another call can continue its segment."""
        if prompt.parent >= 0:
            self._tails[self.sampled[prompt.parent].segment] = prompt.parent
        elif prompt.is_main and prompt.depth == 0:
            self._has_main = False

    def segments(self) -> tuple[tuple[Sampled, ...], ...]:
        """Return the completions of each segment. Segments are in the order of their first completion."""
        rows: list[list[Sampled]] = [[] for _ in range(self.num_segments)]
        for one in self.sampled:
            rows[one.segment].append(one)
        return tuple(tuple(row) for row in rows)

    def find(self, returned: Message) -> Sampled | None:
        """Return the last completion that the agent received as this message."""
        key = _key(returned)
        return next((one for one in reversed(self.sampled) if _key(one.returned) == key), None)

    # ---------------------------------------------------------------------------------------------------- private

    def _free_of(self, found: Sequence[Sampled]) -> Sampled:
        """Return the first of several equal completions that no call continues, or else the first."""
        return next((one for one in found if self._tails.get(one.segment) == one.ordinal), found[0])

    def _continued(self, parent: Sampled, rest: Sequence[Message], tools: tuple[ToolSpec, ...], chain: str) -> Prompt:
        replies = tuple(self._own(message, tools) for message in rest)
        messages = (*parent.history, *replies)
        end = parent.end if parent.end in self._renderer.turn_end_ids else None
        added = self._renderer.suffix_ids(parent.history, replies, tools, end)
        is_free = self._tails.get(parent.segment) == parent.ordinal
        token_ids = (*parent.tokens, *added) if added is not None else self._renderer.prompt_ids(messages, tools)
        continues = is_free and added is not None  # otherwise the template changes earlier messages
        if is_free:
            del self._tails[parent.segment]
        return Prompt(
            chain=chain,
            tools=tools,
            messages=messages,
            token_ids=token_ids,
            added_ids=added if continues and added is not None else token_ids,
            segment=parent.segment if continues else -1,
            depth=parent.depth + 1,
            is_main=parent.is_main and is_free,
            parent=parent.ordinal if is_free else -1,
        )

    def _own(self, message: Message, tools: tuple[ToolSpec, ...]) -> Message:
        """Return an agent's message for the renderer, with the call ids that the policy wrote."""
        if message.role == "assistant":
            if (known := self._by_key.get(_key(message))) is not None:
                return known
            calls = [call for call in message.calls if isinstance(call, ToolCall)]
            if calls and not tools:  # without tools, no text is read as a call
                written = "\n".join(filter(None, (message.text, self._renderer.format.format(calls, ()))))
                return replace(message, content=written, answer=message.text)
            return self._renderer.read_text(
                self._renderer.action_text(message, tools, is_open=False), tools, is_open=False
            )
        if message.role != "tool" or message.result is None:
            return message
        call = self._calls.get(message.result.call_id)
        if call is None:
            return replace(message, result=replace(message.result, call_id=""))
        return Message("tool", message.content, result=ToolResult(message.result.content, call.name, call.id))


def shown_text(action: Message) -> str:
    """Return the text that an agent receives besides thinking and calls: the answer, then malformed calls.

    In the format ``compact`` the answer is the whole text, and holds the malformed calls already.
    """
    malformed = [call.text for call in action.calls if isinstance(call, MalformedCall) and call.text not in action.text]
    return "\n".join(filter(None, (action.text, *malformed)))


def _key(message: Message) -> tuple[Any, ...]:
    """Return a key that is equal for messages that are equal for an agent; thinking is not part of it."""
    if message.role == "assistant":
        return ("assistant", message.text.strip(), tuple(_call_key(call) for call in message.calls))
    call_id = message.result.call_id if message.result else ""
    return (message.role, message.text, call_id)


def _call_key(call: Call) -> tuple[str, ...]:
    if isinstance(call, MalformedCall):
        return ("", call.text)
    return (call.id, call.name, canonical(dict(call.arguments)))


def _chains(messages: Sequence[Message], tools: tuple[ToolSpec, ...]) -> list[str]:
    """Return the digests of all prefixes of a conversation, beginning with the empty prefix."""
    chains = [_digest("", canonical([tool.as_function() for tool in tools]))]
    for message in messages:
        chains.append(_linked(chains[-1], message))
    return chains


def _linked(chain: str, message: Message) -> str:
    return _digest(chain, repr(_key(message)))


def _digest(*parts: str) -> str:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        state.update(len(encoded).to_bytes(8, "big") + encoded)
    return state.hexdigest()
