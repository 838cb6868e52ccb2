"""The tokens of one episode: an append-only buffer per segment.

Sampled ids are appended unchanged, and the environment's messages as the suffix that they add. Nothing else changes the
buffer. A new segment begins if the chat template changes earlier messages, another action replaced the sampled one, or
the context is shortened.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentgym.rollout.memory import with_note
from agentgym.types import Completion, FinishReason, Message, Observation, ToolSpec

if TYPE_CHECKING:
    from agentgym.render.chat import ChatRenderer


class Session:
    """One conversation as token ids.

    Example (``tokens`` of a segment after one turn)::

        first prompt | sampled completion | suffix that renders the replies
    """

    def __init__(self, renderer: ChatRenderer, tools: Sequence[ToolSpec], observation: Observation) -> None:
        self._renderer = renderer
        self._tools = tuple(tools)
        self._end: int | None = None
        self.num_segments = 0
        self.begin_segment(observation)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """All tokens of the current segment: the prompt of the next completion."""
        return tuple(self._tokens)

    @property
    def num_tokens(self) -> int:
        """Length of :attr:`prompt_ids`."""
        return len(self._tokens)

    @property
    def added_ids(self) -> tuple[int, ...]:
        """The part of :attr:`prompt_ids` that came after the last completion."""
        return tuple(self._tokens[self._num_committed :])

    @property
    def begins_segment(self) -> bool:
        """True until the segment has a completion."""
        return self._num_committed == 0

    @property
    def opens_thinking(self) -> bool:
        """True if the next completion begins inside thinking, which the prompt has opened."""
        return self._renderer.opens_after(self._tokens)

    def hinted_ids(self, hint: str) -> tuple[int, ...]:
        """Return :attr:`prompt_ids` with a hint at the end of the last observation; sampled tokens stay as they are."""
        messages = (*self._messages[:-1], with_note(self._messages[-1], hint))
        if self._num_committed:
            said = max(at for at, message in enumerate(messages) if message.role == "assistant")
            before, replies = messages[: said + 1], messages[said + 1 :]
            added = self._renderer.suffix_ids(before, replies, self._tools, self._end)
            if added is not None:
                return (*self._tokens[: self._num_committed], *added)
        return self._renderer.prompt_ids(messages, self._tools)

    def begin_segment(self, messages: Sequence[Message]) -> None:
        """Start a segment whose prompt is these messages."""
        self._messages: list[Message] = list(messages)
        self._tokens: list[int] = list(self._renderer.prompt_ids(self._messages, self._tools))
        self._num_committed = 0
        self._is_replaced = False
        self.num_segments += 1

    def add_completion(self, completion: Completion) -> Message:
        """Append sampled tokens, and return the message that they render."""
        is_open = self.opens_thinking
        self._tokens += completion.token_ids
        self._num_committed = len(self._tokens)
        is_cut = completion.finish_reason is FinishReason.LENGTH
        message = self._renderer.read(completion.token_ids, self._tools, is_open=is_open, is_cut=is_cut)
        self._messages.append(message)
        ends = completion.finish_reason is FinishReason.STOP and completion.token_ids[-1] in self._renderer.turn_end_ids
        self._end = completion.token_ids[-1] if ends else None
        return message

    def replace_action(self, played: Message) -> None:
        """Continue as if the last completion had been this action; the segment of the sampled one ends.

        Calls are written in the policy's tool-call format.
        """
        self._messages[-1] = Message("assistant", self._renderer.action_text(played, self._tools))
        self._is_replaced = True

    def num_tokens_after(self, replies: Observation) -> int:
        """Return :attr:`num_tokens` as it would be after :meth:`add_replies`."""
        added = self._added(replies)
        if added is None:
            return len(self._renderer.prompt_ids([*self._messages, *replies], self._tools))
        return self.num_tokens + len(added)

    def add_replies(self, replies: Observation) -> bool:
        """Append the environment's replies.

        Returns:
            True if a new segment began, because the template or :meth:`replace_action` changed earlier messages.
        """
        added = self._added(replies)
        messages = [*self._messages, *replies]
        if added is None:
            self.begin_segment(messages)
            return True
        self._messages = messages
        self._tokens += added
        return False

    def _added(self, replies: Observation) -> tuple[int, ...] | None:
        if self._is_replaced:
            return None
        return self._renderer.suffix_ids(self._messages, replies, self._tools, self._end)
